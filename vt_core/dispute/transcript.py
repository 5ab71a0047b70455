"""The files of a dispute: spec, seal, messages and witness, in a folder or in memory.

``spec.json``, ``seal.json`` and ``seal.note`` are copies of the run's commitments; ``NNNN-SENDER.json`` are the
envelopes of round NNNN, ``NNNN-SENDER.partKKK`` the parts of a witness. Nothing in a folder is believed: links are not
followed, sizes are limited before anything is read, and every file counts only by the digest that a signed message
gives it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vt_core.dispute.messages import Role
from vt_core.errors import EvidenceError, StoreError

SPEC, SEAL = "spec.json", "seal.json"


def part_name(number: int, sender: Role, part: int) -> str:
    """Return the name of one part of a witness."""
    return f"{number:04d}-{sender}.part{part:03d}"


class Files(Protocol):
    """Named byte strings."""

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the file ``name``, None if it is not there.

        Raises EvidenceError("evidence_malformed") if it has more than ``max_bytes`` or is no regular file.
        """


@dataclass
class MemoryFiles:
    """Files in memory."""

    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the file ``name``, None if it is not there. Raises EvidenceError if it is too large."""
        data = self.files.get(name)
        if data is not None and len(data) > max_bytes:
            raise EvidenceError("evidence_malformed", f"{name} has more than {max_bytes} bytes", file=name)
        return data


@dataclass(frozen=True)
class FolderFiles:
    """Files of a folder; links and other special files are refused."""

    folder: Path

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return the file ``name``, None if it is not there. Raises EvidenceError or StoreError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self.folder / name, flags), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise EvidenceError("evidence_malformed", f"{name} is no regular file", file=name)
                if found.st_size > max_bytes:
                    raise EvidenceError("evidence_malformed", f"{name} has more than {max_bytes} bytes", file=name)
                return file.read(max_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            if self.folder.joinpath(name).is_symlink():
                raise EvidenceError("evidence_malformed", f"{name} is a symbolic link", file=name) from error
            raise StoreError(f"cannot read {self.folder / name}: {error.strerror or error}") from error


def save(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a transcript into a folder that is new or empty. Raises StoreError."""
    check_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with open(folder / name, "xb") as file:
                file.write(data)
    except OSError as error:
        raise StoreError(f"cannot write the transcript to {folder}: {error.strerror or error}") from error


def check_target(folder: Path) -> None:
    """Raise StoreError unless a transcript can be written to ``folder``: it is new, or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is not empty: give another folder for the transcript")
