"""Measures whether a drafter fits its target, and whether its taps are off by a layer or two.

A checkpoint does not say how its taps were counted, so this is measured. The target answers a few
held-out prompts greedily; the drafter drafts at every position of the answers, from the layers that
its file names and from those one and two before and after. Neighbouring layers are much alike, so
taps that are off by one may cost few accepted tokens. But the answers are likelier from the layers
that the drafter was trained on, at almost every position, and a paired comparison shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.loadgen.prompts import BUILT_IN
from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.model.pairing import TOKENIZER_NAME
from dspark.model.target import decoder_layers, tapped
from dspark.training import lockstep
from dspark.training.asked import questions
from dspark.training.rounds import anchors_at

NEW_TOKENS, PROMPTS = 48, 16
HARDLY = 1.1  # accepted length, the target's own token included, below which a drafter is of no use
SURE = 4.0  # standard errors that the gain must have for other layers to be the right ones
WORTH = 0.01  # nats a token that the gain must have, too
_SHIFTS = {-2: "two", -1: "one", 1: "one", 2: "two"}


class Gain(NamedTuple):
    """The gain of other layers over those of the file, at the same positions: nats a token, and its
    standard error."""

    nats: float
    error: float
    accepted: float  # accepted length from these layers


@dataclass(frozen=True)
class Fit:
    """How well a drafter fits with the taps of its file, and what shifting all of them gains."""

    block: int
    taps: tuple[int, ...]
    accepted: float  # accepted length, greedy, the target's own token included
    gains: Mapping[int, Gain]  # by the shift of all taps, in layers
    places: int

    @property
    def off_by(self) -> int | None:
        """The shift that is clearly better and from which drafts are accepted; None if none is."""
        best = max(self.gains, key=lambda shift: self.gains[shift].nats, default=None)
        if best is None:
            return None
        nats, error, accepted = self.gains[best]
        return best if nats > max(WORTH, SURE * error) and accepted >= HARDLY else None

    @property
    def fits(self) -> bool:
        return self.off_by is None and self.accepted >= HARDLY

    def __str__(self) -> str:
        said = f"accepted {self.accepted:.2f} of {self.block}"
        if self.accepted < HARDLY:
            said += ": this drafter does not fit"
        if self.off_by is not None:
            right = ", ".join(str(tap + self.off_by) for tap in self.taps)
            said += (
                f"; its taps are off by {_SHIFTS[self.off_by]}: from layers {right} instead of "
                f"{', '.join(map(str, self.taps))} the target's answers are "
                f"{self.gains[self.off_by].nats:.2f} nats a token likelier"
            )
        return said


@torch.inference_mode()
def fit(target: LoadedTarget, drafter: Drafter, prompts: Sequence[Sequence[int]]) -> Fit:
    """Measures the fit on held-out prompts (token ids). Weights must not change meanwhile."""
    size, taps = drafter.config.block_size, drafter.target_layer_ids
    last = len(decoder_layers(target.model)) - 1
    shifts = [
        shift
        for shift in (0, *_SHIFTS)
        if taps and taps[0] + shift >= -1 and taps[-1] + shift <= last
    ] or [0]
    kept: dict[int, list[Tensor]] = {shift: [] for shift in shifts}
    said: dict[int, list[Tensor]] = {shift: [] for shift in shifts}
    for ids in prompts[:PROMPTS]:
        # prompt and greedy answer [1, T], which does not end at stop tokens
        total = len(ids) + max(NEW_TOKENS, 2 * size)
        text = lockstep.generate(target.model, prompts=[ids], total=total)
        anchors = torch.arange(len(ids), text.shape[1] - size)
        seen = _features(target.model, text, taps, shifts)
        for shift in shifts:
            drafted = _drafted(drafter, seen[shift], text[0], anchors)
            said[shift].append(drafted.likelihood)
            kept[shift].append(drafted.accepted)
    own = torch.cat(said[0]).double()
    lengths = {
        shift: 1.0 + float(torch.cat(parts).double().mean()) for shift, parts in kept.items()
    }
    gains = {
        shift: _gain(torch.cat(said[shift]) - own, lengths[shift]) for shift in shifts if shift
    }
    return Fit(size, taps, lengths[0], gains, len(own))


def held_prompts(target: LoadedTarget, count: int) -> list[list[int]]:
    """Up to `count` prompts: first turns of the built-in questions, or random ids for a target
    without a tokenizer."""
    if (target.folder / TOKENIZER_NAME).is_file():
        files = sorted(BUILT_IN.glob("*.jsonl"))
        each = -(-count // len(files))
        asked = [list(ids) for file in files for ids in questions(file, target, rows=each)]
        return asked[:count]
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, target.vocab_size, (24,), generator=draw).tolist() for _ in range(count)
    ]


class _Drafted(NamedTuple):
    accepted: Tensor  # [A] slots whose greedy draft is the text's token, up to the first other
    likelihood: Tensor  # [A] log-likelihood of the text's tokens, mean over the block


def _features(
    model: Any, text: Tensor, taps: tuple[int, ...], shifts: Sequence[int]
) -> dict[int, Tensor | None]:
    """The taps [T, m*H] at every shift, from one pass; None for a drafter without taps."""
    if not taps:
        return dict.fromkeys(shifts)
    layers = tuple(sorted({tap + shift for tap in taps for shift in shifts}))
    features, _ = tapped(model, text, layers)
    rows = dict(zip(layers, features[0].chunk(len(layers), dim=-1), strict=True))
    return {shift: torch.cat([rows[tap + shift] for tap in taps], dim=-1) for shift in shifts}


def _drafted(drafter: Drafter, features: Tensor | None, ids: Tensor, anchors: Tensor) -> _Drafted:
    """Drafts blocks at all anchors of one text. Every slot is fed the text's own token before it,
    which is the draft up to the first wrong one."""
    size = drafter.config.block_size
    proposal = drafter.propose(anchors_at(drafter, features, ids, anchors), size)
    alive = torch.ones(len(anchors), dtype=torch.bool, device=ids.device)
    accepted, likelihood = torch.zeros(len(anchors)), torch.zeros(len(anchors))
    for slot in range(size):
        logits, wanted = proposal.step(ids[anchors + slot]), ids[anchors + slot + 1]
        alive &= logits.argmax(-1) == wanted
        accepted += alive.cpu()
        chances = (
            torch.log_softmax(logits.float(), dim=-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        )
        # a token outside the head's vocabulary has likelihood 0
        likelihood += chances.clamp(min=-20.0).cpu() / size
    return _Drafted(accepted, likelihood)


def _gain(differences: Tensor, accepted: float) -> Gain:
    return Gain(
        float(differences.mean()), float(differences.std() / len(differences) ** 0.5), accepted
    )
