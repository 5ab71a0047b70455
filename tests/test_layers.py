"""Arrows between the packages go one way: flows -> tasks -> vt_core, and vt_core knows no Prefect, DVC or S3."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "vt_core": {"prefect", "dvc", "boto3", "botocore", "typer", "rich", "tasks", "flows"},
    "tasks": {"prefect", "typer", "rich", "flows"},
    "flows": {"boto3", "botocore", "dvc"},
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_follow_the_layers(package):
    for path in (ROOT / package).rglob("*.py"):
        assert not imported(path) & FORBIDDEN[package], path


def test_the_library_loads_none_of_the_operations_side():
    program = (
        "import pkgutil, importlib, sys, vt_core;"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(vt_core.__path__, 'vt_core.')];"
        "print(sorted({'prefect', 'dvc', 'boto3', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
