"""CPU profiles: other code paths of the real libraries, chosen by environment variables in a fresh process.

Each makes the same machine round differently (other vector width, other blocking, other number of threads), so
that bit-exact replay can be tested against honest divergence without a second machine. The variables are read
when the libraries load: a profile needs a new process, see :func:`environment_for`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from vt_core.errors import SpecError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MARK = "VT_PROFILE"
CHANNELS_LAST = "VT_CHANNELS_LAST"


def _threads(n: int) -> dict[str, str]:
    return {name: str(n) for name in _THREADS}


PROFILES: dict[str, Mapping[str, str]] = {
    "default": {},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "mkl-avx": {"MKL_CBWR": "AVX"},
    "aten-scalar": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-sse": {"DNNL_MAX_CPU_ISA": "SSE41"},
    "threads-1": _threads(1),
    "threads-2": _threads(2),
    "threads-3": _threads(3),
    "threads-4": _threads(4),
    "nhwc": {CHANNELS_LAST: "1"},
    "portable": {
        "MKL_CBWR": "COMPATIBLE",
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        **_threads(1),
    },
}


def environment_for(profile: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that runs under ``profile``; SpecError for an unknown name."""
    if profile not in PROFILES:
        raise SpecError(f"profile {profile!r} is not known; profiles: {', '.join(PROFILES)}")
    every = {name for variables in PROFILES.values() for name in variables}
    kept = {k: v for k, v in (os.environ if base is None else base).items() if k not in every}
    return {**kept, **PROFILES[profile], _MARK: profile}


def current_profile() -> str | None:
    """Return the profile that this process was started under, None if by no profile."""
    return os.environ.get(_MARK)
