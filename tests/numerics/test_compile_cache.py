"""The kernels work where nothing can be written: a read-only installation and no home directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import vt_core

PROGRAM = """
import torch, vt_core
from vt_core.numerics import Grid, round_plain_
assert vt_core.__file__.startswith({root!r}), vt_core.__file__
x = torch.tensor([1.0 + 2.0**-9], dtype=torch.float64)
round_plain_(x, Grid.parse("bfloat16"), False)
assert x.item() == 1.0
"""


def test_without_any_writable_cache_directory(tmp_path: Path) -> None:
    """A plain file where numba wants ``__pycache__`` and a home that is no directory stop even root."""
    source = Path(vt_core.__file__).parent
    root = tmp_path / "installed"
    shutil.copytree(source, root / "vt_core", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "vt_core" / "numerics" / "__pycache__").write_text("in the way")
    (tmp_path / "home").write_text("not a directory")
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
    }
    environment.pop("NUMBA_CACHE_DIR", None)
    program = PROGRAM.format(root=str(root))
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True, timeout=300)
    assert (root / "vt_core" / "numerics" / "__pycache__").read_text() == "in the way"
