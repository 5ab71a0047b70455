"""Reports that people can read: a verdict as one HTML file that opens from disk, without network and without scripts.

A report repeats a verdict and proves nothing by itself: it ends with the commands that do. The same verdict and
evidence give the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks import report_page as page
from tasks.report_facts import escape, get_text, read_facts
from tasks.report_inputs import ReportInputs, StepRow, collect, fetch_inputs, read_metrics, stored_verdict
from tasks.report_style import CSS
from vt_core.errors import SpecError

__all__ = [
    "ReportInputs", "StepRow", "check_target", "collect", "fetch_inputs", "read_metrics", "report_html",
    "stored_verdict", "write_report",
]  # fmt: skip

# Even if some markup from evidence came through, a browser would load nothing and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def report_html(verdict: Mapping[str, Any], run: ReportInputs) -> str:
    """Return the report on ``verdict`` as one self-contained HTML document.

    All text from evidence is escaped, parts that are missing or of another form read "not available", and long lists
    are cut. Raises EvidenceError ``evidence_malformed`` only for something that is no verdict at all.
    """
    facts = read_facts(verdict, run.run_id)
    parts = [
        page.header(facts, run), page.coverage(facts), page.divergence(facts), page.curves(facts, run),
        page.rounding(facts), page.environments(facts), page.digests(facts, run), page.commands(facts, run),
    ]  # fmt: skip
    stored = get_text(verdict, "stored_as")
    source = f"Verdict <code>{escape(stored)}</code> in {escape(run.store)}, " if stored else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{facts.result}: {escape(run.run_id, 100)}</title><style>{CSS}</style></head>\n"
        f"<body><main>{''.join(parts)}<footer>{source}by {escape(get_text(verdict, 'tool') or 'unknown tool', 100)}. "
        "This page repeats a verdict; it proves nothing by itself.</footer></main></body></html>\n"
    )


def check_target(path: Path) -> Path:
    """Return ``path`` if a report can be written there, so that a mistake is told before a long audit.

    Raises SpecError.
    """
    if path.is_dir() or not path.name:
        raise SpecError(f"the report {path} would replace a directory; give the name of a file")
    if not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise SpecError(f"the report {path} cannot be written: {path.absolute().parent} is not a writable directory")
    return path


def write_report(path: Path, verdict: Mapping[str, Any], run: ReportInputs) -> None:
    """Write the report on ``verdict`` to ``path``, whole or not at all. Raises OSError and what report_html raises."""
    data = report_html(verdict, run).encode()
    handle, draft = tempfile.mkstemp(prefix=".vt-report-", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
