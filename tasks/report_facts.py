"""A verdict, read with suspicion: a report shows what is there in the right form and says "not available" otherwise.

A verdict may come from a store that others can write to. Nothing here trusts a type, a length or a character, and
nothing raises but for a verdict that is none at all.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError

MISSING = "not available"
RESULTS = ("verified", "rejected", "inconclusive")
_MOST_ROWS = 400
# Characters that a page would not show as they are: controls, and those that turn the direction of writing.
HIDDEN = {*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010)}
HIDDEN |= {*range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)}
_VISIBLE = {c: f"\\u{c:04x}" for c in HIDDEN - {0x0A}}
_ONE_LINE = _VISIBLE | {0x0A: "\\n"}

MEANINGS = {
    "chain_broken": "the committed records do not form one unbroken, sealed chain",
    "artifact_missing": "a committed file is missing from the store",
    "artifact_corrupt": "a file in the store is not the one that was committed",
    "evidence_malformed": "part of the evidence does not parse or contradicts the rest",
    "spec_mismatch": "the evidence was made for another run spec",
    "code_mismatch": "this auditor's copy of the code is not the agreed one",
    "data_mismatch": "this auditor's copy of the data is not the agreed one",
    "policy_too_wide": "the run spec allows wider tolerances than this auditor accepts",
    "trace_mismatch": "the trainer ran another sequence of operations",
    "log_implausible": "the rounding log holds an entry that no honest machine can have made",
    "log_biased": "the rounding log takes the other rounding far more often than honest hardware does",
    "state_mismatch": "the training did not give the weights that were published",
    "tolerance_exceeded": "this auditor's hardware differs by more than the tolerance, so this audit cannot tell",
    "environment_unsupported": "this auditor cannot run the job, so this audit cannot tell",
    "not_sealed": "everything published so far agrees to the bit, but the run is not closed",
    "signature_invalid": "a signature is not valid",
}


def visible(text: str) -> str:
    """Return ``text`` with control characters (but line feeds) and invisible ones spelt out, ``\\u001b`` for example.

    A terminal obeys an escape sequence, whoever wrote it.
    """
    return text.translate(_VISIBLE)


def one_line(value: object, limit: int = 2000) -> str:
    """Return ``value`` as text on one line of at most ``limit`` characters, all of them visible.

    Text from evidence must not begin a line of its own: it could look like one of ours.
    """
    text = str(value)
    return (text if len(text) <= limit else text[: limit - 1] + "…").translate(_ONE_LINE)


def escape(value: object, limit: int = 400) -> str:
    """Return ``value`` as text that is safe in HTML and in quoted attributes, of at most ``limit`` characters.

    Control characters and those that change the direction of writing are spelt out.
    """
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return html.escape(visible(text), quote=True)


def get_map(plain: Any, key: str) -> Mapping[str, Any]:
    """Return the object ``plain[key]``, empty if there is none."""
    value = plain.get(key) if isinstance(plain, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def get_text(plain: Any, key: str) -> str | None:
    """Return the string ``plain[key]``, None if there is none."""
    value = plain.get(key) if isinstance(plain, Mapping) else None
    return value if isinstance(value, str) else None


def get_count(plain: Any, key: str) -> int | None:
    """Return the integer ``plain[key]`` between 0 and 2^53, None if there is none."""
    value = plain.get(key) if isinstance(plain, Mapping) else None
    return value if type(value) is int and 0 <= value <= 2**53 else None


def get_number(plain: Any, key: str) -> float | None:
    """Return ``plain[key]``, a finite number or its decimal or hexadecimal text, None if there is none."""
    value = plain.get(key) if isinstance(plain, Mapping) else None
    try:
        if isinstance(value, str) and len(value) < 100:
            number = float.fromhex(value) if "0x" in value else float(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            number = float(value)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class SegmentFact:
    """One replayed segment: ``result`` is one of RESULTS; ``steps`` are its first and last step, if known."""

    index: int
    result: str
    steps: tuple[int, int] | None
    reason: str | None
    message: str | None
    seconds: float | None


@dataclass(frozen=True)
class ClassFact:
    """Rounding entries of one op class; ``largest`` divergence seen and estimated ``mean``, in tolerances."""

    name: str
    elements: int
    entries: int
    disagreements: int
    largest: float | None
    mean: float | None = None


@dataclass(frozen=True)
class Facts:
    """What a verdict says, in checked form. ``total`` is the number of segments in the run, 0 if unknown."""

    run_id: str
    result: str
    reason: str | None
    message: str
    time: str | None
    replayed: int
    total: int
    chances: tuple[tuple[int, float], ...]
    segments: tuple[SegmentFact, ...]
    classes: tuple[ClassFact, ...]
    divergence: Mapping[str, Any]
    environments: tuple[tuple[str, dict[str, str]], ...]
    plain: Mapping[str, Any]


def read_facts(verdict: Any, run_id: str) -> Facts:
    """Return the facts of a verdict. Raises EvidenceError if it is none of the three verdicts."""
    result = get_text(verdict, "verdict")
    if result not in RESULTS:
        raise EvidenceError("evidence_malformed", f"this is no verdict: it says {str(result)[:60]!r}")
    listed = verdict.get("segments")
    found: dict[int, SegmentFact] = {}
    for one in listed if isinstance(listed, list) else []:
        index, said = get_count(one, "index"), get_text(one, "result")
        if index is not None and said in RESULTS:
            first, last = get_count(one, "first_step"), get_count(one, "last_step")
            steps = None if first is None or last is None else (first, last)
            found[index] = SegmentFact(
                index, said, steps, get_text(one, "reason"), get_text(one, "message"), get_number(one, "seconds")
            )
    coverage, chances = get_map(verdict, "coverage"), get_map(verdict, "detection_probability")
    probabilities = ((bad, get_number(chances, f"{bad}_bad")) for bad in (1, 2, 5))
    return Facts(
        run_id,
        result,
        get_text(verdict, "reason"),
        get_text(verdict, "message") or MISSING,
        get_text(verdict, "time"),
        len(found),
        max(get_count(coverage, "total") or 0, max(found, default=-1) + 1),
        tuple((bad, p) for bad, p in probabilities if p is not None and 0 <= p <= 1),
        tuple(found[i] for i in sorted(found)),
        tuple(_classes(get_map(verdict, "counts"))),
        get_map(verdict, "first_divergence"),
        tuple(_environments(verdict)),
        verdict,
    )


def _classes(counts: Mapping[str, Any]) -> list[ClassFact]:
    rows = []
    for name in sorted(counts)[:_MOST_ROWS]:
        numbers = [get_count(counts[name], key) for key in ("elements", "entries", "disagreements")]
        elements, entries, disagreements = numbers
        if elements is not None and entries is not None and disagreements is not None:
            largest, decisions = get_number(counts[name], "max_distance"), get_count(counts[name], "decisions")
            flipped = get_count(counts[name], "flipped")
            mean = 2.0 * flipped / decisions if decisions and flipped is not None else None
            rows.append(ClassFact(name, elements, entries, disagreements, largest, mean))
    return rows


def _environments(verdict: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return (whose, flat settings), the auditor first and then at most three of the trainer's."""
    columns = [("auditor", _flat(get_map(verdict, "environment")))]
    theirs = get_map(verdict, "trainer_environments")
    for name in sorted(theirs, key=lambda n: (len(n), n))[:3]:
        columns.append((f"trainer, {name.replace('_', ' ')}", _flat(get_map(theirs, name))))
    return [(whose, flat) for whose, flat in columns if flat]


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and not prefix:
            flat |= _flat(value, f"{key}: ")
        else:
            flat[f"{prefix}{key}"] = str(value)
        if len(flat) >= _MOST_ROWS:
            break
    return flat


def sentence(facts: Facts) -> str:
    """Return the verdict in one plain sentence (not escaped)."""
    of = f"{facts.replayed} of {facts.total} segments" if facts.total else "no segments"
    if facts.replayed == facts.total and facts.total:
        of = {1: "the only segment", 2: "both segments"}.get(facts.total, f"all {facts.total} segments")
    if facts.result == "verified":
        rest = "" if facts.replayed == facts.total else ", and the others were not looked at"
        return f"Verified: {of} of this run replayed to exactly the published bits{rest}."
    meaning = MEANINGS.get(facts.reason or "", "the evidence or the training is not what was agreed")
    segment, step = get_count(facts.divergence, "segment"), get_count(facts.divergence, "step")
    op, module = get_text(facts.divergence, "op"), get_text(facts.divergence, "module")
    where = "" if segment is None else f", in segment {segment}"
    where += "" if step is None else f" at step {step}" if where else f", at step {step}"
    where += f" in {op[:60]}" if op else ""
    where += f" of module {module[:60]}" if op and module else ""
    return f"{facts.result.capitalize()}: {meaning}{where}."
