"""The dispatch mode: sees every ATen operation of a step and gives each the treatment of its class.

Forward, backward, buffers and optimizer all pass through ``VerifiedMode.__torch_dispatch__``, so no model is
edited and no list of layers is kept. The five classes and why they are needed: ``opclass.py``; what happens at a
rounding site: ``rounding.py``. A treatment is a function in ``VerifiedMode.treatments`` and can be swapped
per class: ``contractions: exact`` swaps the one of the contractions (``exact_contractions.py``), ``functions: exact``
those of single functions (``exact_functions.py``).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vt_core.engine import canonical, convolutions, exact_contractions, exact_functions, random_ops, updates
from vt_core.engine.cancellation import NORM_ORDER, first_floor, norm_floor
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.opclass import TIE_ORDER, Treatment, refusal
from vt_core.engine.plans import Plan, by_name, make_plan, refine
from vt_core.engine.rounding import Rounding
from vt_core.engine.scale import Bound, growths, scale_floors
from vt_core.engine.streams import Streams
from vt_core.engine.trace import Trace
from vt_core.errors import PrecisionError, UnsupportedOperation
from vt_core.numerics import OpClass

SLICES = {"exact": 1, "exact2": 2}
"""Values of ``contractions`` beside ``logged``, with the slices of each operand."""

_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)

_WithoutFunctions = torch._C.DisableTorchFunction

_COPY = "aten.copy_.default"
GRADIENT_COPIES = frozenset({"aten.new_empty_strided.default", _COPY})
_ACCUMULATE = "torch::autograd::AccumulateGrad"

_NO_FLOORS, _NO_GROWTH = (0.0, 0.0, 0.0), (0, 0, 0)

TreatmentFunction = Callable[["VerifiedMode", Plan, Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass
class Moment:
    """Where a step stands: names the streams of randomness."""

    epoch: int = 0
    step: int = 0
    draws: int = 0


class VerifiedMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode of one training session; see the module's docstring.

    ``compute`` is the dtype that every floating tensor of a step must have; with ``promote`` a tensor that falls
    below it is brought back, without it that is a :class:`PrecisionError`. ``skip_random`` serves zeros for
    random operations: for rebuilding a model whose values are loaded afterwards.
    """

    def __init__(
        self,
        compute: torch.dtype,
        rounding: Rounding,
        streams: Streams,
        tracker: ModuleTracker,
        promote: bool,
        contractions: str = "logged",
        functions: str = "logged",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.compute, self.rounding, self.streams, self.tracker = compute, rounding, streams, tracker
        self.promote = promote
        self.skip_random = False
        self.trace = Trace()
        self.moment = Moment()
        self.drawn: list[weakref.ref[Tensor]] = []  # what random operations returned while the model was built
        self._copy_of_gradient: Tensor | None = None  # memory that autograd has just made for one
        self.last_writer: dict[int, str] = {}  # storage address -> last operation that wrote it in place
        self.treatments: dict[Treatment | OpClass, TreatmentFunction] = {
            Treatment.CONSTANT: _constant,
            Treatment.EXACT: _exact,
            Treatment.CANONICAL: _canonical,
            Treatment.UPDATE: _update,
            Treatment.INEXACT: _inexact,
            Treatment.RANDOM: _random,
            Treatment.REFUSED: _refused,
        }
        self.functions = functions
        self.forms: dict[str, TreatmentFunction] = {}  # by name: other functions keep their log
        if contractions != "logged":
            self.treatments[OpClass.CONTRACTION] = exact_contractions.treatment(SLICES[contractions])
        if functions != "logged":
            self.forms = exact_functions.treatments()
        self._plans: dict[Any, Plan] = {}

    def begin_step(self, epoch: int, step: int) -> None:
        """Start a step: its streams, its trace and its sites count from zero."""
        self.moment = Moment(epoch, step)
        self.trace.begin()
        self.tracker.begin_step()
        self.last_writer.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep ``torch.compile`` away once: by a wrapper around the method of a subclass, as sessions use."""
        return "_should_skip_dynamo" not in vars(cls)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one ATen operation under its treatment."""
        # Below autograd nothing is replaced any more, but each look at a tensor would ask ``CommonForms`` whether.
        with _WithoutFunctions():
            return self._treat(func, args, {} if kwargs is None else kwargs)

    def _treat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._plans.get(func) or self.plan(func)
        treatment = plan.treatment
        if treatment is Treatment.VIEW:
            return func(*args, **kwargs)
        if plan.full_name in GRADIENT_COPIES:
            copied = self.copy_gradient(plan, func, args, kwargs)
            if copied is not None:
                return copied
        if not plan.known:
            raise UnsupportedOperation(
                plan.full_name, self.tracker.current(), "it is a custom kernel that nobody has proven",
                "Write it with PyTorch's own operations.",
            )  # fmt: skip
        self.tracker.note()
        if plan.rounds_scalars:
            args = _round_scalars(args)
            if kwargs:
                kwargs = {k: _round_scalar(v) if type(v) is float else v for k, v in kwargs.items()}
        if self.promote:
            args, kwargs = self._promote_dtypes(args, kwargs)
        if plan.refined and (kwargs or len(args) > plan.settled):
            treatment = refine(plan, by_name(plan, args, kwargs))
        run = None
        if treatment is Treatment.INEXACT:
            # A swapped strategy for one function, or for an op class.
            run = self.forms.get(plan.name) or self.treatments.get(plan.op_class)
        result = (run or self.treatments[treatment])(self, plan, func, args, kwargs)
        if type(result) is not Tensor or result.dtype is not self.compute:
            result = self._check_precision(plan, result)
        if plan.traced:
            self.trace.record(plan.full_name, result)
        return result

    def copy_gradient(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Run one of GRADIENT_COPIES if autograd copies a gradient by it: first it makes memory, then it copies.

        It does so where somebody else holds the gradient, be it a frame that nobody has cleared away yet. That is no
        part of the computation, so it is not in the trace and is no site. None for any other use of the operation.
        """
        node = torch._C._current_autograd_node()
        if node is None or node.name() != _ACCUMULATE:
            return None
        if plan.full_name == _COPY:
            made, self._copy_of_gradient = self._copy_of_gradient, None
            if made is None or args[0] is not made:
                return None
        result: Tensor = func(*args, **kwargs)
        if plan.full_name != _COPY:
            self._copy_of_gradient = result
        return result

    # What treatments call

    def plan(self, func: Any) -> Plan:
        """Return the plan of an overload, made at its first use."""
        if func not in self._plans:
            self._plans[func] = make_plan(func)
        return self._plans[func]

    def place(self, plan: Plan) -> Callable[[], tuple[str, str]]:
        """Return a function that names the current operation and module, called only for a finding."""
        return lambda: (plan.full_name, self.tracker.current())

    def run_inexact(self, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation with the interval log."""
        return _inexact(self, plan, func, args, kwargs)

    def put_on_grid(self, plan: Plan, tensor: Tensor) -> None:
        """Round a result that is the same on every machine, without a log."""
        self.rounding.plain(tensor, self.place(plan))

    def count_rounded(self, plan: Plan, tensor: Tensor, fingerprint: int) -> None:
        """Count a tensor that an operation has put on the grid itself as a site without a log."""
        self.rounding.counters.plain += tensor.numel()
        self.rounding.note(fingerprint, self.place(plan))

    def mutated(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the floating tensors that this call writes."""
        found: list[Tensor] = []
        for position, name in plan.mutated:
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.dtype in _FLOATS:
                    found.append(tensor)
                    self.last_writer[tensor.untyped_storage().data_ptr()] = plan.full_name
        return found

    # Precision

    def _check_precision(self, plan: Plan, result: Any) -> Any:
        if isinstance(result, Tensor):
            if result.dtype is self.compute or not (result.dtype.is_floating_point or result.dtype.is_complex):
                return result
            if self.promote and result.dtype in _FLOATS and not plan.in_place:
                return result.to(self.compute)
            raise PrecisionError(
                f"{plan.full_name} in module {self.tracker.current()!r} made a {result.dtype} tensor while the compute "
                f"precision is {self.compute}. Remove the hard-coded dtype there (.float(), dtype=...), or set "
                f"'promote: true' in the run's parameters to bring such tensors back to the compute precision."
            )
        if isinstance(result, (tuple, list)):
            return type(result)(self._check_precision(plan, item) for item in result)
        return result

    def _promote_dtypes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def promoted(value: Any) -> Any:
            return self.compute if isinstance(value, torch.dtype) and value in _FLOATS else value

        return tuple(promoted(a) for a in args), {k: promoted(v) for k, v in kwargs.items()}


def _round_scalar(value: Any) -> Any:
    """Round a Python float to float32.

    Learning rates, bias corrections and betas come from ``pow`` and ``cos`` of the C library, which differ in
    the last bit between machines; values that float32 cannot hold (finfo.min as a mask) stay as they are.
    """
    if type(value) is float and _FLOAT32_TINY <= abs(value) <= _FLOAT32_MAX:
        return float(np.float32(value))
    return value


def _round_scalars(args: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in args:
        if type(value) is float:
            return tuple([_round_scalar(v) if type(v) is float else v for v in args])
    return args


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [t for t in result if isinstance(t, Tensor)] if isinstance(result, (tuple, list)) else []


def _constant(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put a tensor made of Python numbers on the grid, as Python scalars are put on float32."""
    result = func(*args, **kwargs)
    if result.dtype is mode.compute and result.numel():
        result = result.clone()  # torch.from_numpy shares memory with the caller's array
        mode.put_on_grid(plan, result)
    return result


def _exact(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave the result as it is; what is written in place is put on the grid, so that state stays on it.

    A 0-dimensional tensor is left alone: it is a counter (Adam's step), exact in the compute precision.
    """
    if plan.name in TIE_ORDER:
        ordered = canonical.stable_order(plan.name, by_name(plan, args, kwargs))
        if ordered is not None:
            return ordered
    result = func(*args, **kwargs)
    if plan.in_place and not plan.keeps_grid:
        for tensor in mode.mutated(plan, args, kwargs):
            if tensor.dim() > 0:
                mode.put_on_grid(plan, tensor)
    return result


def _canonical(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = by_name(plan, args, kwargs)
    out = arguments.pop("out", None)
    if not any(isinstance(v, Tensor) and v.dtype.is_floating_point for v in arguments.values()):
        return _inexact(mode, plan, func, args, kwargs)  # integers stay as they are; their square root is no integer
    value = canonical.apply_form(plan.name, arguments)
    if value is None:
        return mode.forms.get(plan.name, _inexact)(mode, plan, func, args, kwargs)
    targets = mode.mutated(plan, args, kwargs)
    if not targets:
        mode.put_on_grid(plan, value)
        return value
    target = targets[0] if out is None else out
    target.copy_(value)
    if target.dim() > 0:
        mode.put_on_grid(plan, target)
    return target


def _update(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = by_name(plan, args, kwargs)
    if len(arguments) != len(plan.argument_names):
        raise TypeError(f"{plan.full_name} needs {', '.join(plan.argument_names)}")
    mode.mutated(plan, args, kwargs)  # notes who wrote it
    for tensor, fingerprint in updates.update(plan.name, arguments, mode.compute, mode.rounding.grid):
        mode.count_rounded(plan, tensor, fingerprint)
    return arguments["param"]


def _inexact(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Round every floating output and every floating argument that was written, with the interval log."""
    written = mode.mutated(plan, args, kwargs) if plan.mutated else []
    floors: tuple[float, ...] = _NO_FLOORS
    growth: tuple[int, ...] = _NO_GROWTH
    first, order = 0.0, None
    if plan.has_floor:
        arguments = by_name(plan, args, kwargs)
        order = NORM_ORDER.get(plan.name)
        if not plan.in_place:
            floors, first = scale_floors(plan.name, arguments, 3), first_floor(plan.name, arguments)
            growth = growths(plan.name, arguments, 3)
    result = None
    if plan.name in convolutions.NAMES and not plan.in_place:
        result = convolutions.run(plan.name, arguments, func)
    if result is None:
        result = func(*args, **kwargs)
    place = mode.place(plan)
    if type(result) is Tensor and not written:
        if result.dtype is mode.compute and result.numel():
            mode.rounding.inexact(result, plan.op_class, Bound(max(floors[0], first), growth[0]), place)
        return result
    done: set[int] = set()
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    for i in order or range(len(outputs)):
        tensor = outputs[i]
        if isinstance(tensor, Tensor) and tensor.dtype is mode.compute and tensor.numel() and id(tensor) not in done:
            if i == 0 and order is not None:
                first = norm_floor(arguments, outputs[2])
            bound = Bound(max(floors[i], first if i == 0 else 0.0), growth[i]) if i < len(floors) else Bound()
            mode.rounding.inexact(tensor, plan.op_class, bound, place)
            done.add(id(tensor))
    for tensor in written:
        if id(tensor) not in done and tensor.numel():
            mode.rounding.inexact(tensor, plan.op_class, Bound(), place)
            done.add(id(tensor))
    return result


def _random(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = by_name(plan, args, kwargs)
    if arguments.get("generator") is not None:
        raise UnsupportedOperation(
            plan.full_name, mode.tracker.current(), "it names a generator of its own, which the engine cannot serve",
            "Leave out generator=: randomness comes from the run's seed.",
        )  # fmt: skip
    if torch._C._current_autograd_node() is not None:
        # A region that torch.utils.checkpoint runs again would get other numbers than the first time.
        raise UnsupportedOperation(
            plan.full_name, mode.tracker.current(), "it draws random numbers in the backward pass",
            "Keep dropout outside regions of torch.utils.checkpoint, or leave out the checkpointing.",
        )  # fmt: skip
    moment = mode.moment
    stream = mode.streams.stream("op", epoch=moment.epoch, step=moment.step, site=moment.draws)
    moment.draws += 1
    if plan.name == "native_dropout":
        return _dropout(mode, plan, arguments, stream)
    if plan.name == "multinomial":
        chosen = random_ops.multinomial(
            arguments["self"], arguments["num_samples"], arguments.get("replacement", False), stream
        )
        return arguments["out"].resize_(chosen.shape).copy_(chosen) if "out" in arguments else chosen
    mode.mutated(plan, args, kwargs)  # notes who wrote it
    # PyTorch works out shape, dtype and layout (and resizes an out=); what it drew itself is overwritten below.
    in_place = plan.in_place and "out" not in arguments
    result = arguments[plan.mutated[0][1]] if in_place else func(*args, **kwargs)
    if moment.step == 0:
        mode.drawn.append(weakref.ref(result))
    if mode.skip_random:
        return result.zero_() if plan.name != "randperm" else result
    try:
        precision, exact = mode.rounding.grid.precision, mode.functions != "logged"
        drawn = random_ops.draw(plan.name, result, arguments, stream, precision, exact)
    except NotImplementedError:
        raise UnsupportedOperation(
            plan.full_name,
            mode.tracker.current(),
            "it has no counter-based form here",
            "Build it from torch.rand.",
        ) from None
    result.copy_(drawn.values)
    if result.dtype is mode.compute and result.numel():
        if drawn.inexact:
            mode.rounding.inexact(result, OpClass.OTHER, Bound(), mode.place(plan))
        else:
            mode.put_on_grid(plan, result)
    return result


def _dropout(mode: VerifiedMode, plan: Plan, arguments: dict[str, Any], stream: Any) -> tuple[Tensor, Tensor]:
    x, p = arguments["input"], arguments["p"]
    if arguments.get("train") is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    # uniform >= p, where uniform is the top 53 bits times 2^-53
    least = math.ceil(p * 2.0**53) << 11
    kept = stream.at_least(x.numel(), least).reshape(tuple(x.shape))
    mask = torch.from_numpy(kept).to(x.device)
    scale = 0.0 if p == 1.0 else _round_scalar(1.0 / (1.0 - p))
    value = (x * mask).mul_(scale)
    mode.put_on_grid(plan, value)
    return value, mask


def _refused(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    why, remedy = refusal(plan.name) or ("it is not supported", "")
    raise UnsupportedOperation(plan.full_name, mode.tracker.current(), why, remedy)
