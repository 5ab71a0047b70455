"""Between two segments the last layer is exchanged for that of another model; both segments are trained honestly."""

from __future__ import annotations

from attacks.zoo import OTHER, Attack, Lab, Mounted, Place

from vt_core.training.state import State

LAYER = ("param.linear.weight", "param.linear.bias")


def mount(lab: Lab) -> Mounted:
    other = lab.honest(OTHER).state
    assert other is not None

    def splice(index: int, state: State | None) -> State | None:
        if index != 3 or state is None:
            return state
        return State(state.step, {**state.tensors, **{name: other.tensors[name] for name in LAYER}}, state.scalars)

    return lab.cheat(between=splice)


ATTACK = Attack(
    name="weights-spliced",
    kind="training",
    does="starts segment 3 from other weights than segment 2 ended in",
    gain="plants a layer trained elsewhere; each segment alone looks honest",
    caught_by="replay: a segment starts from the committed checkpoint",
    reason="state_mismatch",
    place=Place(3, 5, "aten.addmm.default (linear)"),
    mount=mount,
)
