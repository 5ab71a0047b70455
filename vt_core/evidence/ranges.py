"""Which steps a segment covers: the same arithmetic for those who train and for those who only read evidence."""

from __future__ import annotations


def segment_count(steps: int, segment_steps: int) -> int:
    """Return the number of segments of a run: the initialisation (segment 0) and the training segments."""
    return 1 + -(-steps // segment_steps)


def segment_range(steps: int, segment_steps: int, index: int) -> tuple[int, int]:
    """Return (first step, last step) of segment ``index``, both included; segment 0 is step 0."""
    if index == 0:
        return 0, 0
    return (index - 1) * segment_steps + 1, min(index * segment_steps, steps)


def last_leaves(steps: int, segment_steps: int, commit_interval: int) -> list[int]:
    """Return, for each segment, the number of its last leaf among all leaves of the run.

    A leaf is made after every step that is a multiple of ``commit_interval``, and after each segment's last step.
    """
    ends: list[int] = []
    total = 0
    for index in range(segment_count(steps, segment_steps)):
        first, last = segment_range(steps, segment_steps, index)
        multiples = last // commit_interval - (first - 1) // commit_interval
        total += multiples + (last % commit_interval != 0)
        ends.append(total - 1)
    return ends
