"""Putting a tolerance policy into a parameter file, whose comments and order stay as they are."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from vt_core.errors import SpecError
from vt_core.numerics import TolerancePolicy


def policy_yaml(policy: TolerancePolicy) -> str:
    """Return the policy as the value of ``train.policy``, on one line."""
    classes = []
    for name, exponents in policy.to_json().items():
        parts = (f"{key}: {'null' if n is None else n}" for key, n in exponents.items())
        classes.append(f"{name}: {{{', '.join(parts)}}}")
    return "{" + ", ".join(classes) + "}"


def write_policy(path: Path, policy: TolerancePolicy) -> None:
    """Set ``train.policy`` in the parameter file ``path``; everything else keeps its bytes.

    Raises SpecError, with the line to put there by hand, for a file whose ``train`` section is written in a way that
    cannot be edited line by line; the file is unchanged then.
    """
    path = path.resolve()  # a link stays one
    with open(path, encoding="utf-8", newline="") as file:  # line ends as they are
        text = file.read()
    before = yaml.safe_load(text)
    edited = _edit(text, policy_yaml(policy))
    after = None if edited is None else _parsed(edited)
    if edited is None or _without_policy(before) != _without_policy(after) or not _has(after, policy):
        raise SpecError(
            f"{path}: the section 'train' cannot be edited line by line. Put this into it yourself:\n"
            f"policy: {policy_yaml(policy)}"
        )
    draft = path.with_name(path.name + ".draft")
    with open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(edited)
    shutil.copymode(path, draft)
    os.replace(draft, path)


def _edit(text: str, value: str) -> str | None:
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if re.match(r"train:\s*(#.*)?$", line)), None)
    if start is None:
        return None
    end = next((i for i in range(start + 1, len(lines)) if re.match(r"[^\s#]", lines[i])), len(lines))
    for i in range(start + 1, end):
        found = re.match(r"(\s+)policy:(\s.*)?$", lines[i])
        if found is None:
            continue
        last = i + 1  # a value on several lines is indented further
        while last < end and re.match(rf"{found[1]}\s+\S", lines[last]):
            last += 1
        comment = re.search(r"\s#.*$", lines[i].rstrip("\r\n"))
        lines[i:last] = [f"{found[1]}policy: {value}{comment[0] if comment else ''}{_line_end(lines[start])}"]
        return "".join(lines)
    first = next((re.match(r"\s+", lines[i]) for i in range(start + 1, end) if re.match(r"\s+[^\s#]", lines[i])), None)
    if first is None:
        return None
    if not lines[end - 1].endswith("\n"):
        lines[end - 1] += _line_end(lines[start])
    lines.insert(start + 1, f"{first[0]}policy: {value}{_line_end(lines[start])}")
    return "".join(lines)


def _line_end(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def _has(plain: Any, policy: TolerancePolicy) -> bool:
    """Whether the policy is what a reader of the file gets: it may hold two of them."""
    return (
        isinstance(plain, dict)
        and isinstance(plain.get("train"), dict)
        and plain["train"].get("policy") == policy.to_json()
    )


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _without_policy(plain: Any) -> Any:
    if not isinstance(plain, dict) or not isinstance(plain.get("train"), dict):
        return None
    return {**plain, "train": {k: v for k, v in plain["train"].items() if k != "policy"}}
