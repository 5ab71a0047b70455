"""The sections of a report as HTML. Whatever comes from evidence or from a verdict goes through ``escape``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from tasks.report_facts import MISSING, ClassFact, Facts, escape, get_count, get_map, get_number, get_text, sentence
from tasks.report_figures import SYMBOLS, WORDS, log_curve, loss_curve, strip
from tasks.report_inputs import ReportInputs

_MOST_LISTED = 200


def header(facts: Facts, inputs: ReportInputs) -> str:
    """Return the verdict in one sentence, with its reason and the run it is about."""
    reason = "" if facts.reason is None else f"<code>{escape(facts.reason)}</code>: "
    rows = [("run", escape(facts.run_id)), ("given at", escape(_time(facts.time)))]
    if inputs.run is not None:
        spec = inputs.run.spec
        rows += [
            ("job", _breakable(escape(spec.reference))),
            ("training", escape(f"{spec.steps} steps, seed {spec.seed}, {spec.compute_dtype} onto {spec.grid}")),
        ]
    return (
        f'<header class="{facts.result}"><span class="badge">{SYMBOLS[facts.result]} {facts.result}</span>'
        f"<h1>{escape(sentence(facts))}</h1><p>{reason}{escape(facts.message, 1000)}</p>{_list(rows)}</header>"
    )


def coverage(facts: Facts) -> str:
    """Return how much was replayed, what that would have found, and the strip of segments."""
    if not facts.total:
        return _section("What was replayed", "<p>No segment was replayed: the evidence failed a check before that.</p>")
    share = f"{facts.replayed / facts.total:.0%}" if facts.replayed < facts.total else "100%"
    tiles = [("segments replayed", f"{facts.replayed} of {facts.total}"), ("share of the run", share)]
    for bad, chance in facts.chances:
        tiles.append((f"chance, if {bad} {'was' if bad == 1 else 'were'} bad", f"{chance:.1%}"))
    seen = {s.result for s in facts.segments}
    counts = {r: sum(s.result == r for s in facts.segments) for r in seen} | {"none": facts.total - facts.replayed}
    legend = "".join(
        f'<span><i class="{r}">{SYMBOLS[r]}</i>{WORDS[r]}: {counts[r]}</span>' for r in WORDS if counts.get(r)
    )
    return _section(
        "What was replayed",
        f'{_list(tiles, "tiles")}{strip(facts)}<p class="legend">{legend}</p>{_segment_table(facts)}'
        '<p class="soft">"Chance": that a random sample of this size holds a bad segment.</p>',
    )


def _segment_table(facts: Facts) -> str:
    shown = sorted(facts.segments, key=lambda s: (s.result == "verified", s.index))[:_MOST_LISTED]
    rows = [
        [
            str(s.index), "" if s.steps is None else f"{s.steps[0]} to {s.steps[1]}", f"{SYMBOLS[s.result]} {s.result}",
            escape(s.reason or ""), escape(s.message or MISSING), "" if s.seconds is None else f"{s.seconds:.1f} s",
        ]
        for s in shown
    ]  # fmt: skip
    table = _table(["segment", "steps", "result", "reason", "message", "time"], rows)
    more = _more(len(facts.segments) - len(shown))
    return f"<details><summary>every replayed segment</summary>{table}{more}</details>" if rows else ""


def divergence(facts: Facts) -> str:
    """Return the first place where replay and evidence part, with both values; empty if there is none."""
    d = facts.divergence
    if not d:
        return ""
    rows = [(name, get_count(d, key)) for name, key in (("segment", "segment"), ("step", "step"))]
    place = [(name, str(n)) for name, n in rows if n is not None]
    for name, key in (("operation", "op"), ("module", "module")):
        if get_text(d, key):
            place.append((name, f"<code>{_breakable(escape(get_text(d, key)))}</code>"))
    element, distance = get_count(d, "element"), get_number(d, "distance")
    if element is not None:
        place.append(("element (row-major)", str(element)))
    values = ""
    sides = [(side, get_number(d, f"{side}_value"), get_text(d, f"{side}_value")) for side in ("trainer", "auditor")]
    if any(value is not None for _, value, _ in sides):
        cells = [
            [side, MISSING if v is None else f"{v:.9g}", f"<code>{escape(h or '', 40)}</code>"] for side, v, h in sides
        ]
        values = _table(["", "value", "exactly"], cells, numbers={1})
        if distance is not None:
            values += f"<p>They are <b>{distance:,.6g} tolerances</b> apart; honest machines stay within one.</p>"
    listed = d.get("tensors")
    tensors = [t for t in listed if isinstance(t, str)] if isinstance(listed, (list, tuple)) else []
    names = ""
    if tensors:
        items = "".join(f"<li><code>{escape(t, 120)}</code></li>" for t in tensors[:_MOST_LISTED])
        more = _more(len(tensors) - _MOST_LISTED)
        names = f"<details><summary>{len(tensors)} tensors differ in the end</summary><ul>{items}</ul>{more}</details>"
    return _section("Where they part first", _list(place) + values + names)


def curves(facts: Facts, inputs: ReportInputs) -> str:
    """Return loss and log size at each step, as the trainer reports them."""
    marked = get_count(facts.divergence, "step")
    steps = [r.step for r in inputs.rows]
    marked = marked if steps and marked is not None and steps[0] <= marked <= steps[-1] else None
    figures = []
    for name, svg in (("Loss", loss_curve(inputs.rows, marked)), ("Log size", log_curve(inputs.rows, marked))):
        figures.append(f"<figure><figcaption>{name}</figcaption>{svg or f'<p>{MISSING}</p>'}</figure>")
    notes = "".join(f'<p class="soft">{escape(note, 500)}</p>' for note in inputs.notes[:10])
    dotted = " The dotted line is the step where they part." if marked is not None else ""
    said = f'<p class="soft">As the trainer reports them for the replayed segments (committed, not judged).{dotted}</p>'
    more = _more(len(inputs.notes) - 10)
    return _section("The run", f'<div class="curves">{"".join(figures)}</div>{said}{notes}{more}')


NOTHING_LOGGED = "No result needed a rounding decision: each is the same on every machine, and the log is empty."


def rounding(facts: Facts) -> str:
    """Return the table of logged roundings per op class."""
    used = [c for c in facts.classes if c.elements]
    if not used:
        return _section("Rounding decisions", f"<p>{NOTHING_LOGGED if facts.classes else MISSING}</p>")
    head = ["op class", "elements", "logged", "share", "settled the other way", "headroom", "mean"]
    rows = [
        [
            escape(c.name, 60), f"{c.elements:,}", f"{c.entries:,}", f"{c.entries / c.elements:.1e}",
            f"{c.disagreements:,}", _largest(c), MISSING if c.mean is None else f"{c.mean:.1e}",
        ]
        for c in used
    ]  # fmt: skip
    said = (
        '<p class="soft">A rounding is logged where it could go either way. "Settled the other way": the auditor alone '
        'would have rounded otherwise and took the trainer\'s decision. "Headroom": the largest divergence over the '
        'tolerance. It is seen only at those entries and is a lower bound; above one the entry is refused. "Mean": the '
        "divergence of an honest trainer, estimated from how many entries were settled the other way.</p>"
    )
    return _section("Rounding decisions", _table(head, rows, numbers={1, 2, 3, 4, 5, 6}) + said)


def _largest(c: ClassFact) -> str:
    if c.largest is None:
        return MISSING
    width = max(0.0, min(c.largest, 1.0)) * 100
    over = ' class="over"' if c.largest > 1 else ""
    return f'{c.largest:.6f}<span class="bar"><i{over} style="width:{width:.1f}%"></i></span>'


def environments(facts: Facts) -> str:
    """Return the settings of both sides in columns; rows that differ are marked."""
    columns = facts.environments
    if not columns:
        return _section("Both machines", f"<p>{MISSING}</p>")
    names = sorted({name for _, flat in columns for name in flat})[:_MOST_LISTED]
    rows, marks = [], []
    for name in names:
        values = [flat.get(name, "not set") for _, flat in columns]
        rows.append([escape(name, 80), *(escape(v, 200) for v in values)])
        marks.append(len(set(values)) > 1)
    order = sorted(range(len(rows)), key=lambda i: not marks[i])  # what differs comes first
    table = _table(
        ["setting", *(escape(whose, 60) for whose, _ in columns)], [rows[i] for i in order], [marks[i] for i in order]
    )
    said = f"{sum(marks)} of {len(marks)} settings differ. Informative: neither side's word on its machine decides."
    return _section("Both machines", f'{table}<p class="soft">{said}</p>')


def digests(facts: Facts, inputs: ReportInputs) -> str:
    """Return the digests that name spec, root, state and every record."""
    plain, run = facts.plain, inputs.run
    rows = []
    for name, means in (
        ("spec", "the agreed run"), ("root", "all leaves, as sealed"), ("state", "the final state, as sealed"),
        ("nonce", "what the auditor's sample was drawn with"),
    ):  # fmt: skip
        rows.append([name, means, f"<code>{escape(get_text(plain, name) or MISSING, 80)}</code>"])
    body = _table(["", "of", "value"], rows)
    if run is not None:
        shown = run.records[:_MOST_LISTED]
        cells = [[str(r.index), f"<code>{r.digest()}</code>", f"<code>{escape(r.root)}</code>"] for r in shown]
        table = _table(["segment", "record", "root of its leaves"], cells)
        body += f"<details><summary>records</summary>{table}{_more(len(run.records) - len(shown))}</details>"
        differing = [
            name for name, own in (("spec", run.spec.digest()), ("root", run.seal.root if run.seal else None))
            if get_text(plain, name) not in (None, own)
        ]  # fmt: skip
        if differing:
            body += (
                f"<p><b>The store now holds another {' and another '.join(differing)} than this verdict names.</b></p>"
            )
    return _section("Digests", body)


def commands(facts: Facts, inputs: ReportInputs) -> str:
    """Return the commands with which a reader comes to a verdict of their own."""
    run, store = shlex.quote(inputs.run_id), shlex.quote(inputs.store)
    chosen = "all" if facts.replayed == facts.total else _ranges(s.index for s in facts.segments)
    chosen = chosen if chosen and len(chosen) <= 500 else "all"
    found = get_map(get_map(facts.plain, "environment"), "variables").get("VT_PROFILE")
    profile = f" --profile {shlex.quote(found)}" if isinstance(found, str) and found.isalnum() else ""
    first = get_count(facts.divergence, "segment")
    lines = [
        ("What the store holds of this run:", f"vt show {run} --store {store}"),
        ("The same audit again:", f"vt audit {run} --store {store} --segments {chosen}{profile}"),
    ]
    if first is not None:
        lines.append(("Only the segment at fault:", f"vt audit {run} --store {store} --segments {first}{profile}"))
    else:
        lines.append(("A sample that only you draw:", f"vt audit {run} --store {store} --segments sample:3"))
    body = "".join(f"<p>{what}</p><pre>{escape(command, 2000)}</pre>" for what, command in lines)
    said = (
        '<p class="soft">You need this software, and your own copy of the job\'s code and data (<code>--data</code>); '
        "both are compared with the agreed digests. Exit code 0 is verified, 1 rejected, 2 inconclusive. Compare the "
        "root above with the one that the trainer gave you.</p>"
    )
    return _section("Check it yourself", body + said)


def _ranges(indexes: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for i in sorted(indexes):
        if parts and i == parts[-1][1] + 1:
            parts[-1][1] = i
        else:
            parts.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _time(stamp: str | None) -> str:
    if stamp is None or len(stamp) != 16:
        return stamp or MISSING
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]} UTC"


def _breakable(html: str) -> str:
    """Let a line break after the dots and colons of a long name."""
    return html.replace(".", ".<wbr>").replace(":", ":<wbr>")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _list(rows: Sequence[tuple[str, str]], kind: str = "") -> str:
    """Return a definition list; the values are HTML."""
    items = "".join(f"<div><dt>{name}</dt><dd>{html}</dd></div>" for name, html in rows)
    return f'<dl class="{kind}">{items}</dl>'


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[bool] = (), numbers: Iterable[int] = ()
) -> str:
    """Return a table of cells that are HTML already; ``marks`` are the rows that differ, ``numbers`` the columns."""
    kind = dict.fromkeys(numbers, ' class="n"')
    figures = ' class="figures"' if kind else ""
    heads = "".join(f'<th scope="col"{kind.get(i, "")}>{h}</th>' for i, h in enumerate(head))
    body = ""
    for n, row in enumerate(rows):
        cells = "".join(f"<td{kind.get(i, '')}>{cell}</td>" for i, cell in enumerate(row) if i)
        mark = ' class="differs"' if n < len(marks) and marks[n] else ""
        body += f'<tr{mark}><th scope="row">{row[0]}</th>{cells}</tr>'
    return f'<div class="scroll"><table{figures}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _more(count: int) -> str:
    return f'<p class="soft">and {count} more</p>' if count > 0 else ""
