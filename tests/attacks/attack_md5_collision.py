"""Two files with one MD5 address: DVC serves the other one, and all of its own checks pass.

The pair of blocks is the published one of Wang, Feng, Lai and Yu, "Collisions for Hash Functions MD4, MD5,
HAVAL-128 and RIPEMD" (2004, IACR ePrint 2004/199).
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Finding, Lab, Mounted, Place
from support.runs import artifacts, audit, copy_run, recommit

from tasks.artifacts import ArtifactStore
from tasks.dvc_objects import object_name
from tasks.store import open_store
from vt_core.training.segment import METRICS

SHOWN = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a"
    "085125e8f7cdc99fd91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
SERVED = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f8955ad340609f4b30283e4888325f1415a"
    "085125e8f7cdc99fd91dbd7280373c5bd8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70"
)


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def mount(lab: Lab) -> Mounted:
    assert md5(SHOWN) == md5(SERVED), "DVC's address is one and the same"
    trainer, auditor = lab.folder(), lab.folder()
    run = copy_run(lab.honest().folder, trainer / "run")
    (artifacts(run, SEGMENT) / METRICS).write_bytes(SHOWN)  # metrics are a report: the audit does not parse them
    recommit(run)
    before = Finding.of_verdict(audit(run))
    remote = open_store(str(lab.folder()), create=True).dvc_remote()
    with ArtifactStore(trainer, remote) as store:
        store.init()
        pointer = store.publish(artifacts(run, SEGMENT))
    held = Path(remote.url) / object_name(md5(SHOWN))
    held.chmod(0o644)
    held.write_bytes(SERVED)
    copy_run(run, auditor / "run")
    with ArtifactStore(auditor, remote) as store:
        store.init()
        store.fetch({"fetched": pointer})  # DVC finds nothing wrong
    (auditor / "fetched").replace(artifacts(auditor / "run", SEGMENT).with_name("new"))
    swap(artifacts(auditor / "run", SEGMENT))
    found = lab.compare(auditor / "run")
    return dataclasses.replace(found, honest=SHOWN.hex(), attacked=SERVED.hex(), control=before)


def swap(folder: Path) -> None:
    """Put the fetched folder in the place of the honest copy."""
    folder.rename(folder.with_name("old"))
    folder.with_name("new").rename(folder)


ATTACK = Attack(
    name="md5-collision",
    kind="evidence",
    does="publishes one file of an MD5-colliding pair and serves the other one from the same address",
    gain="changes an artifact although its DVC pointer stays the same",
    caught_by="evidence: SHA-256 of every file after it was fetched",
    reason="artifact_corrupt",
    place=Place(2, None, "metrics.json"),
    mount=mount,
)
