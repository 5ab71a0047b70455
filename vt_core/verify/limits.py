"""What an auditor accepts at all: its own limits, chosen by nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, TolerancePolicy
from vt_core.verify.bias import HONEST_RATE


@dataclass(frozen=True)
class AuditorLimits:
    """Limits of an auditor.

    ``policy``: widest tolerance accepted for each op class and compute dtype. ``honest_rate``: share of log
    entries on which honest machines may disagree. ``exceeded_within``: a log entry that misses the interval by at
    most this many tolerances is ``tolerance_exceeded`` (recalibrate), farther is ``log_implausible`` (fraud).
    """

    policy: Mapping[str, TolerancePolicy]
    honest_rate: float = HONEST_RATE
    exceeded_within: float = 64.0

    @staticmethod
    def default() -> AuditorLimits:
        """Return the shipped limits: the default tolerance policy and no more."""
        return AuditorLimits(dict(DEFAULT))

    @staticmethod
    def from_params(section: Mapping[str, Any] | None) -> AuditorLimits:
        """Read the ``audit.limits`` section of the parameters. Raises SpecError naming what is wrong."""
        given = dict(section or {})
        policies = dict(DEFAULT)
        wanted = given.pop("policy", None) or {}
        if not isinstance(wanted, Mapping):
            raise SpecError("audit.limits.policy must map compute dtypes to tolerances")
        for dtype, classes in wanted.items():
            if dtype not in policies:
                raise SpecError(f"audit.limits.policy: {dtype!r} is not a compute dtype; known: {', '.join(policies)}")
            try:
                policies[dtype] = TolerancePolicy.from_json({**policies[dtype].to_json(), **classes})
            except (TypeError, ValueError, KeyError, SpecError) as error:
                raise SpecError(f"audit.limits.policy.{dtype}: {error}") from error
        rate = given.pop("honest_rate", HONEST_RATE)
        within = given.pop("exceeded_within", 64.0)
        if given:
            raise SpecError(f"unknown parameter in section 'audit.limits': {', '.join(given)}")
        if not isinstance(rate, (int, float)) or not 0 < rate < 0.5:
            raise SpecError("audit.limits.honest_rate must lie between 0 and 0.5")
        if not isinstance(within, (int, float)) or isinstance(within, bool) or not within >= 1:
            raise SpecError("audit.limits.exceeded_within must be at least 1")
        return AuditorLimits(policies, float(rate), float(within))
