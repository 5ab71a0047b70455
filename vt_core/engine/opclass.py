"""Which treatment each ATen operation gets: exact, canonical, inexact, random or refused.

An operation that is listed nowhere is inexact: that is the safe side. The members of ``EXACT`` are not assumed:
``tests/engine/test_exact_ops.py`` compares each with a correctly rounded reference on the device at hand.
Names are those of the overload packet, without the trailing underscore of the in-place form.
"""

from __future__ import annotations

from enum import StrEnum

from vt_core.numerics import OpClass


class Treatment(StrEnum):
    """How the engine handles an operation (DESIGN: one dispatch mode, any model)."""

    VIEW = "view"  # computes nothing, shares storage
    CONSTANT = "constant"  # a Python number or list that becomes a tensor
    EXACT = "exact"
    CANONICAL = "canonical"
    UPDATE = "update"  # one step of an optimizer for one parameter, see ``updates``
    INEXACT = "inexact"
    RANDOM = "random"
    REFUSED = "refused"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Every result is a copy of an input element or a constant, or a comparison: no arithmetic at all.
SELECTION = _names("""
    clone copy contiguous _to_copy lift_fresh_copy empty empty_like empty_strided new_empty
    new_empty_strided zeros zeros_like new_zeros zero ones ones_like new_ones full full_like new_full fill
    scalar_tensor arange eye tril triu tril_indices triu_indices cat stack index index_select gather take
    scatter index_copy index_fill masked_fill masked_scatter masked_select where select_scatter slice_scatter
    diagonal_scatter as_strided_scatter repeat flip roll constant_pad_nd reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad1d replication_pad2d replication_pad3d embedding select_backward
    slice_backward diagonal_backward im2col pixel_shuffle pixel_unshuffle channel_shuffle nonzero
    nonzero_static argmax argmin max min amax amin aminmax maximum minimum fmax fmin clamp
    clamp_min clamp_max relu relu6 hardtanh hardtanh_backward threshold threshold_backward max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d eq ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_and logical_or logical_xor
    logical_not bitwise_and bitwise_or bitwise_xor bitwise_not any all equal is_nonzero _local_scalar_dense
    searchsorted bucketize unique_dim _unique2 unique_consecutive bincount numel set resize
    _unsafe_index _unsafe_masked_index unfold repeat_interleave signbit sign sgn abs neg floor ceil trunc round
    _assert_async _assert_tensor_metadata record_stream real copysign heaviside
    _reshape_alias_copy block_diag
""")

# Exact values, but where equal elements go is left to the device, and gradients follow them: by a stable sort here.
TIE_ORDER = _names("sort argsort topk")

# One correctly rounded IEEE 754 operation an element.
ARITHMETIC = _names("add sub rsub mul div true_divide reciprocal leaky_relu leaky_relu_backward")

EXACT = SELECTION | ARITHMETIC | TIE_ORDER

# In-place members of these cannot leave the grid once their arguments are on it, so no rounding pass is needed.
# Not `neg`: it makes -0, and state holds +0 only.
GRID_PRESERVING_IN_PLACE = _names("zero relu abs resize set sign sgn")

# Views that their schema does not call so: the outputs share the input's storage.
UNMARKED_VIEWS = _names("""
    detach alias _unsafe_view unsafe_split unsafe_split_with_sizes squeeze unsqueeze t transpose swapaxes swapdims
    as_strided
""")

# Copies without arithmetic that a device makes or leaves out by memory layout: not in the trace.
LAYOUT = _names("clone contiguous")

CANONICAL = _names("sqrt rsqrt square pow lerp addcmul addcdiv native_dropout_backward")

# The engine's own operations, by full name.
UPDATES = _names("vt.sgd_.default vt.adam_.default")

RANDOM = _names("""
    native_dropout bernoulli rand rand_like uniform randn randn_like normal normal_functional randint randint_like
    random randperm multinomial exponential
""")

_CONTRACTION = _names("""
    mm addmm bmm baddbmm addbmm mv addmv dot vdot addr matmul linear linear_backward convolution convolution_backward
    convolution_overrideable convolution_backward_overrideable _convolution slow_conv2d_forward thnn_conv2d
    _trilinear _cdist_forward _cdist_backward _pdist_forward bilinear
""")
_REDUCTION = _names("""
    sum mean var std var_mean std_mean prod norm linalg_vector_norm cumsum cumprod nansum nanmean logsumexp
    logcumsumexp native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward
    _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update
    _batch_norm_with_update_functional batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward
    native_group_norm native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax
    _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax nll_loss_forward
    nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss huber_loss
    l1_loss binary_cross_entropy binary_cross_entropy_backward avg_pool2d avg_pool2d_backward avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d max_pool2d_with_indices_backward
    embedding_dense_backward index_add scatter_add scatter_reduce index_reduce index_put col2im trace
""")
_TRANSCENDENTAL = _names("""
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid
    erf erfc erfinv gelu gelu_backward silu silu_backward mish mish_backward softplus softplus_backward elu
    elu_backward celu selu tanh_backward sigmoid_backward log_sigmoid_forward log_sigmoid_backward logit
    logit_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward logaddexp logaddexp2 hypot sinc
    i0 special_ndtri special_log_ndtr xlogy
""")

_FUSED_RNN = "its sequence of operations differs between devices"
_ATTENTION = "a fused attention kernel has no form that is equal on all devices"
_FACTORISATION = "the factors are not unique, so two honest machines may differ by far more than rounding"
_LOW = "it computes below the compute precision"
_USE_CELLS = "Pass padded tensors to nn.LSTM and nn.GRU, not packed sequences: the engine gives those a common form."
_USE_SDPA = "Call torch.nn.functional.scaled_dot_product_attention: the engine gives it a common form."
_GIVE_START = "If it is only used for initialisation, choose another initialisation (orthogonal_ needs qr)."
_USE_COMPUTE = "Keep everything in the compute precision; the engine takes care of the grid."
_SINGLE = "Pass foreach=False and fused=False."

# op -> (why, remedy)
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        _names("_cudnn_rnn mkldnn_rnn_layer mkldnn_rnn_layer_backward miopen_rnn _thnn_fused_lstm_cell "
               "_thnn_fused_gru_cell _cudnn_rnn_backward"),
        (_FUSED_RNN, _USE_CELLS),
    ),
    **dict.fromkeys(
        _names("_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
               "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
               "_flash_attention_forward _efficient_attention_forward _native_multi_head_attention "
               "_transformer_encoder_layer_fwd _scaled_dot_product_fused_attention_overrideable"),
        (_ATTENTION, _USE_SDPA),
    ),
    **dict.fromkeys(
        _names("linalg_qr linalg_svd _linalg_svd linalg_eigh _linalg_eigh linalg_eig geqrf svd "
               "linalg_householder_product"),
        (_FACTORISATION, _GIVE_START),
    ),
    **dict.fromkeys(
        _names("_scaled_mm _int_mm quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine_cachemask "
               "_amp_foreach_non_finite_check_and_unscale _amp_update_scale _dyn_quant_matmul_4bit"),
        (_LOW, _USE_COMPUTE),
    ),
    **dict.fromkeys(
        _names("poisson binomial geometric cauchy log_normal _sample_dirichlet _standard_gamma rrelu_with_noise "
               "_fused_dropout fractional_max_pool2d"),
        ("it draws from the device's own generator and has no counter-based form here",
         "Build it from torch.rand or torch.bernoulli."),
    ),
}  # fmt: skip
REFUSED_PREFIXES: tuple[tuple[str, str, str], ...] = (
    ("_foreach_", "multi-tensor kernels change the sequence of operations", _SINGLE),
    ("_fused_ada", "fused optimizers change the sequence of operations", _SINGLE),
    ("_fused_sgd", "fused optimizers change the sequence of operations", _SINGLE),
    ("_fft_", "complex results are not supported", "Use a convolution or a matrix product."),
    ("_sparse", "sparse tensors are not supported", "Pass sparse=False."),
)

# Operations that write to arguments which their schema does not mark as written: (positions, names).
SILENT_MUTATIONS: dict[str, tuple[tuple[int, str], ...]] = {
    "native_batch_norm": ((3, "running_mean"), (4, "running_var")),
    "cudnn_batch_norm": ((3, "running_mean"), (4, "running_var")),
    "miopen_batch_norm": ((3, "running_mean"), (4, "running_var")),
}


def base_name(packet: str) -> str:
    """Return the name without the in-place underscore ('add_' -> 'add'), keeping leading ones."""
    return packet[:-1] if packet.endswith("_") and not packet.endswith("__") else packet


def refusal(name: str) -> tuple[str, str] | None:
    """Return (why, remedy) if the operation is refused, else None."""
    if name in REFUSED:
        return REFUSED[name]
    for prefix, why, remedy in REFUSED_PREFIXES:
        if name.startswith(prefix):
            return why, remedy
    return None


def tolerance_class(name: str) -> OpClass:
    """Return the class of the tolerance policy for an inexact operation."""
    if name in _CONTRACTION:
        return OpClass.CONTRACTION
    if name in _REDUCTION:
        return OpClass.REDUCTION
    if name in _TRANSCENDENTAL:
        return OpClass.TRANSCENDENTAL
    return OpClass.OTHER


def treatment_of(name: str) -> Treatment:
    """Return the treatment of an operation by name; arguments may still change it (``add`` with alpha)."""
    if refusal(name) is not None:
        return Treatment.REFUSED
    if name in RANDOM:
        return Treatment.RANDOM
    if name == "lift_fresh":
        return Treatment.CONSTANT
    if name in CANONICAL:
        return Treatment.CANONICAL
    if name in EXACT:
        return Treatment.EXACT
    return Treatment.INEXACT
