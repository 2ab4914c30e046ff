"""Blocks judged at every position of many answers, to be played as rounds under any prefix rule,
and the rounds that calibration is fitted on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dspark.errors import ConfigError
from dspark.model.calibration import Bucket, RuleName
from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.training import rounds
from dspark.training.asked import DatasetPrompt, TargetText, answers
from dspark.training.reliability import Floats, Ints
from dspark.types import Rule

PIECE = 24  # prompts whose answers are generated together


@dataclass(frozen=True, slots=True)
class Text:
    """One answer, with a judged block at every new token."""

    answer: TargetText
    accepted: Ints  # [A] slots
    confidence: Floats  # [A, k] logits

    def play(self, lengths: Sequence[int]) -> list[rounds.Played]:
        """The rounds of this answer, with lengths[i] slots verified at the i-th anchor."""
        answer, accepted = self.answer, [*self.accepted.tolist(), 0]
        return rounds.play(accepted, [*lengths, 0], answer.ends, answer.new_tokens)


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges a drafter's blocks on its target's own answers."""

    target: LoadedTarget
    drafter: Drafter
    new_tokens: int  # of an answer, at most
    cut: int | None  # entries that q is cut to; None: uncut
    keep: Path | None = None  # keeps the target's answers for the next drafter, see `kept_for`

    @property
    def size(self) -> int:
        """Slots of a block."""
        return self.drafter.config.block_size

    def answers(
        self, asked: Sequence[DatasetPrompt], temperature: float, rule: Rule, seed: int
    ) -> Iterator[TargetText]:
        """The target's answers, with room for a block and one token after the last anchor."""
        return answers(
            self.target,
            asked,
            temperature=temperature,
            rule=rule,
            seed=seed,
            new_tokens=self.new_tokens,
            room=self.size + 1,
            keep=self.keep,
        )

    def texts(self, drawn: Iterable[TargetText], rule: Rule, seed: int) -> Iterator[Text]:
        """Judges the answers, one after another."""
        generator = torch.Generator().manual_seed(seed)
        for answer in drawn:
            start = len(answer.question.ids)
            blocks = rounds.judge(
                self.drafter,
                self.target.model,
                answer.ids,
                torch.arange(start, start + answer.anchors),
                replace(answer.params, rule=rule),
                generator=generator,
                cut=self.cut,
            )
            yield Text(answer, blocks.accepted.numpy(), blocks.confidence.double().numpy())


class JudgedRounds(NamedTuple):
    """Rounds whose blocks were verified whole."""

    logits: Floats  # [n, k] raw confidence
    accepted: Ints  # [n]


def whole_blocks(texts: Iterable[Text], size: int) -> JudgedRounds:
    """All rounds of the texts, with blocks verified whole.

    A round that ended its text is left out: whether its later slots were right is unknown.
    """
    scores, kept = [], []
    for text in texts:
        for made in text.play([size] * text.answer.anchors):
            if made.emitted == made.accepted + 1:
                scores.append(text.confidence[made.at])
                kept.append(made.accepted)
    return JudgedRounds(np.array(scores).reshape(len(scores), size), np.array(kept, np.int64))


class Job(NamedTuple):
    """One fit to make, and the requests it is made from."""

    rule: RuleName
    bucket: Bucket
    temperatures: tuple[float, ...]  # of the requests
    names: list[str]  # of the files of prompts


@dataclass(frozen=True, slots=True)
class RoundSource:
    """Plays the rounds of one calibration.

    Answers are generated once for both ratio rules: unlike `coupled`, neither fixes the noise that
    answers are drawn with.
    """

    judge: Judge
    asked: Mapping[str, Sequence[DatasetPrompt]]  # by the name of the file
    seed: int
    drawn: dict[tuple[str, int, int, bool, float], list[TargetText]] = field(default_factory=dict)

    def half(self, half: int, job: Job, told: Callable[[int], object]) -> JudgedRounds:
        """The rounds of every second prompt, from the `half`-th on, at all temperatures. told:
        called with a number of prompts that are done."""
        judge, rule, parts = self.judge, Rule[job.rule.upper()], []
        for temperature in job.temperatures:
            for name in job.names:
                # Prompts of similar length together: the rest of a longer one is fed by tokens.
                its = sorted(self.asked[name][half::2], key=lambda question: len(question.ids))
                for first in range(0, len(its), PIECE):
                    piece = its[first : first + PIECE]
                    # Every half, piece and temperature has a seed of its own.
                    seed = 2 * (self.seed + 1009 * round(1000 * temperature) + 7 * first) + half
                    place = (name, half, first, rule is Rule.COUPLED, temperature)
                    if place not in self.drawn:
                        self.drawn[place] = list(judge.answers(piece, temperature, rule, seed))
                    texts = judge.texts(self.drawn[place], rule, seed + 1)
                    parts.append(whole_blocks(texts, judge.size))
                    told(len(piece))
        logits, accepted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if not len(accepted):
            raise ConfigError("prompts: no round was played; the target ends every answer at once")
        return JudgedRounds(logits, accepted)
