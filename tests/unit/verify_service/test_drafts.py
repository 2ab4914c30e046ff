"""Blocks of one message that cannot have been drafted: each harms its own row, whatever lies beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dspark.types import NO_Q, Block, Cursor, SparseQ
from dspark.wire.blocks import Blocks, read_blocks, write_blocks
from dspark.wire.v1 import draft_pb2
from verify_service.drafts import unsound

VOCAB, SLOTS = 50, 3
AT = Cursor(1, 1, 1, 10)
KINDS = [4, 1, 0, 4, 0, 2]  # entries of q of each row; 0: coupled


def block(entries: int, spoil: Callable[[np.ndarray, np.ndarray], None] | None = None) -> Block:
    if not entries:
        return Block(AT, (7,) * SLOTS, (0.5,) * SLOTS, NO_Q)
    ids = np.tile(np.arange(entries, dtype=np.uint32) + 7, (SLOTS, 1))
    probs = np.full((SLOTS, entries), 1.0 / entries, np.float32)
    if spoil is not None:
        spoil(ids, probs)
    return Block(AT, (7,) * SLOTS, (0.5,) * SLOTS, SparseQ.of(ids, probs))


def came(blocks: list[Block]) -> Blocks:
    message = draft_pb2.Blocks(**write_blocks(blocks, 1))
    return read_blocks(len(blocks), draft_pb2.Blocks.FromString(message.SerializeToString()), VOCAB)


def coupled(blocks: Blocks) -> list[bool | None]:
    return [entries == 0 for entries in blocks.entries]


SPOILS: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "an id beyond the vocabulary": lambda ids, _: ids.__setitem__((1, 1), VOCAB),
    "an id twice": lambda ids, _: ids.__setitem__((2, 1), ids[2, 2]),
    "a sum that is not 1": lambda _, probs: probs.__setitem__((0, 1), 0.5),
    "not a number": lambda _, probs: probs.__setitem__((0, 1), np.nan),
    "below 0": lambda _, probs: probs.__setitem__((0, slice(0, 2)), (0.75, -0.25)),
    "a drafted token that is not in it": lambda ids, _: ids.__setitem__((1, 0), 30),
    "a drafted token without mass": lambda _, probs: probs.__setitem__((1, slice(0, 2)), (0.0, 0.5)),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("kinds", [[4, 4, 4], KINDS], ids=["alike", "of all kinds"])
@pytest.mark.parametrize("place", [0, -1])
def test_only_the_row_that_is_spoilt_is_named(
    spoil: Callable[[np.ndarray, np.ndarray], None], kinds: list[int], place: int
) -> None:
    fours = [row for row, entries in enumerate(kinds) if entries == 4]
    blocks = came([block(entries, spoil if row == fours[place] else None) for row, entries in enumerate(kinds)])
    assert unsound(blocks, coupled(blocks), VOCAB) == [fours[place]]


def test_sound_blocks_of_all_kinds_pass_and_so_do_empty_ones() -> None:
    blocks = came([*map(block, KINDS), Block(AT)])
    assert unsound(blocks, coupled(blocks), VOCAB) == []


def test_a_row_that_is_spoilt_already_hides_no_other() -> None:
    """Its bytes still lie between those of its neighbours."""
    wrong_id = block(4)._replace(token_ids=(7, VOCAB, 7))
    blocks = came([wrong_id, block(4), block(4, SPOILS["an id twice"]), block(4)])
    assert blocks.lengths == [0, SLOTS, SLOTS, SLOTS]
    assert unsound(blocks, coupled(blocks), VOCAB) == [2]


def test_who_needs_distributions_has_some_and_who_does_not_has_none() -> None:
    blocks = came([block(0), block(4), block(4)])
    assert unsound(blocks, [False, True, False], VOCAB) == [0, 1]


def test_a_row_that_nobody_waits_for_is_nobodys_fault() -> None:
    """Without its sequence nobody knows whether it was to come with distributions."""
    blocks = came([block(0), block(4, SPOILS["not a number"])])
    assert unsound(blocks, [None, None], VOCAB) == []
