"""Every error this library raises on purpose, in one small hierarchy.

A message says what happened, where, and what to do about it. Code that reads evidence raises
:class:`EvidenceError` (a finding about the trainer), never a bare ``ValueError``; everything else is a problem
of the caller's side and must never be turned into a verdict.
"""

from __future__ import annotations


class VtError(Exception):
    """Base of all errors raised on purpose."""


class SpecError(VtError):
    """The parameters or the run spec are not usable (a user's mistake)."""


class UnsupportedOperation(VtError):
    """The model uses an operation that has no form that is equal on all devices."""

    def __init__(self, op: str, module: str, why: str, remedy: str) -> None:
        self.op, self.module, self.why, self.remedy = op, module, why, remedy
        super().__init__(f"{op} in module {module!r}: {why}. {remedy}")


class PrecisionError(VtError):
    """A tensor left the compute precision (a hard-coded ``.float()``), so exact replay cannot be promised."""


class OffGridError(VtError):
    """State does not lie on the grid at the end of a step: an operation wrote it unseen."""


MAX_MESSAGE = 2000
"""Characters of an :class:`EvidenceError`'s message that are kept: it may quote evidence, and goes into a verdict."""


class EvidenceError(VtError):
    """Evidence is malformed, missing or contradicts itself; ``reason`` is a reason code of the verdict.

    ``place`` says where: file, segment, step or tensor, as far as it is known.
    """

    def __init__(self, reason: str, message: str, **place: object) -> None:
        self.reason = reason
        self.place: dict[str, object] = {k: v for k, v in place.items() if v is not None}
        super().__init__(message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…")


class StoreError(VtError):
    """The store could not be read or written (after retries)."""


class NotFound(StoreError):
    """No object of that name is in the store."""


class AlreadyExists(StoreError):
    """A commitment of that name exists already and was not overwritten."""
