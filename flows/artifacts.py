"""What Prefect's pages show of an audit: progress while it replays, then the verdict and a table of segments.

Artifacts are for people who look. An audit must come to the same verdict with a server that refuses them, so each
failure is logged and nothing more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging import get_logger

from tasks.report_facts import Facts, get_count, get_text, read_facts, sentence

T = TypeVar("T")
_MOST_ROWS = 500
_MARKS = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&])")


def artifact_key(kind: str, run_id: str) -> str:
    """Return a key of lower-case letters, digits and single dashes; run ids that only look alike get other keys."""
    name = re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")[:80].strip("-")
    if name != run_id:
        name = f"{name}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}".lstrip("-")
    return f"{kind}-{name}"


class AuditArtifacts:
    """The artifacts of one audit of ``run_id``; no method ever raises because of an artifact."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def progress(self, chosen: Sequence[int]) -> Iterator[int]:
        """Yield the chosen segments and show how many of them are done."""
        done = self.counting(len(chosen))
        for index in chosen:
            yield index
            done()

    def counting(self, total: int) -> Callable[[], None]:
        """Show that ``total`` segments are to be replayed; return what to call after each."""
        key = artifact_key("audit-progress", self._run_id)
        said = f"{total} segments of {self._run_id} to replay"
        artifact: Any = _quietly(lambda: create_progress_artifact(progress=0.0, key=key, description=said))
        finished = 0

        def done() -> None:
            nonlocal finished
            finished += 1
            if artifact is not None:
                _quietly(partial(update_progress_artifact, artifact, 100.0 * finished / total))

        return done

    def link(self, url: str, text: str) -> None:
        """Show where the stored verdict lies."""
        key = artifact_key("audit-verdict-link", self._run_id)
        _quietly(lambda: create_link_artifact(link=url, link_text=text, key=key))

    def conclude(self, verdict: Mapping[str, Any]) -> None:
        """Show the verdict as text and its segments as a table."""
        facts = _quietly(lambda: read_facts(verdict, self._run_id))
        if facts is None:
            return
        _quietly(
            lambda: create_markdown_artifact(
                key=artifact_key("audit-verdict", self._run_id),
                markdown=verdict_markdown(facts),
                description=facts.result,
            )
        )
        _quietly(
            lambda: create_table_artifact(
                key=artifact_key("audit-segments", self._run_id), table=segment_rows(facts),
                description=f"{facts.replayed} of {facts.total} segments of {self._run_id} replayed",
            )
        )  # fmt: skip


def verdict_markdown(facts: Facts) -> str:
    """Return verdict, coverage and divergence as markdown; text from evidence is escaped."""
    lines = [f"# {_plain(sentence(facts))}", "", _plain(facts.message), ""]
    lines.append(f"- run: {_plain(facts.run_id)}")
    if facts.reason is not None:
        lines.append(f"- reason: {_plain(facts.reason)}")
    lines.append(f"- replayed: {facts.replayed} of {facts.total} segments")
    for bad, chance in facts.chances:
        lines.append(f"- chance to meet a bad segment if {bad} were bad: {chance:.1%}")
    divergence = facts.divergence
    for key in ("segment", "step", "site", "element"):
        if get_count(divergence, key) is not None:
            lines.append(f"- first divergence, {key}: {get_count(divergence, key)}")
    for key in ("op", "module", "trainer_value_text", "auditor_value_text", "distance_text"):
        if get_text(divergence, key):
            unit = " (in tolerances)" if key == "distance_text" else ""
            lines.append(f"- {key.removesuffix('_text').replace('_', ' ')}: {_plain(divergence[key])}{unit}")
    return "\n".join(lines) + "\n"


def segment_rows(facts: Facts) -> list[dict[str, Any]]:
    """Return one row a replayed segment, those at fault first if not all can be shown."""
    shown = sorted(facts.segments, key=lambda s: (s.result == "verified", s.index))[:_MOST_ROWS]
    return [
        {
            "segment": s.index,
            "steps": "" if s.steps is None else f"{s.steps[0]} to {s.steps[1]}",
            "result": s.result,
            "reason": (s.reason or "")[:100],
            "message": (s.message or "")[:500],
            "seconds": "" if s.seconds is None else f"{s.seconds:.1f}",
        }
        for s in sorted(shown, key=lambda s: s.index)
    ]


def _plain(text: object) -> str:
    """Return text that markdown shows as it is, on one line."""
    return _MARKS.sub(r"\\\1", " ".join(str(text)[:1000].split()))


def _quietly(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except Exception as error:
        get_logger("vt").warning("no artifact for Prefect's pages: %s", error)
        return None
