"""The acceptance rule as a verifier uses it: which laws it can judge, and a bad case spoiling nobody else's verdict."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from dspark.decoding.acceptance import Case, judge
from dspark.errors import DsparkError
from dspark.types import NO_Q, Cursor, Law, Refusal, RefusalReason
from verify_service.sequences import invalid


def rule_problem(law: Law) -> Refusal | None:
    """Whether the rule of this law can be judged, asked of the rule itself on one greedy row, which draws nothing."""
    row = torch.zeros(1, 2)
    try:
        judge(row, [Case(Cursor(0, 0, 0, 1), dataclasses.replace(law, temperature=0.0), 0, (), NO_Q)])
    except DsparkError as error:
        return invalid(f"law.{error}")
    return None


def judge_each(logits: Tensor, cases: list[Case]) -> list[tuple[int, int] | Refusal]:
    """The rule on all cases at once, or one by one when some cannot be judged."""
    try:
        return list(judge(logits, cases))
    except (FloatingPointError, DsparkError):
        decided: list[tuple[int, int] | Refusal] = []
        for case in cases:
            try:
                decided.extend(judge(logits, [case]))
            except FloatingPointError:
                decided.append(Refusal(RefusalReason.INTERNAL, "the target's logits are not numbers"))
            except DsparkError as error:
                decided.append(invalid(str(error)))
        return decided
