"""Masks the target's logits by the form of an answer, before anything else is done to them.

Tokens that break the form have probability 0. The row of slot k is masked by what may follow the
committed tokens and the first k drafted ones, so the distribution of what is emitted is that of
plain decoding under the same form. Behind a drafted token that the form forbids, or that ends the
answer, nothing is masked: such a token is judged like any other, with p = 0 or as the last one, and
what follows it is never emitted.

A `Matcher` stands at the end of the committed tokens between rounds. Knows nothing of grammars or
services. Symbols: l drafted tokens of one sequence, which owns l + 1 rows; V vocabulary; W = ceil(V
/ 32) words of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.moving import sent
from dspark.types import FormEffect

Masks = npt.NDArray[np.int32]


class Matcher(Protocol):
    """The position of an answer in its form, for one thread at a time."""

    @property
    def too_slow(self) -> bool:
        """Whether it delays every sequence of its pass; its position is then undefined, and it is
        not called again."""

    def masks(self, drafted: Sequence[int]) -> Masks:
        """Which tokens may follow the first 0, 1, ... drafted ones: [r, W], token v is bit v % 32
        of word v // 32.

        r <= l + 1: no mask follows a drafted token that is forbidden or that ends the answer. Every
        mask has a bit: where no token can follow, the answer may end. The position does not change.
        Raises TooSlow.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Advances by committed tokens; those behind the end of the answer are ignored."""


def in_form(masks: Masks, drafted: Sequence[int], accepted: int) -> FormEffect:
    """The effect of these masks on a round that kept `accepted` drafted tokens and added one."""
    reached = accepted < min(len(drafted), len(masks))
    forbidden = (
        reached and not masks[accepted, drafted[accepted] // 32] >> drafted[accepted] % 32 & 1
    )
    return FormEffect(tuple(map(_single, masks[: accepted + 1])), bool(forbidden))


def _single(row: Masks) -> bool:
    """Whether exactly one token is allowed."""
    (words,) = row.nonzero()
    return len(words) == 1 and int(row.view(np.uint32)[words[0]]).bit_count() == 1


@torch.inference_mode()
def mask(logits: Tensor, parts: Sequence[tuple[int, Masks]]) -> None:
    """Sets the logits of forbidden tokens to minus infinity, in place: logits [T, V] of a packed
    pass, and the masks [r, W] of some of its sequences with the first row of each."""
    if not parts:
        return
    rows = np.concatenate([first + np.arange(len(masks)) for first, masks in parts])
    allowed = bits(np.concatenate([masks for _, masks in parts]), logits.shape[-1], logits.device)
    index = sent(rows, logits.device)
    logits[index] = torch.where(allowed, logits[index], -torch.inf)


@torch.inference_mode()
def first_masked(logits: Tensor, masks: Sequence[bytes]) -> Tensor:
    """Logits [n, V] of first slots, with those of tokens that a form forbids at minus infinity, so
    that they are not drafted in vain.

    masks: [n], bit v % 8 of byte v // 8 for token v; tokens beyond a mask are forbidden, and an
    empty mask forbids nothing. Where no token would be left, as with a vocabulary that is not the
    target's whole one, a row stays as it is.
    """
    rows = [row for row, each in enumerate(masks) if each]
    words = np.zeros((len(rows), -(-logits.shape[-1] // 32)), np.int32)
    for place, row in enumerate(rows):
        own = np.frombuffer(masks[row], "<i4")[: words.shape[1]]
        words[place, : len(own)] = own
    index = sent(np.array(rows), logits.device)
    free = logits if len(rows) == len(logits) else logits[index]
    left = torch.where(bits(words, logits.shape[-1], logits.device), free, -torch.inf)
    left = torch.where(left.amax(dim=-1, keepdim=True) > -torch.inf, left, free)
    return left if free is logits else logits.index_copy(0, index, left)


def bits(masks: Masks, vocab: int, device: torch.device | str = "cpu") -> Tensor:
    """masks [r, W] -> whether each token is allowed: [r, V] bool."""
    device = torch.device(device)
    if device.type == "cpu":
        unpacked = np.unpackbits(masks.view(np.uint8), axis=-1, count=vocab, bitorder="little")
        return torch.from_numpy(unpacked.view(np.bool_))
    words = sent(masks, device)  # copies an eighth of the bytes
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    return (words.unsqueeze(-1) >> shifts & 1).flatten(-2)[:, :vocab].bool()
