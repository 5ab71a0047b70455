"""The figures of a report: curves as inline SVG from matplotlib, and the strip of segments as plain HTML.

An SVG holds no script, no link and no date, and its colours are CSS variables of the page (light and dark). The same
data gives the same bytes. Only numbers go into matplotlib, so nothing from evidence can become markup there.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tasks.report_facts import Facts, SegmentFact, escape
from tasks.report_inputs import StepRow

MOST_POINTS = 2000
MOST_CELLS = 500
_LARGEST = 1e30  # what is above is no loss that an axis could show
# Stand-ins that matplotlib writes into the SVG, and the page's variables that replace them there.
_INK, _GRID, _LINE, _SECOND, _BAD = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {_INK: "--soft", _GRID: "--rule", _LINE: "--ok", _SECOND: "--second", _BAD: "--bad"}
_SETTINGS: Any = {
    "svg.hashsalt": "verifiable-training", "svg.fonttype": "none", "font.size": 10, "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _INK, "ytick.color": _INK, "grid.color": _GRID,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.linewidth": 0.6, "path.simplify": False,
}  # fmt: skip

Points = tuple[list[int], list[float]]
SYMBOLS = {"verified": "✓", "rejected": "✕", "inconclusive": "?", "none": "·"}
WORDS = {
    "verified": "replayed, every bit agrees", "rejected": "rejected", "inconclusive": "inconclusive",
    "none": "not replayed",
}  # fmt: skip
_WORST = ("rejected", "inconclusive", "verified")


def decimate(steps: Sequence[int], values: Sequence[float], most: int = MOST_POINTS) -> Points:
    """Return at most ``most`` of the points: of each run of neighbours the smallest and the largest, in order.

    Peaks survive. Points that are not finite are kept as gaps (NaN) where a whole run of neighbours is not finite.
    """
    if len(steps) <= most:
        return list(steps), list(values)
    size = math.ceil(len(steps) / (most // 2))
    kept: list[int] = []
    for start in range(0, len(steps), size):
        block = range(start, min(start + size, len(steps)))
        finite = [i for i in block if math.isfinite(values[i])] or [start]
        kept += sorted({min(finite, key=lambda i: values[i]), max(finite, key=lambda i: values[i])})
    return [steps[i] for i in kept], [values[i] for i in kept]


def loss_curve(rows: Sequence[StepRow], marked: int | None) -> str | None:
    """Return the SVG of the loss over steps, None without a finite loss. ``marked``: the step of the divergence."""
    shown = [r for r in rows if r.step > 0]
    losses = [r.loss if abs(r.loss) < _LARGEST else math.nan for r in shown]
    if not any(map(math.isfinite, losses)):
        return None
    points = decimate(*_with_gaps([r.step for r in shown], losses))
    return _curves("loss", "Loss at each step", "loss", [(points, _LINE, "-", "")], marked)


def log_curve(rows: Sequence[StepRow], marked: int | None) -> str | None:
    """Return the SVG of the bytes of rounding log and fingerprints a step, None without rows."""
    if not rows:
        return None
    steps = [r.step for r in rows]
    log = decimate(*_with_gaps(steps, [r.log_bytes / 1000 for r in rows]))
    prints = decimate(*_with_gaps(steps, [r.fingerprint_bytes / 1000 for r in rows]))
    lines = [(log, _LINE, "-", "rounding log"), (prints, _SECOND, "--", "fingerprints")]
    return _curves("log", "Kilobytes of rounding log at each step", "kB a step", lines, marked)


def _with_gaps(steps: list[int], values: list[float]) -> Points:
    """Put a NaN where steps are missing, so that no line is drawn over what was not replayed."""
    x: list[int] = []
    y: list[float] = []
    for step, value in zip(steps, values, strict=True):
        if x and step > x[-1] + 1:
            x.append(x[-1] + 1)
            y.append(math.nan)
        x.append(step)
        y.append(value)
    return x, y


def _curves(
    name: str, title: str, label: str, lines: Sequence[tuple[Points, str, str, str]], marked: int | None
) -> str:
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(5.4, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for (x, y), colour, style, legend in lines:
            few = sum(map(math.isfinite, y)) <= 60  # single points between gaps would not be seen as a line
            axes.plot(x, y, style, color=colour, linewidth=1.6, marker="." if few else None, label=legend)
        if marked is not None:
            axes.axvline(marked, color=_BAD, linestyle=":", linewidth=1.6)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if all(legend for _, _, _, legend in lines):
            axes.set_ylim(bottom=0)
            axes.legend(frameon=False)
        sink = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(sink, format="svg", transparent=True, metadata=nothing)
    return _inline(sink.getvalue(), name, title)


def _inline(svg: str, name: str, title: str) -> str:
    """Return matplotlib's file as an element for the page: own ids, a title, and colours that follow the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)  # it would apply to the whole page
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', svg)
    assert view is not None  # matplotlib always writes one
    head = f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
    return head + svg[svg.index(">") + 1 :]


def strip(facts: Facts) -> str:
    """Return the strip of segments: one cell each, or a cell for several neighbours that shows the worst of them."""
    cells = min(facts.total, MOST_CELLS)
    by_cell: dict[int, list[SegmentFact]] = {}
    for segment in facts.segments:
        by_cell.setdefault(segment.index * cells // facts.total, []).append(segment)
    parts = []
    for cell in range(cells):
        first = -(-cell * facts.total // cells)
        last = -(-(cell + 1) * facts.total // cells) - 1
        inside = by_cell.get(cell, [])
        worst = next((r for r in _WORST if any(s.result == r for s in inside)), "none")
        name = f"segment {first}" if first == last else f"segments {first} to {last}"
        said = f"{name}: {WORDS[worst]}" if first == last else f"{name}: {len(inside)} replayed, worst: {WORDS[worst]}"
        if first == last and inside and inside[0].steps:
            said += f" (steps {inside[0].steps[0]} to {inside[0].steps[1]})"
        number = f"<b>{first}</b>" if cells <= 60 else ""
        parts.append(
            f'<li class="{worst}" title="{escape(said)}"><span aria-hidden="true">{SYMBOLS[worst]}</span>{number}'
            f'<span class="unseen">{escape(said)}</span></li>'
        )
    size = "large" if cells <= 60 else "small"
    return f'<ol class="strip {size}">{"".join(parts)}</ol>'
