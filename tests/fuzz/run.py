"""Long fuzzing, outside CI: ``python -m tests.fuzz.run --seconds 60`` fuzzes every parser for a minute, one by one.

The corpus is kept in ``--corpus`` (default ``.vt/fuzz``), so that a later run goes on where this one ended. Needs the
package ``atheris``. Exit code 1: an input was found, and its file is named; ``--repeat FILE`` runs just that one again.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_STATE = re.compile(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)")
MEMORY_MIB = 4096
INPUT_SECONDS = 20  # longer for one input is a finding
MAX_INPUT = 20_000


def names() -> list[str]:
    """Return the names of all targets, without loading what they need."""
    text = (_HERE / "test_parsers.py").read_text(encoding="utf-8")
    listed = re.search(r"^NAMES = \((.*?)\)", text, re.DOTALL | re.MULTILINE)
    assert listed is not None
    return re.findall(r'"([^"]+)"', listed[1])


def fuzz(name: str, corpus: Path, seconds: int, repeat: Path | None = None) -> tuple[int, str]:
    """Run one target; returns the exit code and what libFuzzer said."""
    found = corpus / "found"
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={INPUT_SECONDS}",
        f"-max_len={MAX_INPUT}", f"-artifact_prefix={found}/{name}-", "-print_final_stats=1",
    ]  # fmt: skip
    more = [str(repeat)] if repeat is not None else []
    done = subprocess.run(
        [sys.executable, str(_HERE / "fuzz_one.py"), name, str(corpus / name), *options, *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip
    return done.returncode, done.stdout


def main() -> int:
    """Fuzz the targets and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some of the targets; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--corpus", type=Path, default=Path(".vt") / "fuzz")
    parser.add_argument("--repeat", type=Path, help="run one target (give its name) on this file only")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("the package atheris is missing: pip install atheris", file=sys.stderr)
        return 3
    wrong = 0
    print("| target | runs | edges | features | corpus | found |\n|---|---:|---:|---:|---:|---|")
    for name in given.names or names():
        started = time.monotonic()
        code, said = fuzz(name, given.corpus.absolute(), given.seconds, given.repeat)
        state = _STATE.findall(said)
        runs, edges, features, kept = state[-1] if state else ("0", "?", "?", "?")
        written = re.findall(r"Test unit written to (\S+)", said)
        ended = written[0] if written else ("" if code == 0 else f"exit code {code}")
        print(f"| {name} | {int(runs):,} | {edges} | {features} | {kept} | {ended} |", flush=True)
        if code:
            wrong += 1
            print(f"\n{said[-4000:]}\n(after {time.monotonic() - started:.0f} s)\n", file=sys.stderr, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
