"""Which steps a segment covers: the same arithmetic for those who train and for those who only read evidence."""

from __future__ import annotations

from itertools import accumulate


def segment_count(steps: int, segment_steps: int) -> int:
    """Return the number of segments of a run: the initialisation (segment 0) and the training segments."""
    return 1 + -(-steps // segment_steps)


def segment_range(steps: int, segment_steps: int, index: int) -> tuple[int, int]:
    """Return (first step, last step) of segment ``index``, both included; segment 0 is step 0."""
    if index == 0:
        return 0, 0
    return (index - 1) * segment_steps + 1, min(index * segment_steps, steps)


def leaves_in(first: int, last: int, commit_interval: int) -> int:
    """Return the number of leaves of a segment: one for each multiple of ``commit_interval``, and one for its end."""
    return last // commit_interval - (first - 1) // commit_interval + (last % commit_interval != 0)


def last_leaves(steps: int, segment_steps: int, commit_interval: int) -> list[int]:
    """Return, for each segment, the number of its last leaf among all leaves of the run.

    The last of them is the last leaf of the run.
    """
    ranges = (segment_range(steps, segment_steps, index) for index in range(segment_count(steps, segment_steps)))
    counts = accumulate(leaves_in(first, last, commit_interval) for first, last in ranges)
    return [total - 1 for total in counts]
