"""Time and memory of the largest object of each kind that is read, and of the worst that is refused.

``python tests/fuzz/measure.py`` measures all and prints the table of ``docs/hostile-input.md``; names measure some.
Each object is parsed in a process of its own, under a limit of its address space: what needs more ends there, not here.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE.parents[1])] if str(_HERE.parents[1]) not in sys.path else []

ADDRESS_SPACE = 16 << 30
"""Bytes; PyTorch alone maps some GiB that it never touches."""


@dataclass(frozen=True)
class Case:
    """``make`` returns the bytes; ``parse`` is called in the child with the path of a file that holds them."""

    what: str
    make: Callable[[], bytes]
    parse: Callable[[Path], object]
    accepted: bool = True


@dataclass(frozen=True)
class Figures:
    """What a child measured: bytes of the object, seconds, peak memory above that before (bytes), and how it ended."""

    size: int
    seconds: float
    peak: int
    outcome: str


def _document(path: Path) -> object:
    from vt_core.evidence.canonical import loads_strict

    return loads_strict(path.read_bytes(), "document")


def _values(count: int) -> bytes:
    return b"[" + b"0," * (count - 2) + b"0]"


def _objects(count: int) -> bytes:
    return b"[" + b",".join([b'{"a":0}'] * count) + b"]"


def _text(size: int) -> bytes:
    """One string that needs four bytes a character in memory although most have one."""
    return b'"' + b"x" * (size - 6) + "🙂".encode() + b'"'


def _segment(path: Path) -> object:
    from vt_core.evidence.records import parse_segment

    return parse_segment(path.read_bytes(), "segment")


def _record_of_leaves(count: int) -> bytes:
    from vt_core.evidence.merkle import root
    from vt_core.evidence.records import SegmentRecord

    leaves = [i.to_bytes(32, "big") for i in range(count)]
    texts = [leaf.hex() for leaf in leaves]
    return SegmentRecord("run", "0" * 64, 0, 0, 0, None, {}, texts, root(leaves).hex(), {}).to_bytes()


def _seal(path: Path) -> object:
    from vt_core.evidence.records import parse_seal

    return parse_seal(path.read_bytes())


def _seal_of(count: int) -> bytes:
    from vt_core.evidence.records import Seal

    return Seal("run", "0" * 64, ["0" * 64] * count, 1, "0" * 64, "0" * 64).to_bytes()


def _leaves(path: Path) -> object:
    from vt_core.evidence.digests import read_bounded
    from vt_core.training.leaves import MAX_LEAVES_BYTES, decode_leaves

    return decode_leaves(read_bounded(path, MAX_LEAVES_BYTES, "leaves.json"))


def _leaves_of(size: int, tensors: int) -> bytes:
    from vt_core.training.leaves import Leaf, encode_leaves

    roots = {f"param.layer{i}.weight": bytes(32) for i in range(tensors)}
    count = size // (64 * tensors + 400)
    return encode_leaves([Leaf(i, bytes(32), bytes(32), bytes(32), bytes(32), roots) for i in range(count)])


def _record(path: Path) -> object:
    from vt_core.engine.step_record import decode_step

    return decode_step(path.read_bytes())


def _sites(count: int) -> bytes:
    from vt_core.engine.step_record import HEADER

    return HEADER.pack(1, 3 * count, count, 0) + bytes(3 * count)


def _entries(count: int) -> bytes:
    import numpy as np

    from vt_core.engine.step_record import StepLog, encode_step
    from vt_core.numerics import SiteEntries

    positions = np.cumsum(np.random.default_rng(1).integers(1, 2000, count))
    half = np.arange(0, count, 2, dtype=np.int64)
    parity = np.ones(count, np.uint8)
    parity[half] = 0
    site = SiteEntries(0, positions, parity, half, np.ones(half.size, np.float32))
    return encode_step(StepLog(1, {0: site}, np.empty(0, np.uint32)))


def _log(path: Path) -> object:
    from vt_core.engine.rounding_log import LogReader

    with LogReader(path, 4 << 30) as reader:
        return len(reader.steps)


def _steps(count: int) -> bytes:
    from vt_core.engine.rounding_log import MAGIC
    from vt_core.engine.step_record import HEADER

    return struct.pack("<8sHI", MAGIC, 1, 2) + b"{}" + b"".join(HEADER.pack(i, 0, 0, 0) for i in range(count))


def _checkpoint(path: Path) -> object:
    from vt_core.training.checkpoint import SCALARS, TENSORS, load_checkpoint
    from vt_core.training.state import digest

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / TENSORS).symlink_to(path)
        (Path(folder) / SCALARS).write_bytes(b'{"scalars":{},"step":1}')
        return digest(load_checkpoint(Path(folder)))


def _tensors(count: int, pad: int = 0) -> bytes:
    header = {f"{'n' * pad}{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


def _listing(path: Path) -> object:
    from tasks.dvc_objects import Pointer, check_listing

    return check_listing(path.read_bytes(), Pointer("0" * 32 + ".dir", 1, 10_000, "x"), "x")


def _files(count: int) -> bytes:
    return json.dumps([{"md5": "0" * 32, "relpath": "n" * 190 + f"/{i}"} for i in range(count)]).encode()


def _metrics(path: Path) -> object:
    from tasks.report_inputs import read_metrics

    data = path.read_bytes()
    return read_metrics(data, 0, data.count(b'"step":') - 1)


def _rows(size: int) -> bytes:
    row = '{"fingerprint_bytes":1,"log_bytes":1,"loss":"0x1.0000000000000p+0","operations":9,"step":%d}'
    count = (size - 100) // (len(row) + 7)
    return ('{"steps":[' + ",".join(row % i for i in range(count)) + "]}").encode()


def _report(path: Path) -> object:
    from tasks.report_inputs import ReportInputs
    from tasks.reporting import report_html
    from vt_core.evidence.canonical import loads_strict

    return report_html(loads_strict(path.read_bytes(), "verdict"), ReportInputs("run", "file:///s", None))


def _verdict(count: int) -> bytes:
    rows = b",".join(b'{"index":%d,"result":"verified"}' % i for i in range(count))
    return b'{"segments":[' + rows + b'],"verdict":"verified"}'


def _envelope(path: Path) -> object:
    from vt_core.evidence.agreement import parse_agreement

    return parse_agreement(path.read_bytes())


def _signed(size: int) -> bytes:
    payload = base64.b64encode(bytes(size // 4 * 3 // 3 * 3)).decode()
    plain: Mapping[str, Any] = {
        "payload": payload, "payloadType": "application/vnd.verifiable-training.run-spec+json",
        "signatures": [{"keyid": "a", "sig": "AAAA"}],
    }  # fmt: skip
    return json.dumps(plain, separators=(",", ":")).encode()


def _spec(path: Path) -> object:
    from vt_core.training.spec import parse_spec

    return parse_spec(path.read_bytes())


MIB = 1 << 20
CASES: dict[str, Case] = {
    "json-values": Case("4 M numbers", lambda: _values(1 << 22), _document),
    "json-objects": Case("2 M objects", lambda: _objects((1 << 21) - 1), _document),
    "json-text": Case("one string of 64 MiB", lambda: _text(64 * MIB), _document),
    "json-brackets": Case("22 M empty lists", lambda: b"[" + b"[]," * 22_000_000 + b"[]]", _document, False),
    "json-deep": Case("64 MiB of opening brackets", lambda: b"[" * (64 * MIB), _document, False),
    "json-large": Case("65 MiB", lambda: b'"' + b"x" * (65 * MIB) + b'"', _document, False),
    "segment": Case("record with 1 M leaves", lambda: _record_of_leaves(1_000_000), _segment),
    "seal": Case("seal of 1 M segments", lambda: _seal_of(1_000_000), _seal),
    "spec": Case("16 MiB that are no spec", lambda: _objects(1_900_000)[: 16 * MIB], _spec, False),
    "leaves": Case("256 MiB, 1000 tensors a leaf", lambda: _leaves_of(256 * MIB, 1000), _leaves),
    "leaves-large": Case("257 MiB", lambda: bytes(257 * MIB), _leaves, False),
    "record-sites": Case("step with 2^18 sites", lambda: _sites(1 << 18), _record),
    "record-more-sites": Case("step with 85 M sites", lambda: _sites(85_000_000), _record, False),
    "record-entries": Case("step with 2^26 entries", lambda: _entries(1 << 26), _record),
    "log-steps": Case("log of 1 M steps", lambda: _steps(1_000_000), _log),
    "log-more-steps": Case("log of 20 M steps", lambda: _steps(20_000_000), _log, False),
    "checkpoint": Case("65536 tensors, header of 16 MB", lambda: _tensors(65_536, 180), _checkpoint),
    "checkpoint-more": Case("1.6 M tensors, header of 99 MB", lambda: _tensors(1_600_000), _checkpoint, False),
    "listing": Case("10 000 files", lambda: _files(10_000), _listing),
    "metrics": Case("64 MiB, 600 000 steps", lambda: _rows(64 * MIB), _metrics),
    "verdict": Case("verdict over 1.3 M segments, as a report", lambda: _verdict(1_300_000), _report),
    "envelope": Case("envelope of 63 MiB", lambda: _signed(63 * MIB), _envelope),
}


def measure(case: Case) -> Figures:
    """Make the object, and read it in a fresh process. Raises RuntimeError if that ended without an answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        path.write_bytes(case.make())
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(case.parse.__name__, path, theirs))
        child.start()
        theirs.close()
        try:
            seconds, peak, outcome = mine.recv()
        except EOFError:
            child.join()
            raise RuntimeError(f"{case.what}: the child ended with code {child.exitcode} and no answer") from None
        child.join()
        return Figures(path.stat().st_size, seconds, peak, outcome)


def _child(parse: str, path: Path, answer: Any) -> None:
    from tasks import report_inputs, reporting
    from vt_core.errors import EvidenceError
    from vt_core.verify import audit  # everything that an auditor has loaded

    assert report_inputs and reporting and audit
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: getrusage would give the parent's
    before = _peak()
    started = time.perf_counter()
    try:
        globals()[parse](path)
        outcome = "accepted"
    except EvidenceError as error:
        outcome = error.reason
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"[:300]
    seconds = time.perf_counter() - started
    answer.send((seconds, _peak() - before, outcome))


def _peak() -> int:
    """Return the most memory that this process has held, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> int:
    """Print a row of Markdown for each case; the exit code tells whether all ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(CASES)}")
    wrong = 0
    print("| object | bytes | outcome | seconds | peak memory, MiB |\n|---|---:|---|---:|---:|")
    for name in parser.parse_args().names or CASES:
        found = measure(CASES[name])
        wrong += found.outcome != ("accepted" if CASES[name].accepted else "evidence_malformed")
        print(
            f"| {name}: {CASES[name].what} | {found.size:,} | {found.outcome} | {found.seconds:.1f} "
            f"| {found.peak / MIB:,.0f} |",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    raise SystemExit(main())
