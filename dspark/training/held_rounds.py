"""Rounds of held-out prompts for calibration, in pieces that can be kept: a few prompts at one temperature each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open

from dspark.errors import ConfigError
from dspark.model.calibration import RuleName
from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.training.asked import DatasetPrompt, TargetText, answers
from dspark.training.disk import save_tensors
from dspark.training.judged import judged, whole_blocks
from dspark.training.reliability import Floats, Ints
from dspark.types import Rule

PIECE = 24  # prompts whose rounds are kept in one file


class JudgedRounds(NamedTuple):
    """Rounds whose blocks were verified whole."""

    logits: Floats  # [n, k] raw confidence
    accepted: Ints  # [n]


class RoundSettings(NamedTuple):
    """How they are drawn."""

    seed: int
    new_tokens: int  # of an answer, at most
    cut: int | None  # entries of q


class RoundSource:
    """Where the rounds of one calibration come from."""

    def __init__(
        self,
        target: LoadedTarget,
        drafter: Drafter,
        asked: Mapping[str, Sequence[DatasetPrompt]],  # by the name of the file
        settings: RoundSettings,
        *,
        keep: Path | None = None,
        named: str = "",  # what the rounds depend on, prompts apart; kept ones of another name are not used
    ) -> None:
        self._target, self._drafter, self._asked = target, drafter, asked
        self._seed, self._new_tokens, self._cut = settings
        self._keep, self._named = keep, named
        self._drawn: dict[tuple[str, bool, float], list[TargetText]] = {}

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
                every = self._asked[name]
                # Prompts of like length side by side: a row that is longer is fed token by token.
                its = sorted(every[half::2], key=lambda question: len(question.ids))
                for first in range(0, len(its), PIECE):
                    piece = its[first : first + PIECE]
                    parts.append(self._piece(f"{name}-{half}-{first}", piece, first, half, rule, temperature))
                    told(len(piece))
        if not sum(len(part.accepted) for part in parts):
            raise ConfigError("prompts: no round was played; the target ends every answer at once")
        return JudgedRounds(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _piece(
        self, name: str, asked: Sequence[DatasetPrompt], first: int, half: int, rule: RuleName, temperature: float
    ) -> JudgedRounds:
        kept = None if self._keep is None else self._keep / f"{rule}-{temperature:g}-{name}.safetensors"
        digest = _digest(asked)
        if kept is not None and kept.is_file():
            with safe_open(kept, framework="np") as file:
                found = file.metadata() or {}
                # Older files do not name their prompts.
                if found.get("named") == self._named and found.get("prompts", digest) == digest:
                    return JudgedRounds(file.get_tensor("logits").astype(np.float64), file.get_tensor("accepted"))
        # Texts of the halves, pieces and temperatures are drawn apart.
        seed = 2 * (self._seed + 1009 * round(1000 * temperature) + 7 * first) + half
        texts = judged(
            self._target,
            self._drafter,
            self._answers(name, asked, rule, temperature, seed),
            temperature=temperature,
            rule=Rule[rule.upper()],
            seed=seed + 1,
            cut=self._cut,
        )
        made = JudgedRounds(*whole_blocks(texts, self._drafter.config.block_size, self._new_tokens))
        if kept is not None:
            tensors = {"logits": torch.from_numpy(made.logits).float(), "accepted": torch.from_numpy(made.accepted)}
            save_tensors(kept, tensors, {"named": self._named, "prompts": digest})
        return made

    def _answers(
        self, name: str, asked: Sequence[DatasetPrompt], rule: RuleName, temperature: float, seed: int
    ) -> list[TargetText]:
        """Drawn once for both ratio rules, which leave the target's law alone and say nothing of its noise."""
        raced = rule == "coupled" and temperature > 0
        place = (name, raced, temperature)
        if place not in self._drawn:
            drawn = answers(
                self._target,
                asked,
                temperature=temperature,
                rule=Rule.COUPLED if raced else Rule.TOKEN,
                seed=seed,
                new_tokens=self._new_tokens,
                room=self._drafter.config.block_size + 1,
                keep=self._keep,
            )
            self._drawn[place] = list(drawn)
        return self._drawn[place]


def _digest(asked: Sequence[DatasetPrompt]) -> str:
    """Names the prompts of a piece by their ids."""
    return hashlib.sha256(json.dumps([question.ids for question in asked]).encode()).hexdigest()[:16]
