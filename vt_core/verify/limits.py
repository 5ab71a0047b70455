"""What an auditor accepts at all: its own limits, chosen by nobody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vt_core.errors import SpecError
from vt_core.evidence.keys import VerifierKey, read_verifier_key
from vt_core.evidence.signatures import PartyKeys
from vt_core.numerics import DEFAULT, TolerancePolicy
from vt_core.verify.bias import HONEST_RATE


@dataclass(frozen=True)
class AuditorLimits:
    """Limits of an auditor.

    ``policy``: widest tolerance accepted for each op class and compute dtype. ``honest_rate``: share of log
    entries on which honest machines may disagree. ``exceeded_within``: a log entry that misses the interval by at
    most this many tolerances is ``tolerance_exceeded`` (recalibrate), farther is ``log_implausible`` (fraud).
    ``keys``: the parties' public keys; with them the run must be signed. ``libraries``: accepted versions by name,
    each a version or the beginning of one (``2.13`` accepts 2.13.1); what is not named is not limited.
    ``min_sample``: fewest segments to replay.
    """

    policy: Mapping[str, TolerancePolicy]
    honest_rate: float = HONEST_RATE
    exceeded_within: float = 64.0
    keys: PartyKeys = field(default_factory=PartyKeys)
    libraries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_sample: int = 1

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
                policies[dtype] = policies[dtype].changed(classes)
            except (AttributeError, TypeError, ValueError, KeyError, SpecError) as error:
                raise SpecError(f"audit.limits.policy.{dtype}: {error}") from error
        rate = given.pop("honest_rate", HONEST_RATE)
        within = given.pop("exceeded_within", 64.0)
        keys = PartyKeys(_key(given.pop("trainer_key", None), "trainer"), _key(given.pop("client_key", None), "client"))
        libraries = _libraries(given.pop("libraries", None))
        least = given.pop("min_sample", None)
        if given:
            raise SpecError(f"unknown parameter in section 'audit.limits': {', '.join(given)}")
        if not isinstance(rate, (int, float)) or not 0 < rate < 0.5:
            raise SpecError("audit.limits.honest_rate must lie between 0 and 0.5")
        if not isinstance(within, (int, float)) or isinstance(within, bool) or not within >= 1:
            raise SpecError("audit.limits.exceeded_within must be at least 1")
        if least is not None and (type(least) is not int or least < 1):
            raise SpecError("audit.limits.min_sample must be a count of at least 1")
        return AuditorLimits(policies, float(rate), float(within), keys, libraries, least or 1)

    def refused_libraries(self, versions: Mapping[str, str]) -> list[str]:
        """Return the limited libraries whose version in ``versions`` is not accepted or not there, sorted."""
        return sorted(
            name
            for name, accepted in self.libraries.items()
            if not any(_begins(versions.get(name, ""), version) for version in accepted)
        )

    def check_sample(self, chosen: int, total: int) -> None:
        """Refuse a choice of fewer segments than this auditor's policy wants. Raises SpecError."""
        if chosen < min(self.min_sample, total):
            raise SpecError(
                f"audit.limits.min_sample asks for at least {min(self.min_sample, total)} segments, not {chosen}: "
                f"choose more with --segments"
            )


def portable_limits(section: Mapping[str, Any] | None, each: bool = False) -> dict[str, Any] | None:
    """Return ``audit.limits`` for a worker elsewhere: keys as text instead of paths. Raises SpecError.

    With ``each``, for a worker that replays one segment of many: the least sample is the whole audit's business.
    """
    if section is None:
        return None
    portable = dict(section)
    for name in ("trainer_key", "client_key"):
        key = _key(portable.get(name), name.removesuffix("_key"))
        if key is not None:
            portable[name] = key.text
    if each:
        portable.pop("min_sample", None)
    return portable


def _key(given: Any, party: str) -> VerifierKey | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise SpecError(f"audit.limits.{party}_key must be the path or the text of a public key")
    try:
        return read_verifier_key(given)
    except SpecError as error:
        raise SpecError(f"audit.limits.{party}_key: {error}") from error


def _libraries(given: Any) -> dict[str, tuple[str, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SpecError("audit.limits.libraries must map names to lists of accepted versions")
    accepted: dict[str, tuple[str, ...]] = {}
    for name, versions in given.items():
        if not isinstance(versions, list) or not versions or not all(isinstance(v, str) and v for v in versions):
            raise SpecError(f"audit.limits.libraries.{name} must be a list of versions in quotes, as in ['2.13']")
        accepted[str(name)] = tuple(versions)
    return accepted


def _begins(version: str, accepted: str) -> bool:
    return version == accepted or version.startswith(accepted.rstrip(".") + ".")
