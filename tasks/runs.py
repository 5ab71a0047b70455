"""A run in the store: names of its objects, reading and publishing its commitments and artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore, Pointer
from tasks.store import Store
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, SpecError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.judgement import sign_verdict
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.records import Commitments, Seal, SegmentRecord, parse_segment
from vt_core.evidence.signatures import AGREEMENT, MODEL, NOTE

MAX_RUN_BYTES = 1 << 30
"""Bytes of all segment records of a run together, which are in memory at once."""
_GROUP = 16

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run_id(run_id: str) -> str:
    """Return a valid run id; SpecError otherwise."""
    if not _RUN_ID.fullmatch(run_id):
        raise SpecError(f"run id {run_id!r}: use letters, digits, '.', '_' and '-', starting with a letter or digit")
    return run_id


def is_run_id(text: str) -> bool:
    """Tell whether :func:`check_run_id` accepts ``text``."""
    return _RUN_ID.fullmatch(text) is not None


def segment_folder(index: int) -> str:
    """Return the name of a segment's artifact folder."""
    return f"segment-{index:05d}"


class RunStore:
    """One run in one store."""

    def __init__(self, store: Store, run_id: str) -> None:
        """Name a run; nothing is read yet."""
        self.store, self.run_id = store, check_run_id(run_id)
        self._base = f"runs/{self.run_id}"

    def commitments(self) -> Commitments:
        """Read all commitments. Raises NotFound if the run does not exist, StoreError for the store's troubles."""
        names = set(self.store.commitments.list(f"{self._base}/"))
        if not names:
            raise NotFound(f"there is no run {self.run_id!r} in {self.store.url}; 'vt show' lists the runs")
        wanted: list[str] = []
        while self._segment(len(wanted)) in names:
            wanted.append(self._segment(len(wanted)))
        with ThreadPoolExecutor(max_workers=16) as pool:  # hundreds of small objects: the time goes into waiting
            segments = self._read_all(pool, wanted)
        spec, seal, agreement, note, model = (
            self._read(name) if name in names else None
            for name in (f"{self._base}/{file}" for file in ("spec.json", "seal.json", AGREEMENT, NOTE, MODEL))
        )
        return Commitments(self.run_id, spec, segments, seal, agreement, note, model)

    def published(self) -> list[SegmentRecord]:
        """Return the records of the segments published so far, in order."""
        try:
            segments = self.commitments().segments
        except NotFound:
            return []
        return [parse_segment(data, self._segment(index)) for index, data in enumerate(segments)]

    def spec(self) -> bytes | None:
        """Return the published spec, None if there is none."""
        try:
            return self._read(f"{self._base}/spec.json")
        except NotFound:
            return None

    def seal(self) -> bytes | None:
        """Return the published seal, None if there is none."""
        try:
            return self._read(f"{self._base}/seal.json")
        except NotFound:
            return None

    def versions(self) -> dict[str, str]:
        """Return the store's version ids of spec and seal as they were read: what a verdict rests on."""
        names = {name: self.store.commitments.version(f"{self._base}/{name}") for name in ("spec.json", "seal.json")}
        return {name: version for name, version in names.items() if version is not None}

    def publish_spec(self, data: bytes) -> None:
        """Publish the spec, or check that the one published is the same. Raises SpecError if another is there."""
        self._create_same(f"{self._base}/spec.json", data, "was started with other parameters")

    def publish_agreement(self, data: bytes) -> None:
        """Publish the parties' envelope over the spec. Raises SpecError if another one is there."""
        self._create_same(f"{self._base}/{AGREEMENT}", data, "was started under an agreement with other signatures")

    def publish_segment(self, record: SegmentRecord) -> None:
        """Commit to a segment. Raises SpecError if another trainer has published another segment in its place."""
        self._create_same(self._segment(record.index), record.to_bytes(), f"has another segment {record.index} already")

    def publish_seal(self, seal: Seal) -> None:
        """Seal the run."""
        self._create_same(f"{self._base}/seal.json", seal.to_bytes(), "was sealed with another result")

    def publish_signatures(self, note: bytes, model: bytes) -> None:
        """Publish the signed checkpoint over the seal and the model's attestation. Raises SpecError for others."""
        self._create_same(f"{self._base}/{NOTE}", note, "is signed by another key already")
        self._create_same(f"{self._base}/{MODEL}", model, "has another model attestation already")

    def publish_verdict(self, verdict: Mapping[str, Any], stamp: str, key: SignerKey | None = None) -> str:
        """Store a verdict under the time it was given and its digest; returns its name. ``key`` signs it."""
        data = dumps(verdict)
        name = f"{self._base}/{stamp}-{sha256_bytes(data)[:16]}.json"
        with suppress(AlreadyExists):  # the same bytes: the name holds their digest
            self.store.verdicts.create(name, data)
        if key is not None:
            with suppress(AlreadyExists):
                self.store.verdicts.create(signature_name(name), sign_verdict(name.rpartition("/")[2], data, [key]))
        return name

    def verdicts(self) -> list[str]:
        """Return the names of the verdicts, oldest first."""
        return [name for name in self.store.verdicts.list(f"{self._base}/") if is_verdict_name(name)]

    def verdict_signature(self, name: str) -> bytes | None:
        """Return the envelope over one of the run's verdicts, None if nobody has signed it."""
        try:
            return self.store.verdicts.read(signature_name(name))
        except NotFound:
            return None

    def verdict(self, name: str) -> bytes:
        """Return the bytes of one of the run's verdicts."""
        return self.store.verdicts.read(name)

    def _segment(self, index: int) -> str:
        return f"{self._base}/segments/{index:05d}.json"

    def _read(self, name: str) -> bytes:
        return self.store.commitments.read(name)

    def _read_all(self, pool: ThreadPoolExecutor, names: list[str]) -> list[bytes]:
        """Read objects that may have MAX_RUN_BYTES together, in groups, so that not much more is ever in memory."""
        found: list[bytes] = []
        total = 0
        for start in range(0, len(names), _GROUP):
            group = list(pool.map(self._read, names[start : start + _GROUP]))
            total += sum(map(len, group))
            if total > MAX_RUN_BYTES:
                raise EvidenceError("evidence_malformed", f"the segment records have more than {MAX_RUN_BYTES} bytes")
            found += group
        return found

    def _create_same(self, name: str, data: bytes, otherwise: str) -> None:
        try:
            self.store.commitments.create(name, data)
        except AlreadyExists:
            if self._read(name) != data:
                raise SpecError(
                    f"run {self.run_id!r} in {self.store.url} {otherwise}. Choose another --run-id, or give the "
                    f"parameters it was started with."
                ) from None


def is_verdict_name(name: str) -> bool:
    """Tell a verdict's name from that of a signature beside it."""
    return name.endswith(".json")


def signature_name(name: str) -> str:
    """Return where the signature of a verdict lies."""
    return f"{name.removesuffix('.json')}.dsse"


def list_runs(store: Store) -> list[str]:
    """Return the ids of all runs in a store, sorted; a folder that has no run's name is none."""
    named = {name.split("/")[1] for name in store.commitments.list("runs/") if name.count("/") >= 2}
    return sorted(filter(is_run_id, named))


def fetch_segments(
    artifacts: ArtifactStore, workspace: Path, records: Iterable[SegmentRecord], prefix: str, only: str | None = None
) -> tuple[dict[int, Path], dict[int, EvidenceError]]:
    """Fetch the artifacts of segments into ``workspace/prefix`` in one pull; what is bad is fetched around.

    With ``only``, just the file of that name of each segment.

    Returns the folder of each segment that arrived, and the error of each that did not. Raises StoreError if the
    store itself cannot be reached.
    """
    errors: dict[int, EvidenceError] = {}
    wanted: dict[int, Pointer] = {}
    for record in records:
        try:
            wanted[record.index] = Pointer.from_json(dict(record.pointer))
        except EvidenceError as error:
            errors[record.index] = error
    paths = {index: f"{prefix}/{segment_folder(index)}" for index in wanted}
    try:
        artifacts.fetch({paths[i]: pointer for i, pointer in wanted.items()}, only=only)
    except EvidenceError:
        for index, pointer in wanted.items():  # one is bad: find out which
            try:
                artifacts.fetch({paths[index]: pointer}, only=only)
            except EvidenceError as error:
                errors[index] = error
    return {i: workspace / path for i, path in paths.items() if i not in errors}, errors
