"""Coverage-guided fuzzing of one target: ``python tests/fuzz/fuzz_one.py NAME CORPUS [libFuzzer options]``.

``run.py`` starts one of these for each target. Real documents and what libFuzzer keeps lie in the folder CORPUS; an
input that ends in anything but EvidenceError is written beside it and ends the process.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
from pathlib import Path

import atheris

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1])]
sys.path += [str(_HERE.parent), str(_HERE)]

INSTRUMENTED = (
    "vt_core.evidence", "vt_core.dispute.messages", "vt_core.dispute.records", "vt_core.dispute.claims",
    "vt_core.dispute.views", "vt_core.engine.step_record", "vt_core.engine.rounding_log", "vt_core.engine.rice",
    "vt_core.training.checkpoint", "vt_core.training.leaves", "vt_core.training.spec", "vt_core.training.environment",
    "vt_core.verify.audit", "vt_core.verify.verdict", "tasks.dvc_objects", "tasks.replays", "tasks.coverage",
    "tasks.report_facts", "tasks.report_inputs", "tasks.report_page", "rfc8785",
)  # fmt: skip
"""Modules, or packages, whose branches guide the fuzzer; not the kernels, which are compiled from their byte code."""


def instrument() -> int:
    """Put atheris' counters into the functions of the modules above; returns how many functions they have.

    (Its import hook would instrument everything that these import, PyTorch and Numba's kernels too.)
    """
    count = 0
    for name, module in list(sys.modules.items()):
        if not any(name == wanted or name.startswith(f"{wanted}.") for wanted in INSTRUMENTED):
            continue
        classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == name]
        for member in [v for owner in (module, *classes) for v in vars(owner).values()]:
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if inspect.isfunction(function) and function.__module__ == name and hasattr(function, "__code__"):
                atheris.instrument_func(function)
                count += 1
    return count


def main() -> None:
    """Fuzz until libFuzzer has had its time; it ends the process."""
    name, corpus = sys.argv[1], Path(sys.argv[2])
    from fuzz_targets import targets

    from vt_core.errors import EvidenceError

    target = targets()[name]
    print(f"{instrument()} functions are instrumented", flush=True)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"real-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        with contextlib.suppress(EvidenceError):
            target.parse(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return target.mutate(rng, data)[:max_size]

    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
