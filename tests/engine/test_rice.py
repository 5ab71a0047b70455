"""Golomb-Rice streams by themselves: what a caller could not tell, because it encodes again and compares."""

from __future__ import annotations

import numpy as np
import pytest

from vt_core.engine import rice


def bits(*positions: int, size: int) -> bytes:
    """Return ``size`` bits with ones at ``positions``, least significant first."""
    stream = np.zeros(size, np.uint8)
    stream[list(positions)] = 1
    return np.packbits(stream, bitorder="little").tobytes()


@pytest.mark.parametrize("far", [2, 63, 64, 65, 127, 128, 200, 3_000])
def test_quotients_of_many_words(far: int) -> None:
    """Neighbours and one that is far away: up to 1000 the best parameter is 0 and its quotient ``far``."""
    near = np.arange(1_000)
    group = np.append(near, near[-1] + 1 + far)
    parameters, remainders, unary = rice.encode([near, group, near])
    assert parameters == [0, int(far > 1000), 0]
    again = rice.decode(remainders, unary, [1000, 1001, 1000], parameters)
    assert [g.tolist() for g in again] == [near.tolist(), group.tolist(), near.tolist()]


def test_streams_bit_by_bit() -> None:
    """0, 4 and 9 have the gaps 0, 3 and 4: one low bit each (0, 1, 0) and the quotients 0, 1 and 2."""
    parameters, remainders, unary = rice.encode([np.array([0, 4, 9])])
    assert parameters == [1] and remainders == b"\2" and unary == bits(0, 2, 5, size=6)


@pytest.mark.parametrize("positions", [[2**62, -(2**62)], [0, 2**63 - 1, -(2**63)], [-(2**63)], [2**40], [5, 5]])
def test_what_is_no_group_of_positions_is_refused(positions: list[int]) -> None:
    """Also where the gap between two wraps around to a positive number."""
    with pytest.raises(ValueError, match="ascending"):
        rice.encode([np.array(positions, np.int64)])


def test_a_quotient_that_would_wrap_is_refused() -> None:
    """2**23 in unary, before 40 low bits, is 2**63."""
    with pytest.raises(ValueError, match="2\\*\\*40"):
        rice.decode(bytes(5), bits(1 << 23, size=(1 << 23) + 1), [1], [40])


def test_positions_end_before_the_limit() -> None:
    half = [rice.POSITION_LIMIT // 2 - 1, rice.POSITION_LIMIT - 1]
    parameters, remainders, unary = rice.encode([np.array(half)])
    assert rice.decode(remainders, unary, [2], parameters)[0].tolist() == half
    # The same low bits with one more in the last quotient.
    count = int(np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little").nonzero()[0][-1])
    first = int(np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little").nonzero()[0][0])
    with pytest.raises(ValueError, match="not below"):
        rice.decode(remainders, bits(first, count + 1, size=count + 2), [2], parameters)


@pytest.mark.parametrize("beyond", [1, 6, 40, 64, 500])
def test_more_quotients_than_entries_are_refused(beyond: int) -> None:
    """In the word where the last one lies, and in later ones."""
    assert rice.decode(b"", bits(0, 1, size=2 + beyond), [2], [0])[0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="more than"):
        rice.decode(b"", bits(0, 1, 1 + beyond, size=2 + beyond), [2], [0])


def test_fewer_quotients_than_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        rice.decode(b"", bits(0, size=1), [2], [0])


@pytest.mark.parametrize("change", [-1, 1])
def test_remainders_have_the_length_that_counts_say(change: int) -> None:
    with pytest.raises(ValueError, match="remainder stream"):
        rice.decode(bytes(2 + change), bits(0, 1, size=2), [2], [8])
