"""Verdicts of a given mean length, for figures of speed only: the output is not the target's text.

The rule still runs, so a step keeps its cost; then keyed draws replace its lengths: a slot is kept
with the chance that makes whole blocks reach the mean, and the target's likeliest token follows. As
a program it is the command `dspark` with such verifiers: `python -m benchmarks.forced MEAN serve
verify ...`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.cli.main import main as dspark
from dspark.decoding.acceptance import DrawsWatch, PackedCase
from dspark.synthetic.oracle import KeyPurpose, keyed, mix_one, uniform
from dspark.types import Refusal
from verify_service.engine import VerifyEngine
from verify_service.sampler import Decided, judge_each

SLOTS = 7  # of a full block


def chance_for(mean: float, slots: int) -> float:
    """The chance per slot at which a block of `slots` commits `mean` tokens, the target's own
    included."""
    if not 1.0 <= mean <= slots + 1.0:
        raise ValueError(f"a block of {slots} cannot commit {mean:g} tokens on average")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = 1.0 + sum(middle**slot for slot in range(1, slots + 1))
        low, high = (middle, high) if reached < mean else (low, middle)
    return (low + high) / 2


class Forced:
    """A sampler that replaces accepted lengths by draws of a given mean."""

    def __init__(self, mean: float, slots: int) -> None:
        self._chance = chance_for(mean, slots)

    def __call__(
        self,
        logits: Tensor,
        cases: list[PackedCase],
        near_ties: Counter[int] | None,
        watch: DrawsWatch | None,
    ) -> list[Decided]:
        return self.apply(logits, cases, judge_each(logits, cases, near_ties))

    def apply(
        self, logits: Tensor, cases: Sequence[PackedCase], decided: Sequence[Decided]
    ) -> list[Decided]:
        """Replaces the length of every verdict. logits: [T, V] of the packed pass."""
        lengths = [self._length(case) for case in cases]
        rows = torch.tensor(
            [case.first_row + length for case, length in zip(cases, lengths, strict=True)]
        )
        tokens = logits[rows.to(logits.device)].argmax(dim=-1).tolist()
        return [
            one if isinstance(one, Refusal) else (length, token)
            for one, length, token in zip(decided, lengths, tokens, strict=True)
        ]

    def _length(self, case: PackedCase) -> int:
        slots = len(case.draft_ids)
        if not slots:
            return 0
        key = np.array([mix_one(case.params.seed ^ case.cursor.sequence)], np.uint64)
        at = np.array([case.cursor.committed_len])
        kept = uniform(keyed(key, KeyPurpose.LENGTH, at, np.arange(slots))) < self._chance
        return slots if bool(kept.all()) else int(kept.argmin())


def main(argv: list[str]) -> int:
    """Runs `dspark` with forced verdicts. argv: the mean, then the command's own words."""
    real, sampler = VerifyEngine.load, Forced(float(argv[0]), SLOTS)
    VerifyEngine.load = staticmethod(lambda config: real(config, sampler))  # type: ignore[method-assign,assignment]
    return dspark(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
