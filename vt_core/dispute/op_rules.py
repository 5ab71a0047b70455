"""The rules of the game for real op records: how they end, what they use, and the judge of one operation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from vt_core.dispute.inputs import Exhibit, parse_exhibit
from vt_core.dispute.judge import Case, Finding, judge_record, record_uses, step_end
from vt_core.dispute.messages import Role
from vt_core.dispute.rules import Fault, Need, Question, Ruling, StepEnd
from vt_core.dispute.witness import parse_witness
from vt_core.errors import EvidenceError
from vt_core.training.spec import RunSpec


@dataclass(frozen=True)
class OpRules:
    """Rules for the records of a run of this spec."""

    spec: RunSpec

    def end(self, record: bytes) -> StepEnd:
        """Read the last record of a step. Raises EvidenceError."""
        return step_end(record)

    def uses(self, record: bytes, index: int) -> Sequence[int]:
        """Return the indexes of the earlier records that the judge needs. Raises EvidenceError."""
        return record_uses(record, index)

    def judge(self, question: Question) -> Ruling | Need:
        """Rule on one record, by recomputing its operation on this machine's CPU or by what was agreed on before."""
        exhibits: dict[Role, Exhibit] = {}
        for role, data in (question.exhibits or {}).items():
            with suppress(EvidenceError):  # what does not parse shows nothing
                exhibits[role] = parse_exhibit(data)
        case = Case(
            spec=self.spec,
            step=question.step,
            index=question.index,
            trainer=question.trainer,
            auditor=question.auditor,
            lookup=lambda j: question.agreed[j],
            before=question.before,
            log=question.log,
            exhibits=exhibits,
        )
        witness = None
        if question.witness is not None:
            try:
                witness = parse_witness(question.witness)
            except EvidenceError as error:
                return Ruling(Role.AUDITOR, Fault.WITNESS_MISMATCH, f"trainer: {error}")
        ruling = judge_record(case, witness, Role.TRAINER)
        if ruling is None:
            return Need.WITNESS
        agreement_may_help = ruling.reason in (Finding.PROGRAM_DISPUTED, Finding.DATA_DISPUTED) and self.spec.agreed
        return Need.EXHIBIT if agreement_may_help and question.exhibits is None else ruling
