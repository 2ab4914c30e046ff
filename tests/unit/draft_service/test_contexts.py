"""Contexts: rows in any order, twice, late, too many; the watermark counts what has no gap."""

from pathlib import Path

import pytest
import torch

from draft_service.contexts import ContextStore
from draft_service.interface import Rows
from dspark.model.checkpoint import load_drafter
from dspark.model.drafter import BlockDrafter
from dspark.model.family import Anchors
from dspark.types import Cursor, RefusalReason


@pytest.fixture(scope="module")
def drafter(golden_drafter: Path) -> BlockDrafter:
    return load_drafter(golden_drafter).requires_grad_(False)


def store_of(drafter: BlockDrafter, tokens: int = 256) -> ContextStore:
    return ContextStore(drafter, tokens=tokens, page_size=16, max_sequences=8)


def scattered(drafter: BlockDrafter) -> ContextStore:
    """Sequence 4 has 60 rows on pages that lie in no run, 1 has 9."""
    store = store_of(drafter, tokens=96)
    for sequence in (1, 2, 3):
        store.open(Cursor(sequence, 1, 0, 9), 16, owner=0)
    store.release(2, 1)
    store.open(Cursor(4, 1, 0, 9), 64, owner=0)
    assert not isinstance(store.pages.slots(4, 0, 60), range), "no run of pages is left, so no view"
    store.ingest([rows(0, 60, sequence=4), rows(0, 9, sequence=1)])
    return store


def rows(start: int, count: int, *, sequence: int = 1, epoch: int = 1, seed: int = 0) -> Rows:
    everything = torch.randn(300, 64, generator=torch.Generator().manual_seed(seed))
    return Rows(sequence, epoch, start, everything[start : start + count], [0] * count)


OUT_OF_ORDER: dict[str, list[tuple[list[tuple[int, int]], list[int]]]] = {
    "early, twice and overlapping": [
        ([(20, 10)], [0]),
        ([(0, 5), (40, 2)], [5, 5]),
        ([(3, 12)], [15]),
        ([(15, 5)], [30]),
        ([(0, 30)], [30]),
        ([(30, 10)], [42]),
    ],
    "gaps of a single row": [
        ([(0, 5)], [5]),
        ([(6, 4)], [5]),
        ([(11, 4)], [5]),
        ([(5, 1)], [10]),
        ([(10, 1)], [15]),
    ],
    "overlaps of what came early": [
        ([(20, 10)], [0]),
        ([(25, 15)], [0]),
        ([(15, 8)], [0]),
        ([(0, 15)], [40]),
    ],
}


@pytest.mark.parametrize("came", OUT_OF_ORDER)
def test_the_watermark_counts_rows_without_a_gap_in_whatever_order_they_come(
    drafter: BlockDrafter, came: str
) -> None:
    store = store_of(drafter)
    store.open(Cursor(1, 1, 0, 10), 100, owner=0)
    for runs, marks in OUT_OF_ORDER[came]:
        assert store.ingest([rows(*run) for run in runs]) == marks


@pytest.mark.parametrize("counts", [(9, 60), (60,)])
def test_a_block_whose_own_stand_in_the_room_behind_the_context_is_the_same(
    drafter: BlockDrafter, counts: tuple[int, ...]
) -> None:
    store = scattered(drafter)
    members = [(4 if count == 60 else 1, count) for count in counts]

    def hidden(room: int) -> torch.Tensor:
        anchors = torch.arange(5, 5 + len(counts))
        at = Anchors(anchors, torch.tensor(counts), store.entries(members, room))
        return drafter.propose(at, 3).hidden

    with torch.inference_mode():
        expected = hidden(0)
        for room in (drafter.room(3), drafter.room(3) + 2):
            torch.testing.assert_close(hidden(room), expected, rtol=1e-5, atol=1e-6)
            size = (len(store._keys), len(counts), 60 + room, *store._keys.shape[2:])
            written = store._scratch.room("k", store._keys, *size)[:, :, 60:]
            assert bool(written.any()) == (room == drafter.room(3)), "its own, if the room fits"


def test_scattered_contexts_are_gathered_and_padding_is_no_garbage(drafter: BlockDrafter) -> None:
    store = scattered(drafter)
    keys, values, lengths, room = store.entries([(1, 9), (4, 60)])
    assert (lengths.tolist(), room) == ([9, 60], 0)
    own = drafter.config
    assert keys.shape == (len(drafter.layers), 2, 60, own.num_key_value_heads, own.head_dim)
    assert torch.isfinite(keys).all()
    assert torch.isfinite(values).all()
    alone = store_of(drafter)
    alone.open(Cursor(4, 1, 0, 9), 64, owner=0)
    alone.ingest([rows(0, 60, sequence=4)])
    torch.testing.assert_close(
        keys[:, 1], alone.entries([(4, 60)]).keys[:, 0], rtol=1e-5, atol=1e-6
    )


def test_a_context_takes_rows_of_the_epoch_of_its_opening_alone(drafter: BlockDrafter) -> None:
    store = store_of(drafter)

    def told(epoch: int) -> object:
        return store.ingest([rows(0, 4, epoch=epoch)])[0].reason

    store.open(Cursor(1, 2, 0, 10), 50, owner=0)
    assert store.ingest([rows(0, 20, epoch=2)]) == [20]
    assert told(3) is RefusalReason.UNKNOWN_SEQUENCE
    assert store.open(Cursor(1, 3, 0, 10), 50, owner=1) is None, "another stream of its verifier"
    assert store.watermark(1, 3) == 0, "those rows were of another epoch"
    assert told(2) is RefusalReason.UNKNOWN_SEQUENCE
    assert store.ingest([rows(0, 4, epoch=3)]) == [4]
    assert not store.release(1, 2)
    assert store.release_owner(0) == 0
    assert store.release(1, 3)
    assert store.pages.free == store.pages.total


def test_rows_nobody_made_room_for_get_none(drafter: BlockDrafter) -> None:
    store = store_of(drafter)
    unopened = store.ingest([rows(0, 5)])[0]
    assert unopened.reason is RefusalReason.UNKNOWN_SEQUENCE
    store.open(Cursor(1, 1, 0, 10), 20, owner=0)
    beyond = store.ingest([rows(30, 3)])[0]
    assert beyond.reason is RefusalReason.INVALID
    assert store.pages.total - store.pages.free == 2


def test_every_page_comes_back(drafter: BlockDrafter) -> None:
    store = store_of(drafter, tokens=64)
    assert store.open(Cursor(1, 1, 0, 1), 40, owner=7) is None
    assert store.open(Cursor(2, 1, 0, 1), 16, owner=8) is None
    full = store.open(Cursor(3, 1, 0, 1), 16, owner=8)
    assert full.reason is RefusalReason.NO_PAGES
    assert store.release_owner(7) == 1
    assert not store.release(2, 0)
    assert store.release(2, 1)
    assert (store.pages.free, len(store)) == (store.pages.total, 0)
