"""The sparse binary rounding log: one append-only stream file, a header and one record for each step.

File: magic ``VTRLOG\\r\\n``, format version u16, header length u32 (little-endian), the header as canonical
JSON, then records (see ``step_record``) by ascending step. The file is untrusted evidence: every size is
checked against what is really there before anything is allocated, and whatever is off raises EvidenceError
``evidence_malformed``.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from vt_core.engine.step_record import (
    HEADER,
    MAX_RECORD_BYTES,
    StepLog,
    decode_step,
    encode_step,
    entropy_floor_bits,
    log_sizes,
    step_digest,
)
from vt_core.errors import EvidenceError, StoreError
from vt_core.evidence.canonical import dumps, loads_strict

__all__ = [
    "LogReader",
    "LogWriter",
    "StepLog",
    "decode_step",
    "encode_step",
    "entropy_floor_bits",
    "log_sizes",
    "step_digest",
]

# The line end in it shows a transfer in text mode at once.
MAGIC = b"VTRLOG\r\n"
VERSION = 1
MAX_HEADER_BYTES = 1 << 20
MAX_STEPS = 1_000_000  # of one file; a spec allows no longer segment

_PREFIX = struct.Struct("<8sHI")


class LogWriter:
    """Writes a new log file; never touches an existing one (StoreError)."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        encoded = dumps(header)
        if len(encoded) > MAX_HEADER_BYTES:
            raise ValueError(f"the log header has {len(encoded)} bytes, the limit is {MAX_HEADER_BYTES}")
        self._last_step = -1
        try:
            self._file = open(path, "xb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise StoreError(f"cannot create the rounding log {path}: {error.strerror}") from error
        self._file.write(_PREFIX.pack(MAGIC, VERSION, len(encoded)) + encoded)
        self._file.flush()

    def append(self, log: StepLog) -> bytes:
        """Append one step, which must come after the last one (ValueError); return its record.

        The record is handed to the operating system before this returns.
        """
        if log.step <= self._last_step:
            raise ValueError(f"step {log.step} after step {self._last_step}")
        record = encode_step(log)
        self._file.write(record)
        self._file.flush()
        self._last_step = log.step
        return record

    def close(self) -> None:
        """Write everything to disk and close the file; may be called twice."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LogReader:
    """Reads an untrusted log file of at most ``max_bytes`` bytes.

    Opening reads the header and the record headers only. Raises EvidenceError ``artifact_missing`` if there
    is no file and ``evidence_malformed`` for anything that a :class:`LogWriter` does not write.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        try:
            # O_NONBLOCK: a pipe put in place of the file must not hang the reader.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise EvidenceError("artifact_missing", f"there is no rounding log {path}", file=str(path)) from error
        except OSError as error:
            raise StoreError(f"cannot read the rounding log {path}: {error.strerror}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise self._malformed("is not a regular file")
        self._file: BinaryIO = os.fdopen(descriptor, "rb")
        try:
            if status.st_size > max_bytes:
                raise self._malformed(f"has {status.st_size} bytes, the limit is {max_bytes}")
            self._size = status.st_size
            self.header = self._read_header()
            self._places = self._index()
        except BaseException:
            self._file.close()
            raise

    @property
    def steps(self) -> list[int]:
        """The steps in the log, ascending."""
        return list(self._places)

    def record(self, step: int) -> bytes:
        """Return the undecoded record of ``step`` (the input of ``step_digest``).

        EvidenceError if it is missing.
        """
        if step not in self._places:
            raise EvidenceError("evidence_malformed", f"{self._path} has no step {step}", step=step)
        start, length = self._places[step]
        self._file.seek(start)
        record = self._file.read(length)
        if len(record) != length:
            raise self._malformed("became shorter while it was read")
        return record

    def read_step(self, step: int) -> StepLog:
        """Return the log of ``step``; EvidenceError if it is missing or malformed."""
        return decode_step(self.record(step))

    def __iter__(self) -> Iterator[StepLog]:
        for step in self._places:
            yield self.read_step(step)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _malformed(self, what: str) -> EvidenceError:
        return EvidenceError("evidence_malformed", f"rounding log {self._path} {what}", file=str(self._path))

    def _read_header(self) -> dict[str, Any]:
        prefix = self._file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise self._malformed("is shorter than its header")
        magic, version, length = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise self._malformed("does not start with the magic number")
        if version != VERSION:
            raise self._malformed(f"has format version {version}; this program reads version {VERSION}")
        if length > min(MAX_HEADER_BYTES, self._size - _PREFIX.size):
            raise self._malformed(f"claims a header of {length} bytes")
        header = loads_strict(self._file.read(length), f"header of {self._path}", MAX_HEADER_BYTES)
        if not isinstance(header, dict):
            raise self._malformed("has a header that is not a JSON object")
        return header

    def _index(self) -> dict[int, tuple[int, int]]:
        places: dict[int, tuple[int, int]] = {}
        at, last = self._file.tell(), -1
        while at < self._size:
            self._file.seek(at)
            head = self._file.read(HEADER.size)
            if len(head) < HEADER.size:
                raise self._malformed("ends within a record header")
            step, payload, _, _ = HEADER.unpack(head)
            length = HEADER.size + payload
            if length > self._size - at:
                raise self._malformed(f"ends within the record of step {step}")
            if length > MAX_RECORD_BYTES:
                raise self._malformed(
                    f"has a record of {length} bytes for step {step}, at most {MAX_RECORD_BYTES} may be"
                )
            if len(places) >= MAX_STEPS:
                raise self._malformed(f"has more than {MAX_STEPS} steps")
            if step <= last:
                raise self._malformed(f"has step {step} after step {last}")
            places[step] = at, length
            at, last = at + length, step
        return places
