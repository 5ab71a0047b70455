"""What passes between the game and its referee: requests, answers, and how a round or the game ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.dispute.messages import PARTIES, Role
from vt_core.dispute.rules import Fault, Ruling


@dataclass(frozen=True)
class Request:
    """What is asked: the kind of round, its terms, and which parties must answer."""

    kind: str
    ask: Mapping[str, Any]
    of: Sequence[Role] = PARTIES


@dataclass(frozen=True)
class Answer:
    """A party's properly signed answer; ``witness`` holds the bytes that came with it, checked against the body."""

    body: Mapping[str, Any]
    witness: bytes | None = None


@dataclass(frozen=True)
class Failure:
    """A party has no valid answer in this round: it loses."""

    fault: Fault
    why: str


Answers = Mapping[Role, Answer | Failure]


class Lost(Exception):
    """The party whose answer is being checked loses."""

    def __init__(self, fault: Fault, why: str) -> None:
        self.failure = Failure(fault, why)
        super().__init__(why)


class Over(Exception):
    """The game is decided."""

    def __init__(self, ruling: Ruling) -> None:
        self.ruling = ruling
        super().__init__(ruling.reason)
