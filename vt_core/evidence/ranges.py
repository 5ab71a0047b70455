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
