"""Honest work under another CPU profile, which needs a process of its own.

``python -m bench.lying_log.child plain CASE STEPS FOLDER DTYPE OUT`` trains without the engine from the honest run's
first checkpoint; ``... audit CASE STEPS FOLDER OUT`` audits the honest run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.lying_log.cases import Case, known, with_steps
from bench.lying_log.runs import Published, audit
from bench.plain import plain_steps
from vt_core.evidence.records import parse_segment
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.spec import COMPUTE


def main() -> None:
    """Do one part."""
    what, name, steps, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    case = with_steps(known(name), steps)
    if what == "plain":
        plain(case, name, folder, COMPUTE[sys.argv[5]], Path(sys.argv[6]))
    else:
        elsewhere(case, name, folder, Path(sys.argv[5]))


def plain(case: Case, name: str, folder: Path, dtype: torch.dtype, out: Path) -> None:
    """Train as everybody does, in ``dtype``, and save parameters and buffers to ``out``."""
    job, dataset, spec = case.open(folder)
    torch.set_default_dtype(dtype)
    model = job.build_model().train()
    start = load_checkpoint(folder / name / "segment-00000").tensors
    model.load_state_dict({n.split(".", 1)[1]: t for n, t in start.items() if n.startswith(("param.", "buffer."))})
    for _ in plain_steps(job, dataset, spec, model, dtype):
        pass
    tensors = {f"param.{n}": p.detach().clone() for n, p in model.named_parameters()}
    tensors |= {f"buffer.{n}": b.detach().clone() for n, b in model.named_buffers()}
    save_file(tensors, out)


def elsewhere(case: Case, name: str, folder: Path, out: Path) -> None:
    """Audit the honest run and write reasons and counts to ``out``."""
    job, dataset, spec = case.open(folder)
    run = Published(folder / name)
    for path in sorted(run.folder.glob("[0-9]*.json")):
        run.records.append(parse_segment(path.read_bytes(), path.name))
    results, counts = audit(spec, job, dataset, run)
    out.write_text(json.dumps({"reasons": [r.reason for r in results], "counts": counts}), encoding="utf-8")


if __name__ == "__main__":
    main()
