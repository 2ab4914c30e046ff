"""Drafts imitate what a law makes of logits, with the history that came along with the rows and the
anchor."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from draft_service.engine import DraftEngine
from draft_service.interface import Rows
from dspark.decoding.shaping import Shaper
from dspark.decoding.sparse_q import sound_q
from dspark.types import Cursor, EmptyReason, SamplingParams
from tests.draft_steps import draft_engine, item

HISTORY = [5, 9, 5, 33, 70, 9, 5, 101, 2, 64]
ANCHOR = 7


@pytest.fixture
def engine(golden_drafter: Path) -> DraftEngine:
    return draft_engine(golden_drafter)


def fill(engine: DraftEngine, sequence: int = 1, epoch: int = 1) -> Cursor:
    engine.open(Cursor(sequence, epoch, 0, len(HISTORY)), 200)
    rows = torch.randn(len(HISTORY), 64, generator=torch.Generator().manual_seed(1))
    engine.ingest(sequence, epoch, 4, HISTORY[4:], rows[4:])  # the end comes first
    engine.ingest(sequence, epoch, 0, HISTORY[:4], rows[:4])
    return Cursor(sequence, epoch, 1, len(HISTORY) + 1)


def draft(engine: DraftEngine, cursor: Cursor, *all_params: SamplingParams):  # type: ignore[no-untyped-def]
    items = [item(cursor, params, ANCHOR) for params in all_params]
    return [engine.draft([one])[0] for one in items] if len(items) > 1 else engine.draft(items)[0]


def test_bias_and_least_length_decide_what_is_drafted(engine: DraftEngine) -> None:
    cursor = fill(engine)
    assert set(draft(engine, cursor, SamplingParams(0.0, logit_bias=((77, 100.0),))).token_ids) == {
        77
    }
    plain = draft(engine, cursor, SamplingParams(0.0))
    short = SamplingParams(
        0.0, min_tokens=4, stop_token_ids=tuple(set(plain.token_ids)), prompt_len=len(HISTORY) - 1
    )
    # Two tokens are said, the anchor among them: two more may not end the answer, then any may.
    assert not set(draft(engine, cursor, short).token_ids[:2]) & set(plain.token_ids)
    long_enough = dataclasses.replace(short, prompt_len=len(HISTORY) - 4)
    assert draft(engine, cursor, long_enough).token_ids == plain.token_ids


def test_drafts_count_rows_the_anchor_and_earlier_slots_as_said(engine: DraftEngine) -> None:
    cursor = fill(engine)
    never_again = SamplingParams(0.0, repetition_penalty=100.0)
    block = draft(engine, cursor, never_again)
    assert not set(block.token_ids) & {*HISTORY, ANCHOR}
    assert len(set(block.token_ids)) == len(block.token_ids)


def test_a_shaped_member_of_a_cohort_leaves_its_neighbours_alone(engine: DraftEngine) -> None:
    cursors = [fill(engine, sequence) for sequence in (1, 2, 3)]
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
    one, other = fill(engine, 1), fill(engine, 2)
    plain = SamplingParams(0.0)
    empty, full = engine.draft([item(one, bad, ANCHOR), item(other, plain, ANCHOR)])
    assert (empty.token_ids, empty.empty_reason) == ((), EmptyReason.INVALID)
    assert full.token_ids == draft(engine, other, plain).token_ids


def test_the_history_is_that_of_the_newest_epoch_and_grows_with_it(engine: DraftEngine) -> None:
    params = SamplingParams(frequency_penalty=1.0, prompt_len=2)
    store = engine._contexts
    cursor = fill(engine)

    def counted(through: int) -> object:
        made = store.shaper(1, params, through).changes()
        return dict(zip(made.ids.tolist(), made.minus[-1].tolist(), strict=True))

    def wanted(tokens: list[int]) -> object:
        made = Shaper(params).follow(tokens).changes()
        return dict(zip(made.ids.tolist(), made.minus[-1].tolist(), strict=True))

    for through in (6, 10, 8):
        assert counted(through) == wanted(HISTORY[:through])
    assert store.open(Cursor(1, 2, 0, 0), 50, owner=0) is None  # a hand-over begins anew
    store.ingest([Rows(1, 2, 0, torch.zeros(3, 64), [1, 2, 3])])
    assert counted(3) == wanted([1, 2, 3])
    # no such token: costs acceptance at most
    store.ingest([Rows(1, 2, 3, torch.zeros(1, 64), [2**32 - 1])])
    assert counted(4) == wanted([1, 2, 3, 127])
    assert store.open(Cursor(1, 2, 0, 0), 50, owner=0) is None  # so does one opened again
    store.ingest([Rows(1, 2, 0, torch.zeros(6, 64), [9, 8, 9, 7, 6, 5])])
    assert counted(6) == wanted([9, 8, 9, 7, 6, 5])
    assert cursor.epoch == 1


def test_only_laws_that_ask_pay_for_it(engine: DraftEngine) -> None:
    cursor = fill(engine)
    for temperature, top_k in itertools.product((0.0, 1.0), (0, 5)):
        draft(engine, cursor, SamplingParams(temperature, top_k=top_k, min_p=0.1, logprobs=5))
    assert engine._contexts[1].shaper is None


def test_a_bug_at_one_sequence_empties_its_own_block_alone(
    engine: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors = [fill(engine, sequence) for sequence in (1, 2, 3)]
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
