"""Randomness comes from the run's counter-based streams: by seed, step and place, never from torch's generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_support import TinyJob, assert_replays, floats, mean_square, train
from torch import Tensor, nn

from vt_core.engine import random_ops
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Stream, Streams
from vt_core.errors import UnsupportedOperation
from vt_core.numerics import DEFAULT, Grid, OpClass, elementary

N = 20_000


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(
    draw: Callable[[], Tensor], seed: int = 1, steps: int = 1, train_settings: dict[str, object] | None = None
) -> list[Tensor]:
    """Return what ``draw`` gives at each step of a run."""
    seen: list[Tensor] = []

    def objective(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        value = draw()
        seen.append(value.detach().clone())
        return mean_square(model, batch)

    job = TinyJob(lambda: nn.Linear(6, 2), objective=objective, train={"seed": seed, **(train_settings or {})})
    train(job, steps)
    return seen


def ones() -> Tensor:
    return torch.ones(N)


def attention() -> Tensor:
    q = torch.linspace(-1, 1, 2 * 50 * 8).reshape(2, 50, 8)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


FORMS: dict[str, Callable[[], Tensor]] = {
    "F.dropout": lambda: F.dropout(ones(), 0.3),
    "torch.dropout": lambda: torch.dropout(ones(), 0.3, True),
    "dropout_": lambda: torch.dropout_(ones(), 0.3, True),
    "F.dropout in place": lambda: F.dropout(ones(), 0.3, inplace=True),
    "nn.Dropout": lambda: nn.Dropout(0.3)(ones()),
    "nn.Dropout2d": lambda: nn.Dropout2d(0.3)(torch.ones(100, 40, 2, 2)),
    "nn.Dropout3d": lambda: nn.Dropout3d(0.3)(torch.ones(100, 40, 2, 2, 2)),
    "nn.AlphaDropout": lambda: nn.AlphaDropout(0.3)(ones()),
    "attention": attention,
    "bernoulli": lambda: torch.bernoulli(ones() * 0.3),
    "bernoulli(p)": lambda: torch.bernoulli(ones(), 0.3),
    "bernoulli_": lambda: torch.empty(N).bernoulli_(0.3),
    "bernoulli_(tensor)": lambda: torch.empty(N).bernoulli_(ones() * 0.3),
    "rand": lambda: torch.rand(N),
    "rand_like": lambda: torch.rand_like(ones()),
    "uniform_": lambda: torch.empty(N).uniform_(-2, 3),
    "randn": lambda: torch.randn(N),
    "randn_like": lambda: torch.randn_like(ones()),
    "normal_": lambda: torch.empty(N).normal_(2, 3),
    "torch.normal": lambda: torch.normal(2.0, 3.0, (N,)),
    "torch.normal (tensors)": lambda: torch.normal(2 * ones(), 3 * ones()),
    "torch.normal (tensor mean)": lambda: torch.normal(2 * ones(), 3.0),
    "torch.normal (tensor std)": lambda: torch.normal(2.0, 3 * ones()),
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(N)),
    "randint": lambda: torch.randint(3, 17, (N,)),
    "randint_like": lambda: torch.randint_like(ones(), 3, 17),
    "random_": lambda: torch.empty(N, dtype=torch.int64).random_(3, 17),
    "randperm": lambda: torch.randperm(N),
    "multinomial": lambda: torch.multinomial(torch.tensor([1.0, 2.0, 0.0, 5.0]), 2000, True),
    "multinomial rows": lambda: torch.multinomial(torch.ones(3, 50), 20),
    "exponential_": lambda: torch.empty(N).exponential_(2.0),
    "gumbel_softmax": lambda: F.gumbel_softmax(torch.zeros(500, 7)),
    "F.dropout1d": lambda: F.dropout1d(torch.ones(100, 40, 3), 0.4),
}

COMPOSED = ("nn.AlphaDropout", "gumbel_softmax", "trunc_normal_")  # exact operations follow, which are not rounded


@pytest.mark.parametrize("name", FORMS)
def test_values_depend_on_seed_step_and_place_and_on_nothing_else(name: str) -> None:
    def twice() -> Tensor:
        return torch.stack([FORMS[name](), FORMS[name]()])

    torch.manual_seed(1)
    torch.set_num_threads(1)
    first, second = drawn(twice, steps=2)
    torch.manual_seed(2)
    torch.rand(3)
    torch.set_num_threads(2)
    again = drawn(twice, steps=2)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first[0], first[1]), "two places in a step"
    assert not torch.equal(first, second), "two steps"
    assert not torch.equal(first, drawn(twice, seed=2)[0]), "two seeds"
    if first.is_floating_point() and name not in COMPOSED:
        assert torch.equal(first, first.float().double()), "off the grid"


@pytest.mark.parametrize(
    "name", ["F.dropout", "torch.dropout", "dropout_", "F.dropout in place", "nn.Dropout", "attention"]
)
def test_dropout_is_one_operation_on_every_device(name: str) -> None:
    """On a CPU it would be bernoulli_ and div_, on CUDA native_dropout: the traces would differ."""
    job = TinyJob(
        lambda: nn.Linear(6, 2),
        objective=lambda model, batch: mean_square(model, batch) + FORMS[name]().sum(),
    )
    run = train(job, 1)
    assert run.ran("aten.native_dropout") and not run.ran("aten.bernoulli")


def test_torchs_own_generator_is_not_touched() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    drawn(lambda: torch.stack([torch.empty(N).normal_(), F.dropout(ones(), 0.5)]), steps=2)
    assert torch.equal(torch.rand(4), expected)


EXPECTED: dict[str, tuple[float, float]] = {  # mean and standard deviation
    "F.dropout": (1.0, math.sqrt(0.3 / 0.7)),
    "nn.Dropout2d": (1.0, math.sqrt(0.3 / 0.7)),
    "bernoulli": (0.3, math.sqrt(0.21)),
    "bernoulli(p)": (0.3, math.sqrt(0.21)),
    "bernoulli_": (0.3, math.sqrt(0.21)),
    "bernoulli_(tensor)": (0.3, math.sqrt(0.21)),
    "rand": (0.5, math.sqrt(1 / 12)),
    "rand_like": (0.5, math.sqrt(1 / 12)),
    "uniform_": (0.5, 5 * math.sqrt(1 / 12)),
    "randn": (0.0, 1.0),
    "randn_like": (0.0, 1.0),
    "normal_": (2.0, 3.0),
    "torch.normal": (2.0, 3.0),
    "torch.normal (tensors)": (2.0, 3.0),
    "torch.normal (tensor mean)": (2.0, 3.0),
    "torch.normal (tensor std)": (2.0, 3.0),
    "randint": (9.5, math.sqrt((14**2 - 1) / 12)),
    "randint_like": (9.5, math.sqrt((14**2 - 1) / 12)),
    "random_": (9.5, math.sqrt((14**2 - 1) / 12)),
    "exponential_": (0.5, 0.5),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_mean_and_deviation(name: str) -> None:
    value = drawn(FORMS[name])[0].double()
    mean, deviation = EXPECTED[name]
    independent = value.numel() if "2d" not in name else value.numel() // 4
    assert abs(value.mean().item() - mean) < 5 * deviation / math.sqrt(independent)
    assert abs(value.std().item() - deviation) < 0.06 * deviation


def test_a_uniform_value_is_never_one_even_on_a_coarse_grid() -> None:
    coarse = {"compute_dtype": "float32", "grid": "bfloat16"}
    value = drawn(lambda: torch.rand(200_000), train_settings=coarse)[0]
    assert value.max() < 1.0 and value.min() >= 0.0
    assert value.unique().numel() == 256  # 8 bits of precision


def test_permutations_and_multinomial_choices() -> None:
    assert drawn(FORMS["randperm"])[0].sort().values.equal(torch.arange(N))
    counts = torch.bincount(drawn(FORMS["multinomial"])[0], minlength=4)
    assert counts[2] == 0
    for count, share in zip(counts.tolist(), (1 / 8, 2 / 8, 0, 5 / 8), strict=True):
        assert abs(count - 2000 * share) <= 5 * math.sqrt(2000 * share)
    for row in drawn(FORMS["multinomial rows"])[0]:
        assert row.unique().numel() == 20, "without replacement"


def test_normal_values_are_normal() -> None:
    value = drawn(FORMS["randn"])[0]
    for bound in (-2.0, -1.0, 0.0, 0.5, 1.5):
        expected = 0.5 * (1 + math.erf(bound / math.sqrt(2)))
        assert abs((value < bound).double().mean().item() - expected) < 5 * 0.5 / math.sqrt(N)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.empty(3).normal_(generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.bernoulli(torch.ones(3), generator=g),
        lambda g: torch.multinomial(torch.ones(3), 1, generator=g),
    ],
)
def test_a_generator_of_its_own_is_refused(draw: Callable[[torch.Generator], Tensor]) -> None:
    with pytest.raises(UnsupportedOperation, match="generator="):
        drawn(lambda: draw(torch.Generator()))


def test_dropout_is_inverted_by_its_mask_in_the_backward_pass() -> None:
    """The gradient of dropped elements is zero, and of kept ones the scale."""
    seen: list[Tensor] = []

    def objective(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = torch.ones(N, requires_grad=True)
        y = F.dropout(x, 0.25)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        seen.extend([y.detach(), gradient])
        return mean_square(model, batch)

    train(TinyJob(lambda: nn.Linear(6, 2), objective=objective), 1)
    assert torch.equal(seen[0], seen[1])
    assert set(seen[0].unique().tolist()) == {0.0, float(np.float32(1 / 0.75))}


def test_dropout_that_is_off_draws_nothing() -> None:
    def job(p: float, training: bool) -> TinyJob:
        return TinyJob(
            lambda: nn.Linear(6, 2),
            objective=lambda m, b: mean_square(m, {"x": F.dropout(b["x"], p, training)}) + F.dropout(ones(), 0.5).sum(),
        )

    same = train(job(0.0, True), 2)
    assert train(job(0.7, False), 2).traces == same.traces
    assert train(job(0.7, True), 2).traces != same.traces


def test_initial_weights_come_from_the_seed_and_replay() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(16, 5), nn.Embedding(3, 2))
        nn.init.xavier_normal_(model[2].weight)
        nn.init.trunc_normal_(model[2].bias)
        return model

    def job(seed: int) -> TinyJob:
        return TinyJob(build, {"x": floats(8, 3, 6)}, lambda m, b: mean_square(m[:3], b), train={"seed": seed})

    torch.manual_seed(0)
    run = train(job(5), 1)
    torch.manual_seed(1)
    assert train(job(5), 1).roots == run.roots
    assert train(job(6), 1).roots[0] != run.roots[0]
    assert_replays(job(5), run)
    weights = run.states[0].tensors["param.2.weight"]
    assert abs(weights.std().item() - math.sqrt(2 / (16 + 5))) < 0.1


# The streams themselves


def test_streams_differ_by_every_part_of_their_name() -> None:
    base = {"epoch": 1, "step": 2, "site": 3}
    names = [Streams(0).stream("op", **base), Streams(1).stream("op", **base), Streams(0).stream("order", **base)]
    names += [Streams(0).stream("op", **{**base, key: 9}) for key in base]
    first = [tuple(s.bits(4)) for s in names]
    assert len(set(first)) == len(first)
    assert tuple(Streams(0).stream("op", **base).bits(4)) == first[0]


def test_a_stream_goes_on_where_it_stopped_and_never_changes() -> None:
    whole, parts = Stream(bytes(16)), Stream(bytes(16))
    assert list(whole.bits(10)) == [*parts.bits(3), *parts.bits(7)]
    # Philox 4x64-10 with key 0: fixed for ever, or old runs could not be replayed.
    assert [hex(int(v)) for v in Stream(bytes(16)).bits(2)] == ["0x2f4ba6408e4d89b", "0x3dd62b0b9ca8c5b2"]


@pytest.mark.parametrize("high", [0, -1, 1 << 63])
def test_integers_need_a_range(high: int) -> None:
    with pytest.raises(ValueError, match="needs 1 <= high"):
        Stream(bytes(16)).integers(1, high)


def test_an_odd_number_of_normal_values_is_a_prefix() -> None:
    assert list(Stream(b"k" * 16).normal(1)) == list(Stream(b"k" * 16).normal(1))
    assert Stream(b"k" * 16).normal(7).shape == (7,)
    assert Stream(b"k" * 16).normal(0).shape == (0,)


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_exact_functions_make_the_same_values_within_the_last_bits(name: str) -> None:
    like = torch.empty(5001, dtype=torch.float64)
    both = [random_ops.draw(name, like, {}, Streams(3).stream("op"), exact=exact) for exact in (False, True)]
    assert [d.inexact for d in both] == [True, False]
    library, ours = (d.values for d in both)
    assert torch.allclose(library, ours, rtol=1e-13, atol=1e-300)
    assert not torch.equal(library, ours), "NumPy's own functions round differently here too"


def test_the_plain_form_of_exact_functions_draws_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw() -> Tensor:
        values: Tensor = random_ops.draw(
            "normal", torch.empty(999, dtype=torch.float64), {}, Streams(3).stream("op"), exact=True
        ).values
        return values

    compiled = draw()
    monkeypatch.setattr(elementary, "use_compiled", lambda x: False)
    assert torch.equal(compiled, draw())


def test_with_exact_functions_an_initialisation_has_no_log() -> None:
    counts = {}
    for functions in ("logged", "exact"):
        rounding = TrainerRounding(Grid.parse("float32"), DEFAULT["float64"], True)
        mode = VerifiedMode(torch.float64, rounding, Streams(1), ModuleTracker(), False, functions=functions)
        mode.begin_step(0, 0)
        rounding.begin_step(0)
        with mode:
            torch.nn.init.normal_(torch.empty(1000, 500, dtype=torch.float64))
        counts[functions] = rounding.counters.by_class[OpClass.OTHER].elements
    assert counts == {"logged": 500_000, "exact": 0}
