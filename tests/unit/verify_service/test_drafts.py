"""Blocks that cannot have been drafted: each harms its own row, whatever lies beside it."""

from collections.abc import Callable

import numpy as np
import pytest

from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ
from verify_service.batch_runner import BatchRow
from verify_service.drafts import unsound
from verify_service.sequences import CachedSequence, VerifyItem

VOCAB, SLOTS = 50, 3
AT = Cursor(1, 1, 1, 10)
KINDS = [4, 1, 0, 4, 0, 2]  # entries of q of each row; 0: coupled

Spoil = Callable[[np.ndarray, np.ndarray], None]


def block(entries: int, spoil: Spoil | None = None) -> VerifyItem:
    ids = np.tile(np.arange(entries, dtype=np.uint32) + 7, (SLOTS, 1))
    probs = np.full((SLOTS, entries), 1.0 / max(entries, 1), np.float32)
    if spoil is not None:
        spoil(ids, probs)
    return VerifyItem(AT, 5, (7,) * SLOTS, SparseQ.of(ids, probs) if entries else NO_Q)


def bad(items: list[VerifyItem], kinds: list[int]) -> list[int]:
    params = [SamplingParams(rule=Rule.BLOCK if entries else Rule.COUPLED) for entries in kinds]
    states = [CachedSequence(1, 1, 0, own, 9, False) for own in params]
    each = zip(items, states, strict=True)
    return unsound([BatchRow(0, item, state, 1, None) for item, state in each], VOCAB)


SPOILS: dict[str, Spoil] = {
    "an id beyond the vocabulary": lambda ids, _: ids.__setitem__((1, 1), VOCAB),
    "an id twice": lambda ids, _: ids.__setitem__((2, 1), ids[2, 2]),
    "a sum above 1": lambda _, probs: probs.__setitem__((0, 1), 0.5),
    "a sum below 1": lambda _, probs: probs.__setitem__((0, 1), 0.24),
    "no finite number": lambda _, probs: probs.__setitem__((0, 1), np.inf),
    "not a number": lambda _, probs: probs.__setitem__((0, 1), np.nan),
    "below 0": lambda _, probs: probs.__setitem__((0, slice(0, 2)), (0.75, -0.25)),
    "a drafted token that is not in it": lambda ids, _: ids.__setitem__((1, 0), 30),
    "a drafted token without mass": lambda _, probs: probs.__setitem__(
        (1, slice(0, 2)), (0.0, 0.5)
    ),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("kinds", [[4, 4, 4], KINDS], ids=["alike", "of all kinds"])
@pytest.mark.parametrize("place", [0, -1])
def test_only_the_row_that_is_spoilt_is_named(spoil: Spoil, kinds: list[int], place: int) -> None:
    fours = [row for row, entries in enumerate(kinds) if entries == 4]
    items = [
        block(entries, spoil if row == fours[place] else None) for row, entries in enumerate(kinds)
    ]
    assert bad(items, kinds) == [fours[place]]


def test_sound_blocks_of_all_kinds_pass_and_so_do_empty_ones() -> None:
    empty = VerifyItem(AT, 5, (), NO_Q)
    assert bad([*map(block, KINDS), empty, empty], [*KINDS, 4, 0]) == []


def test_who_needs_distributions_has_some_and_who_does_not_has_none() -> None:
    assert bad([block(0), block(4), block(4)], [4, 0, 4]) == [0, 1]


@pytest.mark.parametrize("cut", [{"ids": b""}, {"probs": b"\0" * 4}], ids=["ids", "probabilities"])
def test_bytes_that_are_no_distributions_of_so_many_slots_are_none(cut: dict[str, bytes]) -> None:
    short = block(4)
    assert bad([block(4), short._replace(q=short.q._replace(**cut))], [4, 4]) == [1]
