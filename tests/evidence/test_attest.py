"""DSSE envelopes and in-toto Statements: the published vector, and what must not be taken for one."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from support.signed import CLIENT, STRANGER, TRAINER

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.attest import (
    IN_TOTO,
    STATEMENT,
    add_signature,
    make_statement,
    parse_envelope,
    parse_statement,
    seal_payload,
)
from vt_core.evidence.canonical import dumps, loads_strict

# The test vector of DSSE's protocol.md (v1.0.2): ECDSA P-256 with SHA-256, deterministic by RFC 6979, raw r || s.
VECTOR_TYPE, VECTOR_BODY = "http://example.com/HelloWorld", b"hello world"
VECTOR_PAE = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
VECTOR_X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
VECTOR_Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
VECTOR_SIGNATURE = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="

TYPE = "application/vnd.verifiable-training.test+json"
ENVELOPE = seal_payload(b'{"a":1}', TYPE, [TRAINER, CLIENT])


def changed(**fields: Any) -> bytes:
    return dumps({**loads_strict(ENVELOPE, "it"), **fields})


def rows(data: bytes = ENVELOPE) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = loads_strict(data, "it")["signatures"]
    return found


def test_the_published_vector():
    """The library in use computes DSSE's PAE and accepts the published signature."""
    raw = base64.b64decode(VECTOR_SIGNATURE)
    r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    public = ec.EllipticCurvePublicNumbers(VECTOR_X, VECTOR_Y, ec.SECP256R1()).public_key()
    der = base64.b64encode(encode_dss_signature(r, s)).decode()
    data = dumps(
        {
            "payload": base64.b64encode(VECTOR_BODY).decode(),
            "payloadType": VECTOR_TYPE,
            "signatures": [{"keyid": "66301bbf", "sig": der}],
        }
    )
    signed = parse_envelope(data, VECTOR_TYPE, "the vector")
    envelope: Envelope = signed._envelope
    assert envelope.pae() == VECTOR_PAE and signed.payload == VECTOR_BODY
    envelope.verify([SSlibKey.from_crypto(public, keyid="66301bbf")], 1)


def test_each_signer_and_nobody_else_is_verified():
    signed = parse_envelope(ENVELOPE, TYPE, "it")
    assert signed.payload == b'{"a":1}' and signed.signers == (CLIENT.keyid, TRAINER.keyid)
    signed.verify(CLIENT.verifier, "it")
    signed.verify(TRAINER.verifier, "it")
    with pytest.raises(EvidenceError, match="is not signed by") as found:
        signed.verify(STRANGER.verifier, "it")
    assert found.value.reason == "signature_invalid"


def test_the_order_of_signing_does_not_matter():
    one = seal_payload(b'{"a":1}', TYPE, [TRAINER])
    assert add_signature(parse_envelope(one, TYPE, "it"), CLIENT) == ENVELOPE
    with pytest.raises(SpecError, match="already"):
        add_signature(parse_envelope(ENVELOPE, TYPE, "it"), CLIENT)
    with pytest.raises(SpecError, match="already"):
        seal_payload(b"", TYPE, [CLIENT, CLIENT])
    with pytest.raises(SpecError, match="no key"):
        seal_payload(b"", TYPE, [])


INVALID = {
    "another payload": changed(payload=base64.b64encode(b'{"a":2}').decode()),
    "no payload": changed(payload=""),
    "signatures exchanged": changed(
        signatures=[{"keyid": a["keyid"], "sig": b["sig"]} for a, b in zip(rows(), rows()[::-1], strict=True)]
    ),
    "the signature of a stranger under the name": changed(
        signatures=[{"keyid": TRAINER.keyid, "sig": rows(seal_payload(b'{"a":1}', TYPE, [STRANGER]))[0]["sig"]}]
    ),
    "the bare payload signed, not its PAE": changed(
        signatures=[{"keyid": TRAINER.keyid, "sig": base64.b64encode(TRAINER.sign(b'{"a":1}')).decode()}]
    ),
    "an empty signature": changed(signatures=[{"keyid": TRAINER.keyid, "sig": ""}]),
    "a short signature": changed(signatures=[{"keyid": TRAINER.keyid, "sig": "AAAA"}]),
}


@pytest.mark.parametrize("name", INVALID)
def test_signatures_that_do_not_verify(name: str):
    signed = parse_envelope(INVALID[name], TYPE, "it")
    with pytest.raises(EvidenceError) as found:
        signed.verify(TRAINER.verifier, "it")
    assert found.value.reason == "signature_invalid"


def test_a_signature_does_not_serve_for_another_type():
    moved = changed(payloadType=IN_TOTO)
    with pytest.raises(EvidenceError, match="signature by trainer"):
        parse_envelope(moved, IN_TOTO, "it").verify(TRAINER.verifier, "it")
    with pytest.raises(EvidenceError, match="of type") as found:
        parse_envelope(ENVELOPE, IN_TOTO, "it")
    assert found.value.reason == "evidence_malformed"


MALFORMED = {
    "empty": b"",
    "no object": b"[]",
    "not canonical": ENVELOPE.replace(b'{"payload"', b'{ "payload"'),
    "a newline": ENVELOPE + b"\n",
    "one more field": changed(more=1),
    "no signatures": changed(signatures=[]),
    "signatures of another form": changed(signatures={}),
    "too many signatures": changed(signatures=[{"keyid": f"{i:03}", "sig": ""} for i in range(65)]),
    "no keyid": changed(signatures=[{"sig": "AAAA"}]),
    "a certificate beside the signature": changed(signatures=[rows()[0] | {"cert": "x"}]),
    "a keyid of another type": changed(signatures=[{"keyid": 1, "sig": "AAAA"}]),
    "one key twice": changed(signatures=[rows()[0], rows()[0]]),
    "another order": changed(signatures=rows()[::-1]),
    "a payload of another type": changed(payload=1),
    "url base64": changed(payload=base64.urlsafe_b64encode(b"\xff\xff\xff").decode()),
    "base64 with a newline": changed(payload="eyJhIjoxfQ==\n"),
    "base64 of another spelling": changed(payload="eyJhIjoxfR=="),
    "no base64": changed(payload="!"),
    "a signature that is no base64": changed(signatures=[{"keyid": TRAINER.keyid, "sig": "?"}]),
    "a lone surrogate": changed(signatures=[{"keyid": "x", "sig": "AAAA"}]).replace(b'"x"', b'"\\ud800"'),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_envelope(name: str):
    with pytest.raises(EvidenceError) as found:
        parse_envelope(MALFORMED[name], TYPE, "it")
    assert found.value.reason == "evidence_malformed"


PREDICATE = "https://verifiable-training.example/test/v1"
BODY = make_statement({"a": {"sha256": "00"}, "b": {"sha256": "11"}}, PREDICATE, {"x": 1})


def test_a_statement_survives():
    found = parse_statement(BODY, PREDICATE, "it")
    assert found.subject == {"a": {"sha256": "00"}, "b": {"sha256": "11"}} and found.predicate == {"x": 1}
    assert loads_strict(BODY, "it")["_type"] == STATEMENT


def statement(**fields: Any) -> bytes:
    return dumps({**loads_strict(BODY, "it"), **fields})


BAD_STATEMENTS = {
    "no object": b"1",
    "version 0.1": statement(_type="https://in-toto.io/Statement/v0.1"),
    "another predicate": statement(predicateType=PREDICATE + "1"),
    "no subject": statement(subject=[]),
    "subject of another form": statement(subject={}),
    "a subject without digest": statement(subject=[{"name": "a"}]),
    "a subject with an empty digest": statement(subject=[{"name": "a", "digest": {}}]),
    "a digest of another type": statement(subject=[{"name": "a", "digest": {"sha256": 1}}]),
    "one subject twice": statement(subject=[{"name": "a", "digest": {"sha256": "00"}}] * 2),
    "one more field": statement(more=1),
    "a predicate of another form": statement(predicate=[]),
}


@pytest.mark.parametrize("name", BAD_STATEMENTS)
def test_what_is_no_statement(name: str):
    with pytest.raises(EvidenceError) as found:
        parse_statement(BAD_STATEMENTS[name], PREDICATE, "it")
    assert found.value.reason == "evidence_malformed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries({"payload": JSON, "payloadType": st.just(TYPE), "signatures": JSON}),
)
def test_no_envelope_breaks_the_parser(plain: dict[str, Any]):
    try:
        parse_envelope(dumps(plain), TYPE, "it")
    except EvidenceError as error:
        assert error.reason == "evidence_malformed"


@given(st.integers(0, len(ENVELOPE) - 1), st.integers(1, 255))
def test_no_changed_byte_keeps_the_signature(place: int, flip: int):
    data = bytearray(ENVELOPE)
    data[place] ^= flip
    with pytest.raises(EvidenceError):
        signed = parse_envelope(bytes(data), TYPE, "it")
        signed.verify(TRAINER.verifier, "it")
        signed.verify(CLIENT.verifier, "it")
