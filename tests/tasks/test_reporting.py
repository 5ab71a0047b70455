"""Reports: everything a reader needs, nothing that evidence could smuggle in, bounded, and the same bytes each time."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tasks.auditing import Auditor
from tasks.params import Params
from tasks.report_facts import MISSING, escape, read_facts, sentence
from tasks.report_figures import MOST_CELLS, MOST_POINTS, decimate, log_curve, loss_curve
from tasks.report_page import NOTHING_LOGGED
from tasks.reporting import (
    ReportInputs,
    StepRow,
    check_target,
    collect,
    fetch_inputs,
    read_metrics,
    report_html,
    stored_verdict,
    write_report,
)
from tasks.runs import RunStore
from tasks.store import open_store
from tasks.training import Trainer
from vt_core.errors import EvidenceError, NotFound, SpecError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.training.segment import METRICS
from vt_core.verify.limits import AuditorLimits

HOSTILE = "</style></code>\"'><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202egnp"
_TAGS = """html head meta title style body main header section footer h1 h2 p span b i dl div dt dd ol ul li table thead
tbody tr th td code pre figure figcaption details summary wbr svg g path defs clippath rect text use"""
ALLOWED = set(_TAGS.split())
VOID = {"meta", "wbr"}


class Page(HTMLParser):
    """Reads a page as a browser would: elements, attributes, text; notes what does not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.cells: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "li" and dict(attrs).get("class"):
            self.cells.append(str(dict(attrs)["class"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def check_page(html: str) -> Page:
    """Return the page after checking what holds for every report: well nested, no code, nothing from a network."""
    page = Page(html)
    assert not page.wrong and not page.open
    assert set(page.tags) <= ALLOWED, set(page.tags) - ALLOWED
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name not in ("src", "srcdoc", "action"), (tag, name, value)
        assert not name.endswith("href") or str(value).startswith("#"), (tag, name, value)
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    identities = [value for _, name, value in page.attributes if name == "id"]
    assert len(identities) == len(set(identities))
    return page


@dataclasses.dataclass
class Audited:
    run: RunStore
    verdict: dict[str, Any]
    inputs: ReportInputs
    html: str


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """A real run in a store, audited from it; the report is made while the auditor is open."""
    folder = tmp_path_factory.mktemp("report")
    params = Params(
        "vt_core.jobs.digits:DigitsJob", {"batch_size": 32, "width": 4}, None,
        {"seed": 3, "steps": 6, "segment_steps": 2}, str(folder / "store"),
    )  # fmt: skip
    job, dataset = params.open_job()
    run = RunStore(open_store(str(folder / "store"), create=True), "first")
    trainer = Trainer(run, folder / "train", params.spec(job, dataset), job, dataset)
    with trainer.open():
        for index in range(trainer.begin(), trainer.published.segment_count):
            trainer.publish(trainer.train(index))
        trainer.seal()
    auditor = Auditor(run, folder / "audit", AuditorLimits.default())
    with auditor.open():
        verdict = auditor.conclude([auditor.replay(i) for i in auditor.prepare("0,1,3")])
        inputs = auditor.report_inputs(verdict)
    return Audited(run, verdict, inputs, report_html(verdict, inputs))


REJECTED: dict[str, Any] = {
    "format": "vt-verdict/1", "run_id": "r", "verdict": "rejected", "reason": "log_implausible", "message": "an entry",
    "coverage": {"replayed": 2, "total": 4}, "detection_probability": {"1_bad": "0.5000", "2_bad": "0.8333"},
    "segments": [
        {"index": 1, "first_step": 1, "last_step": 2, "result": "verified", "reason": None, "message": "m"},
        {"index": 2, "first_step": 3, "last_step": 4, "result": "rejected", "reason": "log_implausible"},
    ],
    "first_divergence": {
        "segment": 2, "step": 4, "op": "aten.mm", "module": "head", "element": 7, "trainer_value": (1.5).hex(),
        "auditor_value": (1.25).hex(), "distance": (40.5).hex(), "tensors": ["param.head.weight"],
    },
    "counts": {"contraction": {"elements": 10, "entries": 2, "disagreements": 1, "max_distance": "0.500000"}},
    "environment": {"machine": "x86_64", "threads": 1, "libraries": {"torch": "2.13.0"}},
    "trainer_environments": {"from_segment_0": {"machine": "aarch64", "threads": 1, "libraries": {"torch": "2.13.0"}}},
}  # fmt: skip
NOTHING = ReportInputs("r", "file:///store", None)


def test_a_verified_run_is_told_in_full(audited):
    page, verdict = check_page(audited.html), audited.verdict
    assert verdict["verdict"] == "verified"
    assert "Verified: 3 of 4 segments of this run replayed to exactly the published bits" in page.text
    assert page.cells == ["verified", "verified", "none", "verified"]
    assert "3 of 4" in page.text and "75.0%" in page.text, "coverage and the chance to meet one bad segment"
    assert page.tags.count("svg") == 2 and MISSING not in page.text
    for name, n in verdict["counts"].items():
        assert not n["elements"], f"{name}: the default spec leaves nothing to a log"
    assert NOTHING_LOGGED in page.text
    for digest in (
        verdict["spec"],
        verdict["root"],
        verdict["state"],
        *(r.digest() for r in audited.inputs.run.records),
    ):
        assert digest in page.text
    assert f"vt audit first --store {audited.run.store.url} --segments 0-1,3" in page.text
    assert verdict["environment"]["processor"] in page.text and "0 of " in page.text, "no setting differs here"
    assert [r.step for r in audited.inputs.rows] == [0, 1, 2, 5, 6]


def test_a_log_is_told_per_class():
    verdict = dict(REJECTED, counts={"contraction": {"elements": 1234567, "entries": 2345, "disagreements": 6}})
    text = check_page(report_html(verdict, NOTHING)).text
    assert all(part in text for part in ("contraction", "1,234,567", "2,345")) and NOTHING_LOGGED not in text
    assert NOTHING_LOGGED not in check_page(report_html(dict(REJECTED, counts={}), NOTHING)).text, "nobody knows"


def test_a_finding_is_told_with_both_values():
    page = check_page(report_html(REJECTED, NOTHING))
    says = "no honest machine can have made, in segment 2 at step 4 in aten.mm of module head."
    assert says in page.text
    for part in ("40.5 tolerances", "1.25", "1.5", "param.head.weight", "aarch64", "1 of 3 settings differ"):
        assert part in page.text, part
    assert page.cells == ["none", "verified", "rejected", "none"]
    assert page.text.count(MISSING) >= 2, "no curves without metrics"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "verified", "coverage": {"total": 3}}, "Verified: 2 of 3 segments"),
        ({"verdict": "inconclusive", "reason": "not_sealed", "first_divergence": None}, "Inconclusive: everything"),
        ({"segments": [], "coverage": {"total": 0}, "first_divergence": None}, "No segment was replayed"),
        ({"reason": "of tomorrow", "first_divergence": None}, "Rejected: the evidence or the training is not"),
    ],
)
def test_every_kind_of_verdict_has_its_sentence(change, says):
    assert says in check_page(report_html({**REJECTED, **change}, NOTHING)).text


def test_a_store_that_came_to_hold_another_run_is_told(audited):
    says = "now holds another root than this verdict names"
    assert says in check_page(report_html({**audited.verdict, "root": "0" * 64}, audited.inputs)).text
    assert says not in Page(audited.html).text


def test_headroom_is_shown_and_explained():
    counts = {"elements": 10, "entries": 8, "disagreements": 3, "max_distance": "0.031250"}
    counts |= {"decisions": 8, "flipped": 3}

    def page(**change: Any) -> Page:
        return check_page(report_html({**REJECTED, "counts": {"contraction": {**counts, **change}}}, NOTHING))

    for word in ("0.031250", "7.5e-01", "lower bound"):
        assert word in page().text
    for change in ({"decisions": 0}, {"flipped": None}, {"decisions": "8"}):
        found = page(**change).text
        assert "0.031250" in found and "7.5e-01" not in found, change


def hostile(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            (k if k in KEPT else f"{k}{HOSTILE}"): (v if k in ("verdict", "result") else hostile(v))
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


KEPT = set(REJECTED) | set(REJECTED["first_divergence"]) | {"total", "index", "result", "elements", "entries"}
KEPT |= {"first_step", "last_step", "disagreements", "max_distance", "libraries", "tool", "stored_as", "replayed"}


def test_text_from_evidence_stays_text(audited):
    verdict = hostile({**REJECTED, "tool": "x", "stored_as": "x", "nonce": "x", "spec": "x", "root": "x"})
    inputs = dataclasses.replace(audited.inputs, run_id=HOSTILE, store=HOSTILE, notes=(HOSTILE,))
    html = report_html(verdict, inputs)
    page = check_page(html)
    assert "document.title='owned'" in page.text, "it is shown as what it is"
    assert "\u202e" not in html and "\\u202e" in page.text, "and cannot turn the direction of what follows"
    assert "<script" not in html and "onerror=" not in html.replace("onerror=alert(1)&gt;", "")


@pytest.mark.parametrize(
    "wreck",
    [
        {"segments": "all"}, {"segments": [1, None, {"index": "0"}, {"index": -1, "result": "verified"}]},
        {"coverage": []}, {"coverage": {"total": -5}}, {"coverage": {"total": 1.5}}, {"counts": {"mm": 3}},
        {"counts": {"mm": {"elements": True, "entries": 1, "disagreements": 0}}}, {"first_divergence": [1]},
        {"first_divergence": {"segment": "x", "distance": "0x1p99999", "trainer_value": "NaN", "tensors": [{}]}},
        {"environment": "linux", "trainer_environments": {"a": 3}}, {"detection_probability": {"1_bad": "7"}},
        {"message": None, "time": 5, "reason": {}},
    ],
)  # fmt: skip
def test_parts_of_another_form_do_not_break_a_report(wreck):
    page = check_page(report_html({**REJECTED, **wreck}, NOTHING))
    assert page.text.count("Rejected") == 1


def test_what_is_no_verdict_makes_no_report():
    for nothing in ({}, {"verdict": "maybe"}, [], None, {"verdict": ["verified"]}):
        with pytest.raises(EvidenceError, match="no verdict"):
            report_html(nothing, NOTHING)


def rows(first: int = 1, last: int = 2, **change: Any) -> bytes:
    row = {"loss": (0.5).hex(), "log_bytes": 9, "fingerprint_bytes": 4, "operations": 3}
    return dumps(
        {"steps": [{"step": s, **row, **change} for s in range(first, last + 1)], "counts": {}, "seconds": "0x0p0"}
    )


def test_metrics_are_read_strictly():
    assert read_metrics(rows(), 1, 2) == [StepRow(1, 0.5, 9, 4), StepRow(2, 0.5, 9, 4)]
    assert math.isnan(read_metrics(rows(loss="nan"), 1, 2)[0].loss)
    bad = [
        b"", b"[]", b"{}", b'{"steps":{}}', rows(1, 3), rows(2, 3), rows(1, 1), rows(loss=0.5), rows(loss="0.5"),
        rows(log_bytes=-1), rows(log_bytes="9"), rows(fingerprint_bytes=0.5), rows(operations=True), rows(extra=1),
        rows() + b" ", b'{"steps":[1,2]}', b"\xff", rows(step=True),
    ]  # fmt: skip
    for data in bad:
        with pytest.raises(EvidenceError):
            read_metrics(data, 1, 2)


@pytest.mark.parametrize("kind", ["changed", "malformed", "absent", "link", "not fetched"])
def test_metrics_that_are_not_the_committed_ones_leave_a_note(audited, tmp_path, kind):
    run = audited.inputs.run
    record = run.records[1]
    good = rows(record.first_step, record.last_step)
    better = rows(record.first_step, record.last_step, loss=(0.25).hex())  # well formed, but not what was committed
    data = {"changed": better, "malformed": b'{"steps":[]}'}.get(kind, good)
    promised = data if kind == "malformed" else good
    entry = {"sha256": sha256_bytes(promised), "size": len(promised)}
    changed = dataclasses.replace(record, files={**record.files, METRICS: entry})
    run = dataclasses.replace(run, records=[run.records[0], changed])
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(good)
        (tmp_path / METRICS).symlink_to(tmp_path / "elsewhere")
    elif kind != "absent":
        (tmp_path / METRICS).write_bytes(data)
    folders = {} if kind == "not fetched" else {1: tmp_path}
    inputs = collect("first", "file:///store", run, [1], folders, {})
    assert not inputs.rows and len(inputs.notes) == 1
    page = check_page(report_html(REJECTED, inputs))
    assert "curves of segment 1 are not available" in page.text and "svg" not in page.tags


def test_an_intact_file_is_used(audited, tmp_path):
    run = audited.inputs.run
    record = run.records[1]
    data = rows(record.first_step, record.last_step)
    entry = {"sha256": sha256_bytes(data), "size": len(data)}
    run = dataclasses.replace(run, records=[dataclasses.replace(record, files={**record.files, METRICS: entry})])
    (tmp_path / METRICS).write_bytes(data)
    assert [r.loss for r in collect("first", "s", run, [0], {0: tmp_path}, {}).rows] == [0.5, 0.5]


def test_curves_keep_their_peaks_and_gaps():
    steps = list(range(50_000))
    values = [float(s % 7) for s in steps]
    values[31_111], values[4_444] = 999.0, -999.0
    x, y = decimate(steps, values)
    assert len(x) == len(y) <= MOST_POINTS and x == sorted(x)
    assert max(y) == 999.0 and min(y) == -999.0
    _, y = decimate(steps, [math.nan if 20_000 < s < 30_000 else 1.0 for s in steps])
    assert any(math.isnan(v) for v in y) and any(v == 1.0 for v in y)
    assert decimate([1, 2], [3.0, 4.0]) == ([1, 2], [3.0, 4.0])
    nothing = [StepRow(1, math.nan, 0, 0), StepRow(2, math.inf, 0, 0), StepRow(3, 1e308, 0, 0)]
    assert loss_curve(nothing, None) is None and loss_curve([], 3) is None and log_curve([], None) is None
    # Two runs of steps apart: the line must begin anew.
    apart = loss_curve([StepRow(s, 1.0, 1, 1) for s in (*range(1, 100), *range(900, 999))], None)
    joined = loss_curve([StepRow(s, 1.0, 1, 1) for s in range(1, 999)], None)
    assert line(apart).count("M ") == 2 and line(joined).count("M ") == 1


def line(svg: str) -> str:
    """Return the path of the curve itself."""
    found = re.search(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--ok\)', svg)
    assert found is not None
    return found[1]


def test_huge_runs_make_small_pages_quickly():
    many = [{"index": i, "result": "rejected" if i == 77_777 else "verified"} for i in range(100_000)]
    verdict = {
        **REJECTED, "coverage": {"total": 2**53}, "segments": many,
        "counts": {f"c{i}": {"elements": 1, "entries": 1, "disagreements": 0} for i in range(5000)},
        "environment": {f"k{i}": "v" * 10_000 for i in range(5000)}, "message": "m" * 10**6,
        "first_divergence": {"segment": 77_777, "tensors": ["t" * 1000] * 100_000},
    }  # fmt: skip
    inputs = dataclasses.replace(NOTHING, rows=tuple(StepRow(s, 1 / (s + 1), s, s) for s in range(200_000)))
    began = time.perf_counter()
    html = report_html(verdict, dataclasses.replace(inputs, notes=("n" * 10_000,) * 10_000))
    assert time.perf_counter() - began < 30
    assert len(html) < 1_500_000
    page = check_page(html)
    assert len(page.cells) == MOST_CELLS and page.cells[0] == "rejected", "the worst of a cell is what is seen"


def test_the_same_verdict_gives_the_same_bytes(audited, tmp_path):
    """Also from the store alone, in another process with another hash seed, and without the checkpoints."""
    remote = tmp_path / "store"
    shutil.copytree(Path(audited.run.store.dvc_remote().url).parent, remote)
    checkpoints = {r.files["checkpoint.safetensors"]["sha256"] for r in audited.inputs.run.records}
    gone = [p for p in remote.rglob("*") if p.is_file() and sha256_bytes(p.read_bytes()) in checkpoints]
    for path in gone:
        path.unlink()
    assert gone, "the checkpoints are where this test looks for them"
    program = (
        "import sys; from pathlib import Path; from tasks.reporting import *; from tasks.runs import RunStore\n"
        "from tasks.store import open_store\n"
        "run = RunStore(open_store(sys.argv[1]), 'first'); verdict = stored_verdict(run)\n"
        "inputs = fetch_inputs(run, [s['index'] for s in verdict['segments']], Path(sys.argv[2]))\n"
        "write_report(Path(sys.argv[3]), verdict, inputs)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(remote), str(tmp_path / "work"), str(tmp_path / "r.html")],
        cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": "7"}, check=True,
    )  # fmt: skip
    again = (tmp_path / "r.html").read_text(encoding="utf-8").replace(remote.as_uri(), audited.run.store.url)
    assert again == audited.html
    assert not list((tmp_path / "work").iterdir()), "what was fetched is removed again"


def test_a_stored_verdict_is_found_and_checked(audited, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(Path(audited.run.store.dvc_remote().url).parent, copy)
    run = RunStore(open_store(str(copy)), "first")
    short = audited.verdict["stored_as"].rpartition("/")[2]
    for name in (None, audited.verdict["stored_as"], short, short.removesuffix(".json")):
        assert stored_verdict(run, name) == audited.verdict
    with pytest.raises(NotFound, match=short):
        stored_verdict(run, "20000101T000000Z-0")
    path = copy / "verdicts" / audited.verdict["stored_as"]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"verified"', b'"rejected"'))
    with pytest.raises(EvidenceError, match="changed after it was stored"):
        stored_verdict(run)
    (copy / "commitments/runs/first/spec.json").unlink()
    inputs = fetch_inputs(run, [0], tmp_path / "work")
    assert inputs.run is None and "do not hold together" in check_page(report_html(REJECTED, inputs)).text


def test_a_place_that_cannot_be_written_is_told_before(tmp_path):
    for path in (tmp_path, tmp_path / "absent" / "r.html", Path(".")):
        with pytest.raises(SpecError, match="report"):
            check_target(path)
    assert check_target(tmp_path / "r.html") == tmp_path / "r.html"
    (tmp_path / "r.html").write_text("old")
    with pytest.raises(EvidenceError):
        write_report(tmp_path / "r.html", {}, NOTHING)
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"] and (tmp_path / "r.html").read_text() == "old"


def test_escape_spells_out_what_would_not_be_seen():
    assert escape("a<b>&\"'\x00\u202e\ufeff") == "a&lt;b&gt;&amp;&quot;&#x27;\\u0000\\u202e\\ufeff"
    assert escape("x" * 50, 10) == "x" * 9 + "…"
    assert "<" not in sentence(read_facts({**REJECTED, "first_divergence": None}, "r"))


# In a browser ---------------------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (Debian: apt install chromium)")


def browse(html: str, folder: Path, *arguments: str) -> bytes:
    page = folder / "report ü.html"
    page.write_text(html, encoding="utf-8")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=2000",
    ]  # fmt: skip
    done = subprocess.run(
        [str(CHROMIUM), *flags, *arguments, page.as_uri()], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout


@in_browser
def test_a_browser_shows_the_verdict_and_runs_nothing(tmp_path):
    verdict = hostile({**REJECTED, "tool": "x"}) | {"reason": "log_implausible"}
    tree = browse(report_html(verdict, dataclasses.replace(NOTHING, run_id=HOSTILE)), tmp_path, "--dump-dom").decode()
    page = check_page(tree)
    assert "Rejected: the rounding log holds an entry that no honest machine can have made" in page.text
    assert re.search(r"<title>rejected: [^<]*</title>", tree), "no script changed the title"


@in_browser
def test_a_browser_draws_it(audited, tmp_path):
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    browse(audited.html, tmp_path, f"--screenshot={picture}", "--window-size=900,1400")
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    assert pixels.shape[:2] == (1400, 900)
    colours = {tuple(c) for c in pixels[::3, ::3].reshape(-1, 3).tolist()}
    assert len(colours) > 20, "not blank"
    blue = (abs(pixels - [0x00, 0x72, 0xB2]).sum(axis=2) < 12).sum()
    assert blue > 3000, "the badge, the strip and the curves are there in the colour of 'verified'"
