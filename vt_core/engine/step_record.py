"""The bytes of one step in the rounding log.

A record is a fixed header (little-endian: step u64, payload length u32, number of sites u32, number of
fingerprints u32) and the payload:

1. for each site, by ascending number: number minus (previous number + 1); zigzag exponent minus that of the
   site before; twice the count of entries, plus 1 if any is full; if the count is not 0, one byte with the Rice
   parameter of the positions; if any is full, how many, and one byte with the parameter of their indexes. All
   but the parameters are LEB128 varints;
2. the fingerprints, u32 each;
3. the full values, float32 each;
4. the remainders of the Rice codes (see ``rice``) of the gaps between positions, then of those between full
   indexes;
5. one parity bit for each entry that is not full;
6. the unary parts of the Rice codes.

Parts 4 to 6 are each padded with 0 bits to whole bytes. The encoding is canonical: a decoder encodes what it
read and compares, so each log has exactly one byte string.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vt_core.engine import rice
from vt_core.errors import EvidenceError, SpecError
from vt_core.numerics import SiteEntries

HEADER = struct.Struct("<QIII")
MAX_STEP_ENTRIES = 1 << 26  # a step of GPT-2 124M in float32 onto bfloat16 has half as many
MAX_STEP_SITES = 1 << 18  # three bytes of a record make a site of about 800 bytes here
MAX_RECORD_BYTES = 1 << 28
_MAX_VARINT_BYTES = 6
_MAX_SITE = (1 << 32) - 1
_MAX_SCALE = 1 << 12
_TOO_WIDE = "the tolerance policy is too wide for the grid, or the operations are not what they should be"


@dataclass(slots=True, eq=False)
class StepLog:
    """The log of one step: entries by site number (only sites that have any), one uint32 fingerprint a site.

    ``fingerprints`` is empty if they are switched off.
    """

    step: int
    sites: dict[int, SiteEntries]
    fingerprints: NDArray[np.uint32]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StepLog)
            and self.step == other.step
            and self.sites == other.sites
            and np.array_equal(self.fingerprints, other.fingerprints)
        )


def encode_step(log: StepLog) -> bytes:
    """Return the record of one step.

    Raises SpecError for more than 2**26 entries or 2**28 bytes (the tolerance is far too wide for the grid) and for
    more than 2**18 sites or fingerprints, ValueError for entries that no trainer writes (positions not ascending, no
    exponent).
    """
    most_sites = max(len(log.sites), log.fingerprints.size)
    if most_sites > MAX_STEP_SITES:
        raise SpecError(f"step {log.step} rounds at {most_sites} places, the limit is {MAX_STEP_SITES} a step")
    numbers = sorted(log.sites)
    sites = [log.sites[number] for number in numbers]
    total = sum(site.positions.size for site in sites)
    if total > MAX_STEP_ENTRIES:
        raise SpecError(f"step {log.step} has {total} log entries, the limit is {MAX_STEP_ENTRIES}: {_TOO_WIDE}")
    position_groups = [site.positions for site in sites if site.positions.size]
    full_groups = [site.full_index for site in sites if site.full_index.size]
    parameters, remainders, unary = rice.encode(position_groups + full_groups)
    of_positions, of_full = iter(parameters[: len(position_groups)]), iter(parameters[len(position_groups) :])

    meta = bytearray()
    previous, previous_scale = -1, 0
    for number, site in zip(numbers, sites, strict=True):
        if site.scale_exp is None or not -_MAX_SCALE <= site.scale_exp <= _MAX_SCALE:
            raise ValueError(f"site {number}: no usable scale exponent ({site.scale_exp})")
        if not previous < number <= _MAX_SITE:
            raise ValueError(f"site number {number} is out of range")
        _put_varint(meta, number - previous - 1)
        change = site.scale_exp - previous_scale
        _put_varint(meta, (change << 1) ^ (change >> 63))
        _put_varint(meta, 2 * site.positions.size + (site.full_index.size > 0))
        if site.positions.size:
            meta.append(next(of_positions))
        if site.full_index.size:
            _put_varint(meta, site.full_index.size)
            meta.append(next(of_full))
        previous, previous_scale = number, site.scale_exp
    parity = [np.delete(s.parity, s.full_index) if s.full_index.size else s.parity for s in sites]
    payload = b"".join(
        [
            bytes(meta),
            log.fingerprints.astype("<u4").tobytes(),
            *(site.full_values.astype("<f4").tobytes() for site in sites),
            remainders,
            np.packbits(np.concatenate([np.empty(0, np.uint8), *parity]), bitorder="little").tobytes(),
            unary,
        ]
    )
    size = HEADER.size + len(payload)
    if size > MAX_RECORD_BYTES:
        raise SpecError(f"the log of step {log.step} has {size} bytes, the limit is {MAX_RECORD_BYTES}: {_TOO_WIDE}")
    return HEADER.pack(log.step, len(payload), len(sites), log.fingerprints.size) + payload


def decode_step(record: bytes) -> StepLog:
    """Return what ``record`` holds; EvidenceError ``evidence_malformed`` unless it is a canonical record.

    Needs memory in proportion to the length of ``record``, whatever counts it claims.
    """
    if len(record) > MAX_RECORD_BYTES:
        raise EvidenceError("evidence_malformed", f"rounding log record has {len(record)} bytes")
    try:
        log = _decode(record)
        canonical = encode_step(log)
    except (ValueError, IndexError, OverflowError, SpecError, struct.error) as error:
        step = HEADER.unpack_from(record)[0] if len(record) >= HEADER.size else None
        raise EvidenceError("evidence_malformed", f"rounding log record: {error}", step=step) from error
    if canonical != record:
        raise EvidenceError("evidence_malformed", "rounding log record is not canonical", step=log.step)
    return log


def step_digest(record: bytes) -> bytes:
    """Return the SHA-256 of a record."""
    return hashlib.sha256(record).digest()


def log_sizes(record: bytes) -> tuple[int, int]:
    """Return how many bytes of a record are entries (with the header) and how many are fingerprints."""
    if len(record) < HEADER.size:
        raise EvidenceError("evidence_malformed", "rounding log record is shorter than its header")
    fingerprints = 4 * int(HEADER.unpack_from(record)[3])
    return len(record) - fingerprints, fingerprints


def entropy_floor_bits(numel: int, count: int) -> float:
    """Return ``log2 C(numel, count) + count``: the least bits for random positions and one bit an entry."""
    if not 0 <= count <= numel:
        raise ValueError(f"{count} entries among {numel} elements")
    nats = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return nats / math.log(2) + count


@dataclass(slots=True)
class _Site:
    number: int
    scale_exp: int
    count: int = 0
    full: int = 0
    parameter: int = 0
    full_parameter: int = 0


def _decode(record: bytes) -> StepLog:
    step, length, site_count, fingerprint_count = HEADER.unpack_from(record)
    data = record[HEADER.size :]
    if len(data) != length:
        raise ValueError(f"the header says {length} bytes, there are {len(data)}")
    if max(site_count, fingerprint_count) > MAX_STEP_SITES:
        raise ValueError(f"{site_count} sites and {fingerprint_count} fingerprints, at most {MAX_STEP_SITES} may be")
    if 3 * site_count + 4 * fingerprint_count > length:
        raise ValueError(f"{site_count} sites and {fingerprint_count} fingerprints cannot be in {length} bytes")
    sites, at = _get_sites(data, site_count)
    entries, full = sum(s.count for s in sites), sum(s.full for s in sites)
    # Each Rice code has at least one bit.
    if entries > MAX_STEP_ENTRIES or entries + full > 8 * length:
        raise ValueError(f"{entries} entries cannot be in {length} bytes")

    def take(size: int) -> bytes:
        nonlocal at
        if size > len(data) - at:
            raise ValueError("the record is truncated")
        at += size
        return data[at - size : at]

    fingerprints = np.frombuffer(take(4 * fingerprint_count), "<u4").astype(np.uint32)
    full_values = np.frombuffer(take(4 * full), "<f4").astype(np.float32)
    counts = [s.count for s in sites if s.count] + [s.full for s in sites if s.full]
    parameters = [s.parameter for s in sites if s.count] + [s.full_parameter for s in sites if s.full]
    remainders = take(rice.remainder_bytes(counts, parameters))
    parity_bits = np.frombuffer(take((entries - full + 7) // 8), np.uint8)
    parity = np.unpackbits(parity_bits, bitorder="little")
    unary = data[at:]
    # With the best parameters the quotients sum to at most three times the number of values.
    if len(unary) > (4 * (entries + full) + 7) // 8:
        raise ValueError("the unary stream is too long")
    groups = rice.decode(remainders, unary, counts, parameters)
    return StepLog(step, _build_sites(sites, groups, full_values, parity), fingerprints)


def _build_sites(
    sites: list[_Site],
    groups: list[NDArray[np.int64]],
    full_values: NDArray[np.float32],
    parity: NDArray[np.uint8],
) -> dict[int, SiteEntries]:
    result: dict[int, SiteEntries] = {}
    position_groups = iter(groups)
    full_groups = iter(groups[sum(1 for s in sites if s.count) :])
    full_at = parity_at = 0
    for s in sites:
        if not s.count:
            result[s.number] = SiteEntries.empty(s.scale_exp)
            continue
        full_index = next(full_groups) if s.full else np.empty(0, np.int64)
        if s.full and full_index[-1] >= s.count:
            raise ValueError(f"site {s.number}: full entry {full_index[-1]} of {s.count}")
        bits = np.zeros(s.count, np.uint8)
        is_parity = np.ones(s.count, np.bool_)
        is_parity[full_index] = False
        bits[is_parity] = parity[parity_at : parity_at + s.count - s.full]
        values = full_values[full_at : full_at + s.full]
        result[s.number] = SiteEntries(s.scale_exp, next(position_groups), bits, full_index, values)
        full_at += s.full
        parity_at += s.count - s.full
    return result


def _get_sites(data: bytes, site_count: int) -> tuple[list[_Site], int]:
    sites: list[_Site] = []
    at, number, scale = 0, -1, 0
    for _ in range(site_count):
        delta, at = _get_varint(data, at)
        zigzag, at = _get_varint(data, at)
        number, scale = number + delta + 1, scale + ((zigzag >> 1) ^ -(zigzag & 1))
        site = _Site(number, scale)
        packed, at = _get_varint(data, at)
        site.count = packed >> 1
        if site.count:
            site.parameter, at = data[at], at + 1
        if packed & 1:
            site.full, at = _get_varint(data, at)
            site.full_parameter, at = data[at], at + 1
        if site.full > site.count or max(site.parameter, site.full_parameter) > rice.MAX_PARAMETER:
            raise ValueError(f"site {number}: impossible counts or parameters")
        sites.append(site)
    return sites, at


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _get_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number is too long")
