"""Blocks: equal alone and in company, reproducible from their keys, empty for a reason; drafted by
what a law makes of logits, with the history that came along with the rows and the anchor."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import Rows
from dspark.decoding.shaping import Shaper
from dspark.decoding.sparse_q import sound_q
from dspark.errors import ConfigError
from dspark.model.family import Anchors
from dspark.types import Block, Cursor, EmptyReason, SamplingParams
from tests.draft_steps import GREEDY, draft_engine, fill, item
from tests.unit.model.golden import altered

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=5)


@pytest.fixture
def engine(golden_drafter: Path) -> DraftEngine:
    return draft_engine(golden_drafter)


def test_contexts_that_find_no_memory_are_refused_by_their_setting(golden_drafter: Path) -> None:
    config = DraftConfig(drafter=str(golden_drafter), context_tokens=1 << 40)
    with pytest.raises(ConfigError, match=r"^draft\.context_tokens: the memory of cpu has no room"):
        DraftEngine.load(config)


def test_a_rotation_that_is_stretched_stretches_the_limit_of_blocks(
    golden_drafter: Path, tmp_path: Path
) -> None:
    told = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    change = {"rope_parameters": {"rope_theta": 1e6, **told}}
    assert draft_engine(altered(tmp_path, change, of=golden_drafter)).context_length == 1024


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
    items = [item(cursor, GREEDY, slots=slots) for slots in (3, 7)]
    for blocks in ([engine.draft([one])[0] for one in items], engine.draft(items)):
        assert [len(block.token_ids) for block in blocks] == [3, 7]
    assert computed == [3, 7, 7]


def test_unlike_contexts_go_apart(engine: DraftEngine) -> None:
    items = [item(fill(engine, sequence, [0] * 2)) for sequence in range(15)] + [
        item(fill(engine, 99, [0] * 190))
    ]
    passes = list[int]()
    draft_group = engine._draft_group
    engine._draft_group = lambda group: passes.append(len(group)) or draft_group(group)
    engine.draft(items)
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


HISTORY = [5, 9, 5, 33, 70, 9, 5, 101, 2, 64]
ANCHOR = 7


def filled(engine: DraftEngine, sequence: int = 1) -> Cursor:
    engine.open(Cursor(sequence, 1, 0, len(HISTORY)), 200)
    rows = torch.randn(len(HISTORY), 64, generator=torch.Generator().manual_seed(1))
    for part in (slice(4, None), slice(4)):  # the end comes first
        engine.ingest(sequence, 1, part.start or 0, HISTORY[part], rows[part])
    return Cursor(sequence, 1, 1, len(HISTORY) + 1)


def draft(engine: DraftEngine, cursor: Cursor, params: SamplingParams) -> Block:
    return engine.draft([item(cursor, params, ANCHOR)])[0]


def test_bias_and_least_length_decide_what_is_drafted(engine: DraftEngine) -> None:
    cursor = filled(engine)
    biased = draft(engine, cursor, SamplingParams(0.0, logit_bias=((77, 100.0),)))
    assert set(biased.token_ids) == {77}
    plain = draft(engine, cursor, SamplingParams(0.0))
    short = SamplingParams(
        0.0, min_tokens=4, stop_token_ids=tuple(set(plain.token_ids)), prompt_len=len(HISTORY) - 1
    )
    # Two tokens are said, the anchor among them: two more may not end the answer, then any may.
    assert not set(draft(engine, cursor, short).token_ids[:2]) & set(plain.token_ids)
    long_enough = replace(short, prompt_len=len(HISTORY) - 4)
    assert draft(engine, cursor, long_enough).token_ids == plain.token_ids


def test_drafts_count_rows_the_anchor_and_earlier_slots_as_said(engine: DraftEngine) -> None:
    cursor = filled(engine)
    never_again = SamplingParams(0.0, repetition_penalty=100.0)
    block = draft(engine, cursor, never_again)
    assert not set(block.token_ids) & {*HISTORY, ANCHOR}
    assert len(set(block.token_ids)) == len(block.token_ids)


def test_a_shaped_member_of_a_cohort_leaves_its_neighbours_alone(engine: DraftEngine) -> None:
    cursors = [filled(engine, sequence) for sequence in (1, 2, 3)]
    all_params = [
        SamplingParams(0.0),
        SamplingParams(0.8, seed=3, logit_bias=((77, 5.0),), min_p=0.05),
        SamplingParams(0.8, seed=4),
    ]
    items = [item(c, params, ANCHOR) for c, params in zip(cursors, all_params, strict=True)]
    together = engine.draft(items)
    for one, block in zip(items, together, strict=True):
        assert engine.draft([one])[0].token_ids == block.token_ids
        ids, probs = block.q.arrays()
        assert sound_q(ids, probs, block.token_ids, 128)


@pytest.mark.parametrize(
    "bad",
    [
        SamplingParams(logit_bias=((128, 1.0),)),
        SamplingParams(min_tokens=9, stop_token_ids=(3, 2**32 - 1)),
        SamplingParams(0.0, logit_bias=((999, 1.0),)),
    ],
)
def test_a_law_of_another_vocabulary_empties_its_own_block_alone(
    engine: DraftEngine, bad: SamplingParams
) -> None:
    one, other = filled(engine, 1), filled(engine, 2)
    plain = SamplingParams(0.0)
    empty, full = engine.draft([item(one, bad, ANCHOR), item(other, plain, ANCHOR)])
    assert (empty.token_ids, empty.empty_reason) == ((), EmptyReason.INVALID)
    assert full.token_ids == draft(engine, other, plain).token_ids


def test_the_history_is_that_of_the_newest_epoch_and_grows_with_it(engine: DraftEngine) -> None:
    params = SamplingParams(frequency_penalty=1.0, prompt_len=2)
    store = engine.contexts
    assert filled(engine).epoch == 1

    def taken(shaper: Shaper) -> object:
        made = shaper.changes()
        return dict(zip(made.ids.tolist(), made.minus[-1].tolist(), strict=True))

    def follows(tokens: list[int]) -> bool:
        return taken(store.shaper(1, params, len(tokens))) == taken(Shaper(params).follow(tokens))

    for through in (6, 10, 8):
        assert follows(HISTORY[:through])
    assert store.open(Cursor(1, 2, 0, 0), 50, owner=0) is None  # a hand-over begins anew
    store.ingest([Rows(1, 2, 0, torch.zeros(3, 64), [1, 2, 3])])
    assert follows([1, 2, 3])
    # no such token: costs acceptance at most
    store.ingest([Rows(1, 2, 3, torch.zeros(1, 64), [2**32 - 1])])
    assert follows([1, 2, 3, 127])
    assert store.open(Cursor(1, 2, 0, 0), 50, owner=0) is None  # so does one opened again
    store.ingest([Rows(1, 2, 0, torch.zeros(6, 64), [9, 8, 9, 7, 6, 5])])
    assert follows([9, 8, 9, 7, 6, 5])


def test_only_laws_that_ask_pay_for_it(engine: DraftEngine) -> None:
    cursor = filled(engine)
    for temperature, top_k in itertools.product((0.0, 1.0), (0, 5)):
        draft(engine, cursor, SamplingParams(temperature, top_k=top_k, min_p=0.1, logprobs=5))
    assert engine.contexts[1].shaper is None


def test_a_bug_at_one_sequence_empties_its_own_block_alone(
    engine: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = [filled(engine, sequence) for sequence in (1, 2, 3)]
    all_params = [
        SamplingParams(0.0),
        SamplingParams(0.0, logit_bias=((77, 5.0),)),
        SamplingParams(0.0, logit_bias=((78, 5.0),)),
    ]
    items = [item(c, params, ANCHOR) for c, params in zip(cursors, all_params, strict=True)]
    wanted = [block.token_ids for block in engine.draft(items)]
    inner = Shaper.changes

    def fails(self: Shaper, *arguments: object, **options: object) -> object:
        if self.params.logit_bias == ((77, 5.0),):
            raise IndexError("a bug")
        return inner(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Shaper, "changes", fails)
    blocks = engine.draft(items)
    assert [block.token_ids for block in blocks] == [wanted[0], (), wanted[2]]
    assert blocks[1].empty_reason is EmptyReason.INVALID
    with pytest.raises(IndexError):
        engine.draft([items[1]])  # nobody else is there to tell whose fault it is
