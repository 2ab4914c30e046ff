"""Prompts for evaluation and calibration, from JSONL files of `turns`, and the target's answers.

A row is {"turns": [...], "domain": ..., "id": ...}: the first turn, text or token ids, is the
prompt, through the target's chat template where it has one. Answers are generated once, rows of
similar length in one batch, and rounds are replayed on them (`training/rounds.py`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.decoding.gumbel import exponentials
from dspark.decoding.sampling import draw
from dspark.errors import ConfigError
from dspark.model.checkpoint import LoadedTarget
from dspark.model.weights_file import read_file
from dspark.training import lockstep, rounds
from dspark.training.chat import Chat
from dspark.training.disk import read_rows, save_tensors
from dspark.training.split import conversation_of
from dspark.types import Rule, SamplingParams

ROWS_AT_ONCE = 64
_LAYOUT = 2  # version of the files of kept answers


Prompt = tuple[int, ...]  # token ids


@dataclass(frozen=True, slots=True)
class TargetText:
    """The target's answer to a prompt, drawn under the parameters of the rounds replayed on it."""

    prompt: Prompt
    ids: Tensor  # [1, T]: prompt, answer, and room for a block after the last anchor
    ends: tuple[bool, ...]  # for each token from the first new one on: whether it ends the text
    anchors: int  # number of new tokens at which a round may start
    new_tokens: int  # of the answer, at most
    params: SamplingParams  # seed and choice are the key of the coupled rule's noise


def questions(
    path: Path,
    target: LoadedTarget,
    *,
    room: int = 0,  # tokens behind a prompt
    rows: int = 0,  # at most, a random choice by the seed; 0: all
    seed: int = 0,
) -> list[Prompt]:
    """The prompts of a file. ConfigError names a bad row, one without room in the target's context,
    or a file without any."""
    chat, found = Chat(target.folder), []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            turns = first_turn(row)
        except ConfigError as error:
            raise ConfigError(f"{path}: row {number}: {error}") from None
        ids = tuple(chat.prompt_ids(turns))
        if not ids or max(ids) >= target.vocab_size:
            raise ConfigError(
                f"{path}: row {number}: turns: empty, or an id outside the vocabulary"
            )
        found.append((number, ids))
    if not found:
        raise ConfigError(f"{path}: no row to ask")
    if rows and len(found) > rows:
        random.Random(seed).shuffle(found)
        found = found[:rows]
    for number, ids in found:
        if len(ids) + room > target.context_length:
            raise ConfigError(
                f"{path}: row {number}: a prompt of {len(ids)} tokens, and {room} behind it; the "
                f"target ends at {target.context_length}"
            )
    return [ids for _, ids in found]


def domain_of(path: Path) -> str:
    """The domain of a file: that of its first row, or the file's name."""
    return str(next(read_rows(path)).get("domain") or path.stem)


def by_name(files: Sequence[Path]) -> dict[str, Path]:
    """The files by stem, their name in a report. ConfigError if two have the same stem."""
    known: dict[str, Path] = {}
    for path in files:
        if path.stem in known:
            raise ConfigError(
                f"data: {known[path.stem]} and {path} have one name; rename one of them"
            )
        known[path.stem] = path
    return known


def first_turn(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The user's first turn, in a list of one. ConfigError says what is wrong with the row."""
    given = row.get("turns")
    return conversation_of({"turns": given[:1]} if isinstance(given, list) else row)[:1]


def answers(
    target: LoadedTarget,
    asked: Sequence[Prompt],
    *,
    temperature: float,
    rule: Rule,
    seed: int,
    new_tokens: int,
    room: int,  # tokens after the last anchor: a block and the target's own
    keep: Path | None = None,  # folder of this target's answers, which depend on no drafter
) -> Iterator[TargetText]:
    """Yields the answers in order of prompt length: the same for all ratio rules, drawn with the
    rule's own noise for `coupled`. The target's context must have room for them.

    The tensor of a text continues past its stop token, but no round starts after it.
    """
    coupled = rule is Rule.COUPLED and temperature > 0
    order = sorted(range(len(asked)), key=lambda n: len(asked[n]))
    for first in range(0, len(order), ROWS_AT_ONCE):
        chosen = order[first : first + ROWS_AT_ONCE]
        total = len(asked[chosen[-1]]) + new_tokens + room
        prompts = [asked[n] for n in chosen]
        about = [_LAYOUT, prompts, total, temperature, seed, first, chosen if coupled else []]
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
        kept = None if keep is None else keep / f"answers-{name}.safetensors"
        if kept is not None and kept.is_file():
            ids = read_file(kept)["ids"].long()
        else:
            own = (seed * 1_000_003 + first) % (1 << 64)
            pick = (
                _coupled_drawing(seed, chosen, temperature)
                if coupled
                else drawing(temperature, own)
            )
            ids = lockstep.generate(target.model, prompts=prompts, total=total, pick=pick)
            if kept is not None:
                save_tensors(kept, {"ids": ids.int()})
        for row, number in enumerate(chosen):
            start = len(asked[number])
            ends = tuple(
                token in target.stop_ids
                for token in ids[row, start : start + new_tokens + room].tolist()
            )
            last = ends.index(True) if True in ends[:new_tokens] else new_tokens
            if last:
                text = ids[row : row + 1, : start + last + room]
                params = SamplingParams(temperature, seed=seed, choice=number, rule=rule)
                yield TargetText(asked[number], text, ends, last, new_tokens, params)


def drawing(temperature: float, seed: int) -> lockstep.Pick:
    """Draws from the target's distribution, with coins of its own."""
    coins = torch.Generator().manual_seed(seed)

    def pick(logits: Tensor, place: int) -> Tensor:
        u = torch.rand(len(logits), generator=coins)
        return draw(rounds.distribution(logits, temperature), u)

    return pick


def _coupled_drawing(seed: int, choices: Sequence[int], temperature: float) -> lockstep.Pick:
    """Draws by the noise of the coupled rule, as the rounds on the text will."""
    drawn = [SamplingParams(seed=seed, choice=choice, rule=Rule.COUPLED) for choice in choices]

    def pick(logits: Tensor, place: int) -> Tensor:
        noise = exponentials(drawn, [place] * len(drawn), logits.shape[-1])
        return (rounds.distribution(logits, temperature) / noise).argmax(dim=-1)

    return pick
