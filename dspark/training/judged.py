"""Blocks judged at every position of many answers, to be played as rounds under any prefix rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dspark.model.calibration import RuleName
from dspark.model.checkpoint import LoadedTarget, fingerprint, load_drafter, load_target
from dspark.model.family import Drafter
from dspark.training import rounds
from dspark.training.asked import Prompt, TargetText, answers, questions
from dspark.training.reliability import Floats, Ints
from dspark.types import Rule


@dataclass(frozen=True, slots=True)
class Text:
    """One answer, with a judged block at every new token."""

    answer: TargetText
    accepted: Ints  # [A] slots
    confidence: Floats  # [A, k] logits

    def play(self, lengths: Sequence[int]) -> list[rounds.EvaluatedRound]:
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
    keep: Path | None = None  # keeps this target's answers for the next drafter

    @property
    def size(self) -> int:
        """Slots of a block."""
        return self.drafter.config.block_size

    @property
    def room(self) -> int:
        """Tokens after the last anchor: a block and the target's own."""
        return self.size + 1

    @staticmethod
    def load(
        target: Path, drafter: Path, new_tokens: int, cut: int | None, keep: Path | None
    ) -> Judge:
        """Loads the pair. `keep` is a folder for the answers of all targets."""
        made, loaded = load_drafter(drafter, target=target), load_target(target)
        made.requires_grad_(False).serve()
        mine = None if keep is None else keep / fingerprint(target)[:16]
        return Judge(loaded, made, new_tokens, cut, mine)

    def prompts(self, files: Mapping[str, Path], rows: int, seed: int) -> dict[str, list[Prompt]]:
        """The prompts of every file, at most `rows` of each (0: all), with room for a judged
        answer behind them."""
        return {
            name: questions(
                path, self.target, room=self.new_tokens + self.room, rows=rows, seed=seed
            )
            for name, path in files.items()
        }

    def texts(
        self,
        asked: Sequence[Prompt],
        temperature: float,
        rule: RuleName,
        seed: int,
        tell: Callable[..., object] = lambda **_: None,
    ) -> list[Text]:
        """The target's answers, judged one after another; `tell` advances a progress bar."""
        told, generator = Rule[rule.upper()], torch.Generator().manual_seed(seed + 1)
        texts = []
        for answer in answers(
            self.target,
            asked,
            temperature=temperature,
            rule=told,
            seed=seed,
            new_tokens=self.new_tokens,
            room=self.room,
            keep=self.keep,
        ):
            start = len(answer.prompt)
            blocks = rounds.judge(
                self.drafter,
                self.target.model,
                answer.ids,
                torch.arange(start, start + answer.anchors),
                answer.params,
                generator=generator,
                cut=self.cut,
            )
            texts.append(Text(answer, blocks.accepted.numpy(), blocks.confidence.double().numpy()))
            tell(advance=1)
        return texts


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
