"""Compiled losses of labels (CPU): the value that each label chooses, and the gradient at its place.

``x`` is contiguous with the classes in the middle: the value of example ``i // inner``, class ``k`` and position
``i % inner`` lies at ``((i // inner) * classes + k) * inner + i % inner``. It may be of float32: its values are widened
one by one, and results cut where they are stored. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled


@compiled
def choose(
    x: Any, labels: Any, weight: Any, ignored: Any, classes: Any, inner: Any, terms: Any, weights: Any, begin: Any,
    end: Any,
) -> Any:  # fmt: skip
    """Put ``-(x * weight)`` and the weight for labels ``begin`` to ``end`` into the last two; 0 for ignored ones.

    An empty ``weight`` is one of ones. Returns the number of labels that count, -1 if one is out of range.
    """
    count = 0
    for i in range(begin, end):
        label = labels[i]
        if label == ignored:
            terms[i] = weights[i] = 0.0
            continue
        if label < 0 or label >= classes:
            return -1
        w = weight[label] if weight.size else 1.0
        value = np.float64(x[((i // inner) * classes + label) * inner + i % inner])
        terms[i], weights[i] = -(value * w), w
        count += 1
    return count


@compiled
def place(
    grad: Any, step: Any, labels: Any, weight: Any, ignored: Any, classes: Any, inner: Any, out: Any, begin: Any,
    end: Any,
) -> Any:  # fmt: skip
    """Put ``-(weight * grad)`` where the labels ``begin`` to ``end`` point to; ``grad`` has a value every ``step``.

    Returns 0, or -1 if a label is out of range.
    """
    for i in range(begin, end):
        label = labels[i]
        if label != ignored:
            if label < 0 or label >= classes:
                return -1
            w = weight[label] if weight.size else 1.0
            out[((i // inner) * classes + label) * inner + i % inner] = -(w * grad[i * step])
    return 0


NO_WEIGHT = np.empty(0, np.float64)
