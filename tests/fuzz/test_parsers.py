"""Whatever the bytes are, every parser of evidence returns or raises EvidenceError, and nothing else."""

from __future__ import annotations

import os

import pytest
from fuzz_targets import Target, parsers_of_documents, targets
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from vt_core.errors import MAX_MESSAGE, EvidenceError
from vt_core.verify.verdict import Reason

EXAMPLES = int(os.environ.get("VT_FUZZ_EXAMPLES", "100"))  # for each target and each of the two kinds of input
NAMES = (
    "canonical", "float", "spec", "outline", "segment", "seal", "chain-spec", "chain-segment", "chain-seal", "leaves",
    "record", "log", "tensors", "scalars", "metrics", "environment", "replay-result", "report", "coverage", "pointer",
    "listing", "envelope", "statement", "agreement", "spec-file", "note", "model", "signatures-note",
    "signatures-model", "verdict-envelope", "fork", "proof", "proof-of-replay", "dispute-message", "dispute-payload",
    "dispute-record", "dispute-step-end", "dispute-witness", "dispute-exhibit",
)  # fmt: skip
# Takes bytes, but not of a document of somebody else's: a digest of them, or something that the caller has made.
NO_PARSERS = {
    "sha256_bytes", "leaf_hash", "node_hash", "verify_inclusion", "sign_spec", "seal_payload", "digest", "widen",
}  # fmt: skip
_FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.fixture(params=NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return targets()[request.param]


def feed(target: Target, data: bytes) -> bool:
    """Tell whether the parser accepts ``data``; fails for any error but a well-formed EvidenceError."""
    try:
        target.parse(data)
    except EvidenceError as error:
        Reason(error.reason)
        assert len(str(error)) <= MAX_MESSAGE
        return False
    return True


def test_every_target_is_tested() -> None:
    assert set(targets()) == set(NAMES)


def test_every_parser_is_a_target() -> None:
    covered = {name for target in targets().values() for name in target.covers}
    found = {name for _, name in parsers_of_documents()}
    assert {"parse_segment", "parse_seal", "loads_strict"} <= found, "the search itself must find parsers"
    assert found - covered - NO_PARSERS == set(), "register them in fuzz_targets.py"


def test_real_documents_are_accepted(target: Target) -> None:
    """Else the mutations would start from something that no parser gets deep into."""
    assert target.seeds and all(feed(target, data) for data in target.seeds)


def test_arbitrary_bytes(target: Target) -> None:
    @_FUZZ
    @given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        feed(target, data)

    check()


def test_mutations_of_real_documents(target: Target) -> None:
    refused = 0

    @_FUZZ
    @given(st.integers(0, (1 << 62) - 1))
    def check(seed: int) -> None:
        nonlocal refused
        refused += not feed(target, target.mutated(seed))

    check()
    # A coverage that shows any verdict, and a record that is shown as it is, refuse little by design.
    assert refused or target.name in ("report", "coverage", "environment"), "the mutations change nothing"
