"""Uniform draws as a pure function of their key: Philox4x32-10, seeded by the request.

Invariant 4, randomness is an argument: a draw is keyed by (seed, choice, rule, purpose, epoch,
anchor position, slot) and by nothing else, so batching, retries and replicas cannot change it. No
draw is ever used twice: every round moves the anchor position, and a sequence that is handed over
starts a new epoch. The noise of the coupled rule has keys of its own, see `gumbel`. Numpy only.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dspark.types import Cursor, SamplingParams

Integers = npt.ArrayLike  # whole numbers, one or an array of them
Word = int | npt.NDArray[np.uint64]

ROUNDS = 10
LOW = 0xFFFFFFFF
FEW = 12  # up to so many draws plain integers beat arrays


class Purpose(enum.IntEnum):
    """What a draw decides; part of its key."""

    DRAFT = 1  # the token of a slot
    ACCEPT = 2  # whether the token of a slot is kept
    EMIT = 3  # the token the target adds
    GUMBEL = 4  # both tokens of a position under the coupled rule, see `gumbel`


def philox(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """One block of Philox4x32-10 on plain integers, or blocks on int64 tensors that broadcast:
    their products wrap, but the 64 bits are right."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (odd >> 32 & LOW) ^ c1 ^ k0, odd & LOW
        c2, c3 = (even >> 32 & LOW) ^ c3 ^ k1, even & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3


def philox_array(
    counter: tuple[npt.NDArray[np.uint64], ...], key: tuple[npt.NDArray[np.uint64], ...]
) -> tuple[npt.NDArray[np.uint64], ...]:
    """`philox` on arrays of 32-bit words held in 64 bits; counter words of one shape, keys that
    broadcast to it."""
    # copies, as they are changed in place
    c0, c1, c2, c3 = (np.array(word, order="C") for word in counter)
    k0, k1 = key
    even, odd = np.empty_like(c0), np.empty_like(c0)
    low, shift = np.uint64(LOW), np.uint64(32)
    m0, m1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    w0, w1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
    for _ in range(ROUNDS):  # in place: this is the whole cost of noise over a vocabulary
        np.multiply(c0, m0, out=even)
        np.multiply(c2, m1, out=odd)
        np.right_shift(odd, shift, out=c0)
        c0 ^= c1
        c0 ^= k0
        np.right_shift(even, shift, out=c2)
        c2 ^= c3
        c2 ^= k1
        np.bitwise_and(odd, low, out=c1)
        np.bitwise_and(even, low, out=c3)
        k0 = (k0 + w0) & low
        k1 = (k1 + w1) & low
    return c0, c1, c2, c3


def key_of(
    params: SamplingParams, cursor: Cursor, purpose: Purpose
) -> tuple[int, int, int, int, int, int]:
    """The key of a sequence's draws, as `uniforms` takes it: all but the slots."""
    return (
        params.seed,
        params.choice,
        int(params.rule),
        int(purpose),
        cursor.epoch,
        cursor.anchor_position,
    )


def uniforms(
    seed: Integers,
    choice: Integers,
    rule: Integers,
    purpose: Integers,
    epoch: Integers,
    anchor_position: Integers,
    slots: Integers,
) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 bits; arguments broadcast against each other.

    Counter words: anchor position, epoch, slot | purpose << 16 | rule << 24, choice. The key is the
    64-bit seed.
    """
    seeds = _word("seed", seed, 64)
    positions = _word("anchor_position", anchor_position, 32)
    epochs = _word("epoch", epoch, 32)
    tag = (
        _word("slots", slots, 16)
        | _word("purpose", purpose, 8) << 16
        | _word("rule", rule, 8) << 24
    )
    fields = (seeds, positions, epochs, cast(Word, tag), _word("choice", choice, 32))
    shape = np.broadcast_shapes(*(field.shape for field in fields if not isinstance(field, int)))
    return _few(fields, shape) if math.prod(shape) <= FEW else _many(fields, shape)


def _word(name: str, value: Integers, bits: int) -> Word:
    """`value` as integers of so many bits; ValueError for larger ones, which would give two draws
    one key."""
    word: Word
    if isinstance(value, int):
        word = int(value)
        fits = word >> bits == 0
    else:
        word = array = np.asarray(value, np.uint64)
        fits = bits == 64 or not array.size or int(array.max()) >> bits == 0
    if not fits:
        raise ValueError(f"{name} does not fit in {bits} bits")
    return word


def _few(fields: tuple[Word, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    count = math.prod(shape)
    columns = [
        [field] * count
        if isinstance(field, int)
        else np.broadcast_to(field, shape).ravel().tolist()
        for field in fields
    ]
    draws = []
    for seed, position, epoch, tag, choice in zip(*columns, strict=True):
        high, low, _, _ = philox((position, epoch, tag, choice), (seed & LOW, seed >> 32))
        draws.append(((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992)
    return np.array(draws, np.float64).reshape(shape)


def _many(fields: tuple[Word, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    seeds, *words = (np.broadcast_to(np.asarray(field, np.uint64), shape) for field in fields)
    high, low, _, _ = philox_array(tuple(words), (seeds & np.uint64(LOW), seeds >> np.uint64(32)))
    whole = (high >> np.uint64(5)) * np.uint64(67108864) + (low >> np.uint64(6))
    draws: npt.NDArray[np.float64] = whole / 9007199254740992.0
    return draws
