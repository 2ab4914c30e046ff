"""Blocks of an order there and back, whatever their rows hold, and refusals that name the
column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import PeerError
from dspark.types import Block, Cursor, EmptyReason, SparseQ
from dspark.wire.blocks import read_blocks, write_blocks
from dspark.wire.v1 import draft_pb2
from tests.columns import rows_of

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
    return draft_pb2.Blocks(**write_blocks(blocks, 3, forward_ns=took))


@given(st.lists(any_block(), max_size=6), U32)
def test_blocks_there_and_back(blocks: list[Block], took: int) -> None:
    message = draft_pb2.Blocks.FromString(written(blocks, took).SerializeToString())
    cursors = [block.cursor for block in blocks]
    assert rows_of(read_blocks(len(blocks), message, 100), cursors) == blocks
    assert (message.order, message.forward_ns) == (3, took)


def test_q_comes_back_as_the_very_bytes_and_is_cut_by_slots() -> None:
    ids, probs = np.arange(6, dtype=np.uint32).reshape(3, 2), np.array([[0.5, 0.5]] * 3, np.float32)
    block = Block(HERE, (0, 2, 4), (0.5,) * 3, SparseQ.of(ids, probs))
    drafted, q = read_blocks(1, written([block]), 100).drafted(0, 2)
    assert drafted == (0, 2)
    np.testing.assert_array_equal(q.arrays()[0], ids[:2])
    np.testing.assert_array_equal(q.arrays()[1], probs[:2])


def two_blocks(**change: object) -> draft_pb2.Blocks:
    """One of one slot, one of two; one entry each."""
    good: dict[str, object] = {
        "lengths": [1, 2],
        "token_ids": [1, 2, 3],
        "confidence": [0.5, 1.0, 0.0],
        "q_entries": [1, 1],
        "q_ids": np.array([1, 2, 3], "<u4").tobytes(),
        "q_probs": np.ones(3, "<f4").tobytes(),
        "empty_reasons": [0, 0],
        "watermarks": [3, 3],
    }
    return draft_pb2.Blocks(**(good | change))


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
    ],
)
def test_columns_that_misfit_are_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(PeerError, match=f"^{field}"):
        read_blocks(2, two_blocks(**change), 100)


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
    first, second = rows_of(read_blocks(2, two_blocks(**change), 100), [HERE, HERE])
    assert first.token_ids == (1,)
    assert second == Block(
        HERE, q=SparseQ(1, b"", b""), empty_reason=EmptyReason.INVALID, watermark=3
    )


def test_a_reason_nobody_knows_is_invalid() -> None:
    assert (
        read_blocks(2, two_blocks(empty_reasons=[0, 42]), 100).empty_reasons[1]
        is EmptyReason.INVALID
    )
