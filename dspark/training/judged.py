"""Rounds at every place of many answers, kept so that they can be played again under another prefix rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.training import rounds
from dspark.training.asked import TargetText
from dspark.training.reliability import Floats, Ints
from dspark.types import Rule


@dataclass(frozen=True, slots=True)
class Text:
    """One answer, judged at every new token of it."""

    answer: TargetText
    accepted: Ints  # [A]
    confidence: Floats | None  # [A, k] logits

    def play(self, lengths: Sequence[int], new_tokens: int) -> list[rounds.Played]:
        """Its rounds, with so many slots verified at each anchor."""
        return rounds.play([*self.accepted.tolist(), 0], [*lengths, 0], self.answer.ends, new_tokens)


def judged(
    target: LoadedTarget,
    drafter: Drafter,
    drawn: Iterable[TargetText],
    *,
    temperature: float,
    rule: Rule,
    seed: int,
    cut: int | None,
) -> Iterator[Text]:
    """Judges answers that leave room for a block and one token after the last anchor; one text after another."""
    generator = torch.Generator().manual_seed(seed)
    for answer in drawn:
        start = len(answer.question.ids)
        blocks = rounds.judge(
            drafter,
            target.model,
            answer.ids,
            torch.arange(start, start + answer.anchors),
            temperature=temperature,
            generator=generator,
            cut=cut,
            rule=rule,
            seed=answer.seed,
            choice=answer.choice,
        )
        told = blocks.confidence
        yield Text(answer, blocks.accepted.numpy(), None if told is None else told.double().numpy())


def whole_blocks(texts: Iterable[Text], size: int, new_tokens: int) -> tuple[Floats, Ints]:
    """Confidence logits [n, k] and accepted slots [n] of all rounds whose blocks were verified whole.

    A round that ended its text is left out: what its later slots were worth was never seen.
    """
    scores, kept = [], []
    for text in texts:
        assert text.confidence is not None
        for made in text.play([size] * text.answer.anchors, new_tokens):
            if made.emitted == made.accepted + 1:
                scores.append(text.confidence[made.at])
                kept.append(made.accepted)
    return np.array(scores).reshape(len(scores), size), np.array(kept, np.int64)
