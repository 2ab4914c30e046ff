"""Blocks: equal alone and in company, reproducible from their keys, empty for a reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.engine import DraftEngine
from dspark.model.family import Anchors
from dspark.types import Cursor, EmptyReason, SamplingParams
from tests.draft_steps import GREEDY, draft_engine, fill, item

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=5)


@pytest.fixture
def engine(golden_drafter: Path) -> DraftEngine:
    return draft_engine(golden_drafter)


@pytest.mark.parametrize("entries", [1, 5])
def test_entries_of_a_distribution_follow_the_configuration_while_it_runs(
    engine: DraftEngine, entries: int
) -> None:
    engine.config = replace(engine.config, q_entries=entries)  # as ablations do
    (block,) = engine.draft(
        [item(fill(engine, 1, [0] * 20), SamplingParams(temperature=3.0, seed=11))]
    )
    assert {len(ids) for ids in block.q.arrays()[0]} == {entries}


def test_only_the_slots_that_are_asked_for_are_computed(engine: DraftEngine) -> None:
    cursor, computed = fill(engine, 1, [0] * 30), list[int]()
    propose = engine.drafter.propose

    def counted(anchors: Anchors, slots: int) -> Any:
        computed.append(slots)
        return propose(anchors, slots)

    engine.drafter.propose = counted
    blocks = [engine.draft([item(cursor, GREEDY, slots=slots)])[0] for slots in (3, 7)]
    assert computed == [3, 7]
    assert [len(block.token_ids) for block in blocks] == [3, 7]


def test_unlike_contexts_go_apart_only_where_they_are_padded(engine: DraftEngine) -> None:
    items = [item(fill(engine, sequence, [0] * 2)) for sequence in range(15)] + [
        item(fill(engine, 99, [0] * 190))
    ]
    passes = list[int]()
    draft_group = engine._draft_group
    engine._draft_group = lambda group: passes.append(len(group)) or draft_group(group)
    in_place = engine.draft(items)
    assert passes == ([16] if engine.drafter.reads_pages else [15, 1])
    passes.clear()
    engine.drafter.reads_pages = False
    assert [block.token_ids for block in engine.draft(items)] == [
        block.token_ids for block in in_place
    ]
    assert passes == [15, 1]


def test_fewer_slots_of_whole_blocks_are_their_head(engine: DraftEngine) -> None:
    engine.config = replace(engine.config, whole_blocks=True)
    cursor = fill(engine, 1, [0] * 30)
    for params in (GREEDY, SAMPLED):
        full = engine.draft([item(cursor, params)])[0]
        short = engine.draft([item(cursor, params, slots=3)])[0]
        assert len(full.token_ids) == 7
        assert short.token_ids == full.token_ids[:3]
        wanted, got = full.q.prefix(3).arrays(), short.q.arrays()
        assert (got[0] == wanted[0]).all()
        # sums over fewer rows may round differently
        np.testing.assert_allclose(got[1], wanted[1], atol=1e-6)
        np.testing.assert_allclose(short.confidence, full.confidence[:3], atol=1e-6)


def test_what_cannot_be_drafted_is_an_empty_block_that_says_why(engine: DraftEngine) -> None:
    ready = fill(engine, 1, [0] * 20)
    waiting = Cursor(1, 1, 1, 30)
    longest = engine.context_length
    engine.open(Cursor(2, 1, 0, 5), longest + 10)
    blocks = engine.draft(
        [
            item(waiting),
            item(Cursor(9, 1, 1, 5)),
            item(Cursor(1, 2, 1, 21)),
            item(ready, anchor=128),
            item(Cursor(2, 1, 1, longest - 5)),
            item(ready),
        ]
    )
    assert [block.empty_reason for block in blocks] == [
        EmptyReason.FEATURES_MISSING,
        EmptyReason.UNKNOWN_SEQUENCE,
        EmptyReason.UNKNOWN_SEQUENCE,
        EmptyReason.INVALID,
        EmptyReason.TOO_LONG,
        EmptyReason.NONE,
    ]
    assert blocks[0].watermark == 20
    assert all(not block.token_ids for block in blocks[:5])


def test_a_poisoned_context_spoils_its_own_sequence_only(engine: DraftEngine) -> None:
    good, bad = fill(engine, 1, [0] * 20), fill(engine, 2, [0] * 20)
    alone = engine.draft([item(good)])[0]
    engine.open(Cursor(2, 2, 0, 20), 200)
    engine.ingest(2, 2, 0, [0] * 20, torch.full((20, 64), float("nan")))
    blocks = engine.draft([item(good), item(Cursor(2, 2, 1, bad.committed_len))])
    assert blocks[0].token_ids == alone.token_ids
    assert (blocks[1].token_ids, blocks[1].empty_reason) == ((), EmptyReason.INVALID)
