"""Drafters of every family behind the service's contexts: however rows came, the block is the
model's own."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine, DraftItem
from draft_service.interface import Rows
from dspark.decoding.sparse_q import sound_q
from dspark.model.calibration import IDENTITY
from dspark.model.family import Drafter
from dspark.types import Cursor, EmptyReason, SamplingParams
from tests.draft_steps import GREEDY, fill, item
from tests.unit.model.tiny import FAMILIES, family_drafter, walked

LENGTH = 60
ENTRIES = 8  # of a draft distribution; less than the vocabulary


@pytest.fixture(params=FAMILIES, ids="-".join)
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return family_drafter(*request.param)


@pytest.fixture
def engine(drafter: Drafter) -> DraftEngine:
    config = DraftConfig(drafter="tiny", context_tokens=4096, q_entries=ENTRIES)
    return DraftEngine(drafter, IDENTITY, config, version="tiny")


def _text(drafter: Drafter, seed: int) -> tuple[list[int], Tensor, Tensor]:
    """Ids, taps and the rows that a verifier makes of them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, drafter.config.vocab_size, (LENGTH,), generator=generator)
    taps = torch.randn(LENGTH, drafter.feature_size, generator=generator)
    with torch.no_grad():
        return ids.tolist(), taps, drafter.project(taps)


def _item(sequence: int, ids: list[int], anchor: int) -> DraftItem:
    return item(Cursor(sequence, 1, 1, anchor + 1), anchor=ids[anchor])


@torch.no_grad()
def _expected(drafter: Drafter, ids: list[int], taps: Tensor, anchor: int) -> list[int]:
    """A greedy block by the model alone."""
    made: list[int] = (
        walked(drafter, taps, torch.tensor(ids), torch.tensor([anchor])).tokens[0].tolist()
    )
    return made


# Runs of rows that come, and the anchor of the block behind them; rows past an older anchor are not
# looked at.
STORIES: dict[str, list[tuple[list[tuple[int, int]], int]]] = {
    "out of order": [
        ([(20, 33), (0, 7), (7, 8), (5, 12), (40, 41), (12, 20), (0, 33)], 33),
        ([], 31),
        ([], 2),
    ],
    "a few after every block": [
        ([(start, stop)], stop) for start, stop in itertools.pairwise((0, 10, 11, 16, 18, 24))
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_blocks_are_the_model_s_however_rows_came(
    drafter: Drafter, engine: DraftEngine, story: str
) -> None:
    ids, taps, rows = _text(drafter, 1)
    assert engine.open(Cursor(1, 1, 0, 1), LENGTH) is None
    for runs, anchor in STORIES[story]:
        for start, stop in runs:
            engine.ingest(1, 1, start, ids[start:stop], rows[start:stop])
        if runs:
            assert engine.contexts.watermark(1, 1) == anchor
        assert list(engine.draft([_item(1, ids, anchor)])[0].token_ids) == _expected(
            drafter, ids, taps, anchor
        )


def test_a_cohort_drafts_what_its_members_draft_alone(
    drafter: Drafter, engine: DraftEngine
) -> None:
    items = []
    for sequence, anchor in enumerate((1, 40, 17, 2, 41), 1):
        ids, _, rows = _text(drafter, sequence)
        params = GREEDY if sequence % 2 else SamplingParams(0.8, seed=sequence)
        cursor = fill(engine, sequence, ids[:anchor], rows[:anchor])
        items.append(item(cursor, params, ids[anchor]))
    for one, block in zip(items, engine.draft(items), strict=True):
        alone = engine.draft([one])[0]
        assert (block.token_ids, block.empty_reason) == (alone.token_ids, EmptyReason.NONE)
        vocab = drafter.config.vocab_size
        assert alone.q.entries == block.q.entries == (1 if one.params.greedy else ENTRIES)
        ids, probs = block.q.arrays()
        assert sound_q(ids, probs, block.token_ids, vocab)
        np.testing.assert_allclose(block.confidence, alone.confidence, atol=1e-4)


def test_many_sequences_catch_up_in_one_message(drafter: Drafter, engine: DraftEngine) -> None:
    texts = {sequence: _text(drafter, sequence) for sequence in range(1, 5)}
    reach = {1: 8, 2: 9, 3: 50, 4: 8}
    for sequence in texts:
        assert engine.open(Cursor(sequence, 1, 0, 1), LENGTH) is None
    for half in (0, 1):
        chunks = []
        for sequence, (ids, _, rows) in texts.items():
            middle = reach[sequence] // 2
            part = slice(middle, reach[sequence]) if half else slice(0, middle)
            chunks.append(Rows(sequence, 1, part.start, rows[part], ids[part]))
        engine.ingest_many(chunks)
    items = [_item(sequence, texts[sequence][0], reach[sequence]) for sequence in texts]
    for (sequence, (ids, taps, _)), block in zip(texts.items(), engine.draft(items), strict=True):
        assert list(block.token_ids) == _expected(drafter, ids, taps, reach[sequence])


def test_a_context_that_is_opened_again_starts_over(drafter: Drafter, engine: DraftEngine) -> None:
    for seed, count in ((3, 30), (4, 12)):
        ids, taps, rows = _text(drafter, seed)
        fill(engine, 1, ids[:count], rows[:count])
        (block,) = engine.draft([_item(1, ids, count)])
        assert list(block.token_ids) == _expected(drafter, ids, taps, count)


def test_a_context_that_the_anchor_does_not_continue_is_no_context(
    drafter: Drafter, engine: DraftEngine
) -> None:
    ids, _, rows = _text(drafter, 5)
    fill(engine, 1, ids[:20], rows[:20])
    (block,) = engine.draft([DraftItem(Cursor(1, 1, 1, 21), ids[20], 15, GREEDY)])
    in_order = drafter.config.kind != "block"  # rows alone make a context that may lack the newest
    assert block.empty_reason is (EmptyReason.INVALID if in_order else EmptyReason.NONE)
    (block,) = engine.draft([DraftItem(Cursor(1, 1, 1, 26), 3, 25, GREEDY)])
    assert block.empty_reason is EmptyReason.FEATURES_MISSING
