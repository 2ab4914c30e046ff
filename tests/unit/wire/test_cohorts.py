"""Cohorts there and back, whatever their rows hold, and refusals that name the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import PeerError
from dspark.types import (
    PLACES,
    Block,
    Cursor,
    Draws,
    EmptyReason,
    Refusal,
    RefusalReason,
    SparseQ,
    TokenLogprobs,
    Verdict,
)
from dspark.wire import cohorts
from dspark.wire.v1 import draft_pb2, types_pb2, verify_pb2

U32 = st.integers(0, 2**32 - 1)
CURSORS = st.builds(Cursor, st.integers(0, 2**64 - 1), U32, U32, U32)
HERE = Cursor(1, 2, 3, 4)


@st.composite
def any_block(draw: st.DrawFn) -> Block:
    slots, entries = draw(st.integers(0, 7)), draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    q = SparseQ(entries, rng.bytes(4 * slots * entries), rng.bytes(4 * slots * entries))
    ids = tuple(rng.integers(0, 100, slots).tolist())
    confidence = tuple(rng.random(slots, dtype=np.float32).tolist())
    return Block(draw(CURSORS), ids, confidence, q, draw(st.sampled_from(EmptyReason)), draw(U32))


def written(blocks: list[Block], took: int = 0) -> draft_pb2.Blocks:
    return draft_pb2.Blocks(**cohorts.write_blocks(blocks, took))


@given(st.lists(CURSORS, max_size=5))
def test_cursors_there_and_back(cursors: list[Cursor]) -> None:
    assert cohorts.read_cursors(cohorts.write_cursors(cursors)) == cursors


@given(st.lists(any_block(), max_size=6), U32)
def test_blocks_there_and_back(blocks: list[Block], took: int) -> None:
    message = draft_pb2.Blocks.FromString(written(blocks, took).SerializeToString())
    assert cohorts.read_blocks(message, 100) == blocks
    assert message.forward_ns == took


def test_q_comes_back_as_the_very_bytes_and_is_cut_by_slots() -> None:
    ids, probs = np.arange(6, dtype=np.uint32).reshape(3, 2), np.array([[0.5, 0.5]] * 3, np.float32)
    block = Block(HERE, (0, 2, 4), (0.5,) * 3, SparseQ.of(ids, probs))
    back = cohorts.read_blocks(written([block]), 100)[0].q.prefix(2).arrays()
    np.testing.assert_array_equal(back[0], ids[:2])
    np.testing.assert_array_equal(back[1], probs[:2])


OUTCOMES = st.one_of(
    st.builds(Verdict, st.just(HERE), U32, U32, U32, U32, st.just(())),
    st.builds(
        Verdict,
        st.just(HERE),
        U32,
        U32,
        U32,
        U32,
        st.just((TokenLogprobs(-0.5, (1, 2), (-0.5, -1.5)), TokenLogprobs(-2.0))),
    ),
    st.builds(Refusal, st.sampled_from(RefusalReason), st.text(max_size=9), U32),
)


@given(st.lists(OUTCOMES, max_size=6))
def test_verdicts_there_and_back(outcomes: list[Verdict | Refusal]) -> None:
    cursors = [HERE] * len(outcomes)
    message = cohorts.write_verdicts(cohorts.write_cursors(cursors), outcomes, tokens=7)
    again = verify_pb2.Verdicts.FromString(message.SerializeToString())
    assert cohorts.read_verdicts(again, cursors) == outcomes
    assert again.tokens == 7


def test_a_cohort_that_is_refused_as_a_whole_refuses_every_sequence() -> None:
    refusal = types_pb2.Refusal(reason=types_pb2.Refusal.REASON_INTERNAL, message="no")
    outcomes = cohorts.read_verdicts(verify_pb2.Verdicts(refusal=refusal), [HERE, HERE])
    assert outcomes == [Refusal(RefusalReason.INTERNAL, "no")] * 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"accepted": [1]}, "accepted"),
        ({"next_tokens": []}, "next_tokens"),
        ({"features_through": [1, 2, 3]}, "features_through"),
        ({"judged": [1]}, "judged"),
        ({"cursors": cohorts.write_cursors([HERE])}, "cursors"),
        ({"refusals": [verify_pb2.RowRefusal(row=2)]}, "refusals.row"),
    ],
)
def test_verdicts_that_do_not_fit_the_question_are_refused_by_field(change: dict[str, object], field: str) -> None:
    good: dict[str, object] = {
        "cursors": cohorts.write_cursors([HERE, HERE]),
        "accepted": [0, 0],
        "next_tokens": [1, 1],
        "features_through": [3, 3],
        "judged": [0, 0],
    }
    cohorts.read_verdicts(verify_pb2.Verdicts(**good), [HERE, HERE])  # type: ignore[arg-type]
    with pytest.raises(PeerError, match=f"^{field}"):
        cohorts.read_verdicts(verify_pb2.Verdicts(**(good | change)), [HERE, HERE])  # type: ignore[arg-type]


def two_blocks(**change: object) -> draft_pb2.Blocks:
    """One of one slot, one of two; one entry each."""
    good: dict[str, object] = {
        "cursors": cohorts.write_cursors([HERE, HERE]),
        "lengths": [1, 2],
        "token_ids": [1, 2, 3],
        "confidence": [0.5, 1.0, 0.0],
        "q_entries": [1, 1],
        "q_ids": np.array([1, 2, 3], "<u4").tobytes(),
        "q_probs": np.ones(3, "<f4").tobytes(),
        "empty_reasons": [0, 0],
        "watermarks": [3, 3],
    }
    return draft_pb2.Blocks(**(good | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lengths": [1, 2, 0]}, "lengths"),
        ({"lengths": [1, 65]}, "lengths"),
        ({"lengths": [1, 1]}, "token_ids"),
        ({"token_ids": [1, 2]}, "token_ids"),
        ({"confidence": [0.5]}, "confidence"),
        ({"q_entries": [1]}, "q_entries"),
        ({"q_entries": [1, 5000]}, "q_entries"),
        ({"q_ids": b"\0" * 13}, "q_ids"),
        ({"q_probs": b"\0" * 8}, "q_probs"),
        ({"empty_reasons": []}, "empty_reasons"),
        ({"watermarks": [3]}, "watermarks"),
        (
            {"cursors": types_pb2.Cursors(sequence=[1, 1], epoch=[2], round=[3, 3], committed_len=[4, 4])},
            "cursors.epoch",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(PeerError, match=f"^{field}"):
        cohorts.read_blocks(two_blocks(**change), 100)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [1, 2, 100]},
        {"confidence": [0.5, float("nan"), 0.5]},
        {"confidence": [0.5, 0.5, 1.5]},
        {"confidence": [0.5, -0.1, 0.5]},
    ],
)
def test_a_value_that_is_none_spoils_its_own_block(change: dict[str, object]) -> None:
    first, second = cohorts.read_blocks(two_blocks(**change), 100)
    assert first.token_ids == (1,)
    assert second == Block(HERE, empty_reason=EmptyReason.INVALID, watermark=3)


def test_a_reason_nobody_knows_is_invalid() -> None:
    assert cohorts.read_blocks(two_blocks(empty_reasons=[0, 42]), 100)[1].empty_reason is EmptyReason.INVALID


def judged_cohort(labels: Any = None, draws: Any = ()) -> verify_pb2.Verdicts:
    """Three sequences: two slots judged, refused, one slot judged."""
    cursors = [Cursor(number, 0, 1, 9) for number in (4, 5, 6)]
    refused = Refusal(RefusalReason.INVALID, "no")
    outcomes = [Verdict(cursors[0], 1, 7, 9, 2), refused, Verdict(cursors[2], 0, 7, 9, 1)]
    return cohorts.write_verdicts(cohorts.write_cursors(cursors), outcomes, labels=labels, draws=draws)


def test_labels_stand_where_their_slots_do() -> None:
    known = np.array([[1.0, 0.5], [0.5, 0.25]], np.float32)
    assert cohorts.read_labels(judged_cohort()) is None
    told = cohorts.read_labels(judged_cohort({4: known}))
    assert told is not None
    assert told[:2].tolist() == known.tolist()
    assert np.isnan(told[2]).all()
    # Of another length: of other slots, so of nobody here.
    told = cohorts.read_labels(judged_cohort({4: known[:1], 6: known[:1]}))
    assert told is not None
    assert np.isnan(told[:2]).all()
    assert told[2].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("spoil", [b"1234", *(np.full((3, 2), wrong, "<f4").tobytes() for wrong in (1.5, -0.1))])
def test_labels_that_are_none_break_the_protocol(spoil: bytes) -> None:
    message = judged_cohort()
    message.labels = spoil
    with pytest.raises(PeerError, match="labels"):
        cohorts.read_labels(message)


def test_draws_come_back_as_they_went() -> None:
    sums = Draws("v", 3, (3, *[0] * (PLACES - 1)), -0.5, 0.4, 2, 0.1, 0.2)
    assert cohorts.read_draws(judged_cohort(draws=[sums]).draws) == (sums,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 4),
        ("places", [1, 2]),
        ("drift", 3.5),
        ("drift", float("nan")),
        ("variance", -1.0),
        ("variance", float("inf")),
        ("luck", -2.5),
        ("luck_variance", 9.0),
    ],
)
def test_draws_that_cannot_be_sums_break_the_protocol(field: str, value: Any) -> None:
    sums = Draws("v", 3, (3, *[0] * (PLACES - 1)), -0.5, 0.4, 2, 0.1, 0.2)
    message = judged_cohort(draws=[sums]).draws[0]
    if field == "places":
        del message.places[:]
        message.places.extend(value)
    else:
        setattr(message, field, value)
    with pytest.raises(PeerError, match="draws"):
        cohorts.read_draws([message])
