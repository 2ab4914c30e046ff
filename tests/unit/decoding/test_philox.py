"""The generator is Philox4x32-10 and every draw has one name."""

import itertools
import random

import numpy as np
import pytest

from dspark.decoding.philox import FEW, Purpose, philox, philox_array, uniforms
from dspark.types import Rule
from tests.unit.decoding.named_draws import Name, record

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [  # published with Random123
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert philox(counter, key) == words
    arrays = philox_array(
        tuple(np.array([word], np.uint64) for word in counter),
        tuple(np.array([word], np.uint64) for word in key),
    )
    assert tuple(int(word[0]) for word in arrays) == words


def test_plain_integers_and_arrays_draw_the_same_numbers() -> None:
    rng = random.Random(0)
    widths = (64, 32, 8, 8, 32, 32, 16)
    names = [tuple(rng.getrandbits(width) for width in widths) for _ in range(4 * FEW)]
    one_by_one = [uniforms(*name).item() for name in names]
    columns = [np.array(column, np.uint64) for column in zip(*names, strict=True)]
    assert uniforms(*columns).tolist() == one_by_one


def test_a_draw_is_the_top_53_bits_of_two_words() -> None:
    (u,) = uniforms(0, 0, 0, 0, 0, 0, [0])
    assert u * 2**53 == (0x6627E8D5 >> 5 << 26) + (0xE169C58D >> 6)
    draws = uniforms(7, 0, Rule.TOKEN, Purpose.EMIT, 1, np.arange(20_000), 1)
    assert draws.dtype == np.float64
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert abs(draws.mean() - 0.5) < 0.01
    assert len(np.unique(draws)) == len(draws)


def test_arguments_broadcast_like_arrays() -> None:
    seeds, slots = np.array([[3], [2**64 - 1]], np.uint64), np.arange(1, 8)
    draws = uniforms(seeds, 0, Rule.TOKEN, Purpose.DRAFT, 1, 40, slots)
    assert draws.shape == (2, 7)
    for row, column in itertools.product(range(2), range(7)):
        one = uniforms(int(seeds[row, 0]), 0, Rule.TOKEN, Purpose.DRAFT, 1, 40, int(slots[column]))
        assert one.shape == ()
        assert draws[row, column] == one
    assert uniforms(1, 0, 1, 1, 1, 0, []).shape == (0,)


PARTS = ("seed", "choice", "rule", "purpose", "epoch", "anchor_position", "slots")
ONE = dict.fromkeys(PARTS, 1)


def test_every_part_of_the_name_changes_the_draw() -> None:
    draws = {uniforms(**ONE).item()} | {uniforms(**ONE | {part: 2}).item() for part in PARTS}
    assert len(draws) == len(PARTS) + 1


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("seed", 2**64),
        ("choice", 2**32),
        ("rule", 256),
        ("purpose", 256),
        ("epoch", 2**32),
        ("anchor_position", 2**32),
        ("slots", 2**16),
        ("slots", -1),
        ("slots", np.array([1, 2**16])),
    ],
)
def test_a_part_that_would_spill_into_its_neighbour_is_refused(part: str, value: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        uniforms(**ONE | {part: value})


@pytest.mark.parametrize("count", [FEW, FEW + 1])
def test_recording_lists_every_draw_by_key_and_counter(count: int) -> None:
    seen: list[Name] = []
    with record(seen):
        uniforms(5, 9, Rule.BLOCK, Purpose.ACCEPT, 3, 77, np.arange(count))
    uniforms(6, 0, 1, 1, 1, 1, 1)
    assert seen == [(5, (77, 3, slot | 2 << 16 | 2 << 24, 9)) for slot in range(count)]
