"""All signatures on a run: what is there must be about this run, and a known key must have made it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.signed import (
    CLIENT,
    STRANGER,
    TRAINER,
    leaf,
    make_commitments,
    make_records,
    make_seal,
    make_spec,
)

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.agreement import read_spec_file, sign_spec, with_signature
from vt_core.evidence.attest import IN_TOTO, make_statement, parse_envelope, seal_payload
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.judgement import VERDICT_PREDICATE, open_verdict, sign_verdict
from vt_core.evidence.model import MODEL_FILES, MODEL_PREDICATE, STATE_ALGORITHM, parse_model
from vt_core.evidence.note import sign_note
from vt_core.evidence.outline import parse_outline
from vt_core.evidence.records import Commitments
from vt_core.evidence.signatures import (
    AGREEMENT,
    MODEL,
    NOTE,
    PartyKeys,
    checkpoint_of,
    open_evidence,
    require_signed,
    sign_seal,
)

RUN = make_commitments()
OTHER = make_commitments("other")
LONGER = make_commitments(steps=14)
BOTH = PartyKeys(TRAINER.verifier, CLIENT.verifier)
SEAL = make_seal("run", make_spec(10), make_records("run", make_spec(10), 10))


def changed(**fields: Any) -> Commitments:
    return dataclasses.replace(RUN, **fields)


def test_a_signed_run():
    found = open_evidence(RUN, BOTH)
    assert found.signatures.agreement == (CLIENT.keyid, TRAINER.keyid)
    assert found.signatures.note == found.signatures.model == (TRAINER.keyid,)
    assert set(found.signatures.checked) == {CLIENT.keyid, TRAINER.keyid} and found.signatures.missing == ()
    assert found.seal is not None and found.seal.root == SEAL.root
    require_signed(found.signatures, BOTH, sealed=True)


def test_signing_again_gives_the_same_bytes():
    records = make_records("run", make_spec(10), 10)
    assert sign_seal(records, SEAL, TRAINER) == (RUN.note, RUN.model)


BROKEN: dict[str, tuple[Commitments, str]] = {
    "an agreement over another spec": (changed(agreement=LONGER.agreement), "spec_mismatch"),
    "an agreement that the client did not sign": (
        changed(agreement=sign_spec(RUN.spec or b"", [TRAINER])), "signature_invalid",
    ),
    "an agreement that the trainer did not sign": (
        changed(agreement=sign_spec(RUN.spec or b"", [CLIENT, STRANGER])), "signature_invalid",
    ),
    "an agreement over the spec of another purpose": (
        changed(agreement=seal_payload(RUN.spec or b"", IN_TOTO, [CLIENT, TRAINER])), "evidence_malformed",
    ),
    "an agreement that is none": (changed(agreement=RUN.spec), "evidence_malformed"),
    "the note of another run": (changed(note=OTHER.note), "chain_broken"),
    "the note of a longer run": (changed(note=LONGER.note), "chain_broken"),
    "a note by a stranger": (changed(note=make_commitments(key=STRANGER).note), "signature_invalid"),
    "a note that is none": (changed(note=b"verified\n"), "evidence_malformed"),
    "a signed text that is no checkpoint": (changed(note=sign_note("verified\n", [TRAINER])), "evidence_malformed"),
    "the model of another run": (changed(model=OTHER.model), "chain_broken"),
    "the model of a longer run": (changed(model=LONGER.model), "chain_broken"),
    "a model by a stranger": (changed(model=make_commitments(key=STRANGER).model), "signature_invalid"),
    "a model that is none": (changed(model=b"{}"), "evidence_malformed"),
    "the agreement for the model": (changed(model=RUN.agreement), "evidence_malformed"),
    "a note without its seal": (changed(seal=None, model=None), "chain_broken"),
    "a model without its seal": (changed(seal=None, note=None), "chain_broken"),
    "note and model of another run": (changed(note=OTHER.note, model=OTHER.model), "chain_broken"),
    "a segment of another run": (changed(segments=[*RUN.segments[:-1], OTHER.segments[-1]]), "chain_broken"),
    "no spec": (changed(spec=None), "artifact_missing"),
    "another spec": (changed(spec=make_spec(10, seed="1")), "spec_mismatch"),
    "the last segment left out": (changed(segments=RUN.segments[:-1]), "artifact_missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_found(name: str):
    commitments, reason = BROKEN[name]
    with pytest.raises(EvidenceError) as found:
        open_evidence(commitments, BOTH)
    assert found.value.reason == reason


@pytest.mark.parametrize("name", [n for n, (_, r) in BROKEN.items() if r != "signature_invalid"])
def test_and_without_any_key(name: str):
    commitments, reason = BROKEN[name]
    with pytest.raises(EvidenceError) as found:
        open_evidence(commitments, PartyKeys())
    assert found.value.reason == reason


def test_a_wholly_forged_run_is_found_by_the_key_alone():
    """Somebody who can write to the store replaces everything, in order: only the signatures tell."""
    forged = make_commitments(key=STRANGER)
    forged = dataclasses.replace(forged, agreement=sign_spec(forged.spec or b"", [STRANGER]))
    open_evidence(forged, PartyKeys())
    for keys in (PartyKeys(TRAINER.verifier), PartyKeys(None, CLIENT.verifier)):
        with pytest.raises(EvidenceError) as found:
            open_evidence(forged, keys)
        assert found.value.reason == "signature_invalid"


@pytest.mark.parametrize(
    ("gone", "keys", "named"),
    [
        ({"note": None, "model": None}, PartyKeys(TRAINER.verifier), NOTE),
        ({"model": None}, PartyKeys(TRAINER.verifier), MODEL),
        ({"agreement": None}, PartyKeys(TRAINER.verifier), AGREEMENT),
        ({"agreement": None}, PartyKeys(None, CLIENT.verifier), AGREEMENT),
    ],
)
def test_signatures_that_were_taken_away(gone: dict[str, None], keys: PartyKeys, named: str):
    found = open_evidence(changed(**gone), keys)
    assert named in found.signatures.missing
    with pytest.raises(EvidenceError, match=named) as error:
        require_signed(found.signatures, keys, sealed=True)
    assert error.value.reason == "signature_invalid"
    require_signed(found.signatures, PartyKeys(), sealed=True)


def test_an_unsealed_run_needs_only_the_agreement():
    going = changed(seal=None, note=None, model=None, segments=RUN.segments[:2])
    found = open_evidence(going, BOTH)
    require_signed(found.signatures, BOTH, sealed=False)


@pytest.mark.parametrize("field", ["run_id", "size", "root", "seal", "spec"])
def test_each_line_of_the_checkpoint_counts(field: str):
    checkpoint = checkpoint_of(SEAL)
    wrong = {"run_id": "x", "size": checkpoint.size + 1}.get(field, "0" * 64)
    note = sign_note(dataclasses.replace(checkpoint, **{field: wrong}).text(), [TRAINER])
    with pytest.raises(EvidenceError, match=f"another {field}") as found:
        open_evidence(changed(note=note), BOTH)
    assert found.value.reason == "chain_broken"


def test_what_the_model_attestation_says():
    signed, said = parse_model(RUN.model or b"")
    assert signed.signers == (TRAINER.keyid,) and set(said.files) == set(MODEL_FILES)
    assert said.state == leaf("run", 10)["state"].hex() == SEAL.state and said.step == 10
    assert said.coverage == {"segments": 4, "steps": 10, "leaves": 11}


def model_statement() -> dict[str, Any]:
    plain: dict[str, Any] = loads_strict(parse_envelope(RUN.model or b"", IN_TOTO, "it").payload, "it")
    return plain


BAD_MODELS: dict[str, Any] = {
    "one file less": lambda p: p["subject"].pop(0),
    "one file more": lambda p: p["subject"].append({"name": "more", "digest": {"sha256": "0" * 64}}),
    "no state root": lambda p: p["subject"].pop(2),
    "a state root of another kind": lambda p: p["subject"][2].__setitem__("digest", {"sha256": "0" * 64}),
    "a digest in capitals": lambda p: p["subject"][0].__setitem__("digest", {"sha256": "A" * 64}),
    "two digests of a file": lambda p: p["subject"][0]["digest"].__setitem__("sha512", "0" * 128),
    "no root": lambda p: p["predicate"].pop("root"),
    "one field more": lambda p: p["predicate"].__setitem__("more", 1),
    "a step of another form": lambda p: p["predicate"].__setitem__("step", "10"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MODELS)
def test_what_is_no_model_attestation(name: str):
    plain = model_statement()
    BAD_MODELS[name](plain)
    with pytest.raises(EvidenceError) as found:
        parse_model(seal_payload(dumps(plain), IN_TOTO, [TRAINER]))
    assert found.value.reason == "evidence_malformed"


def test_a_model_attestation_with_another_file_is_refused():
    plain = model_statement()
    digests = {row["name"]: dict(row["digest"]) for row in plain["subject"]}
    digests[MODEL_FILES[0]] = {"sha256": "0" * 64}
    assert STATE_ALGORITHM in digests["state"]
    model = seal_payload(make_statement(digests, MODEL_PREDICATE, plain["predicate"]), IN_TOTO, [TRAINER])
    parse_model(model)
    with pytest.raises(EvidenceError) as found:
        open_evidence(changed(model=model), BOTH)
    assert found.value.reason == "chain_broken"


def test_a_spec_file_signed_bare_and_with_one_more_signature():
    spec = make_spec(10)
    bare = read_spec_file(spec + b"\n", "spec.json")
    assert bare.signers == () and bare.outline == parse_outline(spec)
    with pytest.raises(EvidenceError) as found:
        bare.verify(CLIENT.verifier)
    assert found.value.reason == "signature_invalid"
    once = read_spec_file(with_signature(bare, CLIENT), "spec.json")
    twice = read_spec_file(with_signature(once, TRAINER), "spec.json")
    assert twice.signers == (CLIENT.keyid, TRAINER.keyid) and twice.spec == spec and twice.envelope == RUN.agreement
    twice.verify(CLIENT.verifier)
    with pytest.raises(SpecError, match="already"):
        with_signature(twice, CLIENT)


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"[]", make_spec(10) + b"\n\n", b" " + make_spec(10), b'{"payloadType":""}']
)
def test_what_is_no_spec_file(data: bytes):
    with pytest.raises(EvidenceError) as found:
        read_spec_file(data, "spec.json")
    assert found.value.reason == "evidence_malformed"


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "vt-run-spec/0"}, {"steps": 0}, {"steps": True}, {"steps": "10"}, {"segment_steps": 1_000_001},
        {"steps": 5_000_000}, {"commit_interval": -1}, {"reference": None},
    ],
)  # fmt: skip
def test_what_is_no_spec(fields: dict[str, Any]):
    plain = loads_strict(make_spec(10), "it") | fields
    with pytest.raises(EvidenceError) as found:
        parse_outline(dumps(plain))
    assert found.value.reason == "evidence_malformed"


@pytest.mark.parametrize(("step", "segment"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (10, 3)])
def test_the_segment_of_a_step(step: int, segment: int):
    outline = parse_outline(make_spec(10))
    assert outline.segment_of(step) == segment
    first, last = outline.ranges()[segment]
    assert first <= step <= last


def test_a_signed_verdict_is_that_of_one_name_and_one_content():
    data = dumps({"verdict": "verified", "nonce": "1"})
    envelope = sign_verdict("a.json", data, [TRAINER])
    signed, said = open_verdict(envelope, "a.json", data)
    signed.verify(TRAINER.verifier, "it")
    assert said == {"verdict": "verified", "nonce": "1"}
    for name, other in (("b.json", data), ("a.json", data.replace(b"1", b"2"))):
        with pytest.raises(EvidenceError) as found:
            open_verdict(envelope, name, other)
        assert found.value.reason == "chain_broken"
    lying = make_statement({"a.json": {"sha256": sha256_bytes(data)}}, VERDICT_PREDICATE, {"verdict": "rejected"})
    with pytest.raises(EvidenceError) as found:
        open_verdict(seal_payload(lying, IN_TOTO, [TRAINER]), "a.json", data)
    assert found.value.reason == "chain_broken"
