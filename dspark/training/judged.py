"""Rounds at every place of many answers, to be played under any prefix rule, and those that calibration is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dspark.errors import ConfigError
from dspark.model.calibration import RuleName
from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.training import rounds
from dspark.training.asked import DatasetPrompt, TargetText, answers
from dspark.training.reliability import Floats, Ints
from dspark.types import Rule

PIECE = 24  # prompts that are asked at one time


@dataclass(frozen=True, slots=True)
class Text:
    """One answer, judged at every new token of it."""

    answer: TargetText
    accepted: Ints  # [A]
    confidence: Floats  # [A, k] logits

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
        yield Text(answer, blocks.accepted.numpy(), blocks.confidence.double().numpy())


def whole_blocks(texts: Iterable[Text], size: int, new_tokens: int) -> tuple[Floats, Ints]:
    """Confidence logits [n, k] and accepted slots [n] of all rounds whose blocks were verified whole.

    A round that ended its text is left out: what its later slots were worth was never seen.
    """
    scores, kept = [], []
    for text in texts:
        for made in text.play([size] * text.answer.anchors, new_tokens):
            if made.emitted == made.accepted + 1:
                scores.append(text.confidence[made.at])
                kept.append(made.accepted)
    return np.array(scores).reshape(len(scores), size), np.array(kept, np.int64)


class JudgedRounds(NamedTuple):
    """Rounds whose blocks were verified whole."""

    logits: Floats  # [n, k] raw confidence
    accepted: Ints  # [n]


@dataclass(frozen=True, slots=True)
class RoundSource:
    """Where the rounds of one calibration come from."""

    target: LoadedTarget
    drafter: Drafter
    asked: Mapping[str, Sequence[DatasetPrompt]]  # by the name of the file
    seed: int
    new_tokens: int  # of an answer, at most
    cut: int | None  # entries of q
    keep: Path | None = None  # folder of the target's answers, for the next drafter
    drawn: dict[tuple[str, bool, float], list[TargetText]] = field(default_factory=dict)

    def half(
        self,
        half: int,
        rule: RuleName,
        temperatures: Sequence[float],
        names: Sequence[str],  # of the prompts
        told: Callable[[int], None],  # counts prompts done
    ) -> JudgedRounds:
        """Of every second prompt, from the `half`-th on, at all temperatures."""
        parts = []
        for temperature in temperatures:
            for name in names:
                # Prompts of like length side by side: a row that is longer is fed token by token.
                its = sorted(self.asked[name][half::2], key=lambda question: len(question.ids))
                for first in range(0, len(its), PIECE):
                    piece = its[first : first + PIECE]
                    # Texts of the halves, pieces and temperatures are drawn apart.
                    seed = 2 * (self.seed + 1009 * round(1000 * temperature) + 7 * first) + half
                    parts.append(self._piece(f"{name}-{half}-{first}", piece, rule, temperature, seed))
                    told(len(piece))
        if not sum(len(part.accepted) for part in parts):
            raise ConfigError("prompts: no round was played; the target ends every answer at once")
        return JudgedRounds(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _piece(
        self, name: str, asked: Sequence[DatasetPrompt], rule: RuleName, temperature: float, seed: int
    ) -> JudgedRounds:
        """Answers are drawn once for both ratio rules, which leave the target's distribution alone and say nothing of
        its noise."""
        size, raced = self.drafter.config.block_size, rule == "coupled" and temperature > 0
        place = (name, raced, temperature)
        if place not in self.drawn:
            self.drawn[place] = list(
                answers(
                    self.target,
                    asked,
                    temperature=temperature,
                    rule=Rule.COUPLED if raced else Rule.TOKEN,
                    seed=seed,
                    new_tokens=self.new_tokens,
                    room=size + 1,
                    keep=self.keep,
                )
            )
        texts = judged(
            self.target,
            self.drafter,
            self.drawn[place],
            temperature=temperature,
            rule=Rule[rule.upper()],
            seed=seed + 1,
            cut=self.cut,
        )
        return JudgedRounds(*whole_blocks(texts, size, self.new_tokens))
