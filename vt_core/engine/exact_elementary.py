"""``functions: exact`` for elementary functions, activations and their gradients: no rounding log.

Each is a fixed sequence of correctly rounded operations, see ``vt_core.numerics.elementary``. Operations on integers,
and arguments that PyTorch refuses, have no form. Tensors are float64 or float32, results have their dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics import _jit_elementary as _base
from vt_core.numerics import _jit_elementary_activations as _activations
from vt_core.numerics import _jit_elementary_erf as _erf
from vt_core.numerics import _jit_elementary_power as _power
from vt_core.numerics import _jit_elementary_trigonometric as _angles
from vt_core.numerics.elementary import DTYPES, apply

_Core = Callable[..., Any]
_GRAD, _SELF = "grad_output", "self"


def _of(core: _Core, names: tuple[str, ...], arguments: dict[str, Any], *numbers: float) -> Tensor | None:
    """Apply a core to the tensors of these names; None if not of one device and floating dtype, or not to broadcast."""
    tensors = [arguments[name] for name in names]
    if not all(isinstance(t, Tensor) and t.dtype in DTYPES and t.layout is torch.strided for t in tensors):
        return None
    if len({(t.device, t.dtype) for t in tensors}) > 1:
        return None
    try:
        np.broadcast_shapes(*(t.shape for t in tensors))
    except ValueError:
        return None  # PyTorch says it better
    return apply(core, *tensors, numbers=numbers)


def _form(core: _Core, *names: str, numbers: tuple[float, ...] = ()) -> Form:
    return lambda arguments: _of(core, names, arguments, *numbers)


def _angle(core: _Core, arguments: dict[str, Any]) -> Tensor | None:
    """Sine, cosine or tangent; no form beyond ``LARGEST_ANGLE``."""
    x = arguments[_SELF]
    if x.dtype not in DTYPES or x.layout is not torch.strided:
        return None
    bounds = torch.stack(torch.aminmax(x.detach())) if x.numel() else x.detach()
    if bool((bounds.abs() <= _angles.LARGEST_ANGLE).all()):  # no NaN and no infinity either
        return apply(core, x)
    size = x.detach().abs()
    return None if bool(((size > _angles.LARGEST_ANGLE) & (size < torch.inf)).any()) else apply(core, x)


def _gelu(arguments: dict[str, Any]) -> Tensor | None:
    cores = {"none": _erf.gelu, "tanh": _activations.gelu_tanh}
    core = cores.get(arguments.get("approximate", "none"))
    return None if core is None else _of(core, (_SELF,), arguments)


def _gelu_backward(arguments: dict[str, Any]) -> Tensor | None:
    cores = {"none": _erf.gelu_backward, "tanh": _activations.gelu_tanh_backward}
    core = cores.get(arguments.get("approximate", "none"))
    return None if core is None else _of(core, (_GRAD, _SELF), arguments)


def _softplus(core: _Core, names: tuple[str, ...], arguments: dict[str, Any]) -> Tensor | None:
    return _of(core, names, arguments, float(arguments.get("beta", 1)), float(arguments.get("threshold", 20)))


def _elu(arguments: dict[str, Any]) -> Tensor | None:
    scale = float(arguments.get("scale", 1))
    negative = float(arguments.get("alpha", 1)) * scale
    return _of(_activations.elu, (_SELF,), arguments, negative, scale, float(arguments.get("input_scale", 1)))


def _elu_backward(arguments: dict[str, Any]) -> Tensor | None:
    alpha, scale, inner = (float(arguments[name]) for name in ("alpha", "scale", "input_scale"))
    of_result = arguments["is_result"]
    if of_result and alpha < 0:
        return None  # an error
    core = _activations.elu_backward_of_result if of_result else _activations.elu_backward
    return _of(core, (_GRAD, "self_or_result"), arguments, alpha * scale, scale, inner)


def _celu(arguments: dict[str, Any]) -> Tensor | None:
    alpha = float(arguments.get("alpha", 1))
    return None if alpha == 0 else _of(_activations.elu, (_SELF,), arguments, alpha, 1.0, 1.0 / alpha)


def _selu(arguments: dict[str, Any]) -> Tensor | None:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return _of(_activations.elu, (_SELF,), arguments, alpha * scale, scale, 1.0)


def _log_sigmoid_forward(arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Output and exp(-|x|), the buffer of PyTorch's CPU kernel; the backward form does without."""
    output = _of(_activations.log_sigmoid, (_SELF,), arguments)
    buffer = _of(_activations.exp_of_minus_magnitude, (_SELF,), arguments)
    return None if output is None or buffer is None else (output, buffer)


def _logit(core: _Core, names: tuple[str, ...], arguments: dict[str, Any]) -> Tensor | None:
    eps = arguments.get("eps")
    if eps is None or eps < 0:
        return _of(core, names, arguments, -torch.inf, torch.inf)
    return None if eps > 0.5 else _of(core, names, arguments, float(eps), 1.0 - float(eps))


def pow_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.pow`` with these arguments; None if only PyTorch's own form fits them.

    Within 2**-47 of itself. Not in ``FORMS``: the exponents of ``canonical`` have a better one.
    """
    base, exponent = arguments[_SELF], arguments["exponent"]
    if isinstance(base, Tensor) and isinstance(exponent, Tensor):
        return _of(_power.power, (_SELF, "exponent"), arguments)
    names, number = ((_SELF,), exponent) if isinstance(base, Tensor) else (("exponent",), base)
    if isinstance(number, complex):
        return None
    core = _power.power if isinstance(base, Tensor) else _power.power_of_number
    return _of(core, names, arguments, float(number))


_OF_ONE: dict[str, _Core] = {
    "exp": _base.exp, "exp2": _base.exp2, "expm1": _base.expm1, "log": _base.log, "log2": _base.log2,
    "log10": _base.log10, "log1p": _base.log1p, "erf": _erf.erf, "erfc": _erf.erfc, "erfinv": _erf.erfinv,
    "tanh": _activations.tanh, "sigmoid": _activations.sigmoid, "silu": _activations.silu, "mish": _activations.mish,
    "atan": _angles.atan, "asin": _angles.asin, "acos": _angles.acos, "sinh": _angles.sinh, "cosh": _angles.cosh,
    "asinh": _angles.asinh, "acosh": _angles.acosh, "atanh": _angles.atanh,
}  # fmt: skip

FORMS: dict[str, Form] = {
    **{name: _form(core, _SELF) for name, core in _OF_ONE.items()},
    **{name: partial(_angle, core) for name, core in
       (("sin", _angles.sin), ("cos", _angles.cos), ("tan", _angles.tan))},
    "atan2": _form(_angles.atan2, _SELF, "other"),
    "hypot": _form(_angles.hypot, _SELF, "other"),
    "logaddexp": _form(_base.logaddexp, _SELF, "other"),
    "logaddexp2": _form(_base.logaddexp2, _SELF, "other"),
    "logit": partial(_logit, _base.logit, (_SELF,)),
    "logit_backward": partial(_logit, _activations.logit_backward, (_GRAD, _SELF)),
    "tanh_backward": _form(_activations.tanh_backward, _GRAD, "output"),
    "sigmoid_backward": _form(_activations.sigmoid_backward, _GRAD, "output"),
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu_backward": _form(_activations.silu_backward, _GRAD, _SELF),
    "mish_backward": _form(_activations.mish_backward, _GRAD, _SELF),
    "softplus": partial(_softplus, _activations.softplus, (_SELF,)),
    "softplus_backward": partial(_softplus, _activations.softplus_backward, (_GRAD, _SELF)),
    "elu": _elu,
    "elu_backward": _elu_backward,
    "celu": _celu,
    "selu": _selu,
    "log_sigmoid_forward": _log_sigmoid_forward,
    "log_sigmoid_backward": _form(_activations.log_sigmoid_backward, _GRAD, _SELF),
    "hardsigmoid": _form(_activations.hardsigmoid, _SELF, numbers=(6.0,)),
    "hardsigmoid_backward": _form(_activations.hardsigmoid_backward, _GRAD, _SELF, numbers=(6.0,)),
    "hardswish": _form(_activations.hardswish, _SELF, numbers=(6.0,)),
    "hardswish_backward": _form(_activations.hardswish_backward, _GRAD, _SELF, numbers=(3.0,)),
}  # fmt: skip
FLOAT32 = frozenset({*FORMS, "pow"})
