"""There and back for every noun, and refusals that name the field; of blocks the column, whatever
their rows hold; infinities and NaN by their bits, of every value that sixteen bits can be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import PeerError
from dspark.types import Block, Cursor, EmptyReason, Rule, SamplingParams, SparseQ
from dspark.wire import codec
from dspark.wire.blocks import read_blocks, write_blocks
from dspark.wire.finite import EXPONENT, finite
from dspark.wire.tensors import FP8, read_tensor, write_rows
from dspark.wire.v1 import draft_pb2, types_pb2
from tests.columns import rows_of

U32 = st.integers(0, 2**32 - 1)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


PENALTIES, BIAS = st.floats(-2, 2), st.floats(-100, 100, width=32)
LAWS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_p=st.floats(0.001, 1),
    top_k=U32,
    seed=st.integers(0, 2**64 - 1),
    choice=U32,
    rule=st.sampled_from(list(Rule)),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    presence_penalty=PENALTIES,
    frequency_penalty=PENALTIES,
    logit_bias=st.dictionaries(U32, BIAS, max_size=5).map(lambda bias: tuple(sorted(bias.items()))),
    min_tokens=U32,
    stop_token_ids=st.lists(U32, max_size=3).map(tuple),
    logprobs=st.one_of(st.none(), st.integers(0, 20)),
    prompt_len=U32,
)


@given(LAWS)
def test_law_there_and_back(params: SamplingParams) -> None:
    assert codec.read_sampling(codec.write_sampling(params)) == params


def test_a_law_of_an_older_coordinator_asks_for_nothing_more() -> None:
    params = codec.read_sampling(
        types_pb2.SequenceSampling(temperature=1.0, top_p=1.0, rule=types_pb2.RULE_TOKEN)
    )
    assert params == SamplingParams()
    assert not params.shapes


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"rule": 0}, "rule"),
        *(({"min_p": bad}, "min_p") for bad in (*NOT_FINITE, -0.1, 1.5)),
        *(
            ({"repetition_penalty": bad}, "repetition_penalty")
            for bad in (*NOT_FINITE, 0.0, -1.0, 100.5)
        ),
        *(({"presence_penalty": bad}, "presence_penalty") for bad in (*NOT_FINITE, 2.5)),
        *(({"frequency_penalty": bad}, "frequency_penalty") for bad in (*NOT_FINITE, -2.5)),
        *(({"logit_bias": {1: bad}}, "logit_bias") for bad in (*NOT_FINITE, 101.0)),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ({"stop_token_ids": range(1025)}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_a_malformed_law_is_refused_by_field(change: dict[str, object], field: str) -> None:
    good: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "rule": 1}
    with pytest.raises(PeerError, match=f"^sampling.{field}"):
        codec.read_sampling(types_pb2.SequenceSampling(**(good | change)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensor_there_and_back(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 8).to(dtype)
    back = read_tensor(write_rows(rows, str(dtype).removeprefix("torch.")), width=8, max_rows=5)
    assert back.dtype == dtype
    assert torch.equal(back, rows)


def test_float8_rows_come_back_within_their_precision_each_with_its_own_scale() -> None:
    rows = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)) * torch.logspace(
        -20, 20, 6
    ).unsqueeze(-1)
    rows[3] = 0.0
    chunk = write_rows(rows, FP8)
    assert len(chunk.data) == 6 * (4 + 16)
    back = read_tensor(chunk, width=16, max_rows=6)
    assert back.dtype == torch.float32
    largest = rows.abs().amax(dim=-1, keepdim=True)
    assert ((back - rows).abs() <= torch.maximum(rows.abs() / 16, largest / 448 / 512)).all()
    assert torch.equal(
        read_tensor(write_rows(rows, "bfloat16"), width=16, max_rows=6), rows.bfloat16()
    )


@pytest.mark.parametrize(
    ("place", "byte"),
    [
        (4, b"\x7f"),
        (0, b"\x00\x00\xc0\x7f"),
        (0, b"\x00\x00\x80\x7f"),
        (0, b"\x00\x00\x80\xbf"),
        (0, None),
    ],
)
def test_malformed_float8_rows_are_refused(place: int, byte: bytes | None) -> None:
    chunk = write_rows(torch.ones(2, 8), FP8)
    data = chunk.data
    chunk.data = data[:-1] if byte is None else data[:place] + byte + data[place + len(byte) :]
    with pytest.raises(PeerError, match=r"^rows\.data"):
        read_tensor(chunk, width=8, max_rows=8)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "int8"}, "rows.dtype"),
        ({"shape": [2, 3]}, "rows.shape"),
        ({"shape": [8]}, "rows.shape"),
        ({"shape": [0, 4]}, "rows.shape"),
        ({"shape": [9, 4]}, "rows.shape"),
        ({"data": b"\0" * 31}, "rows.data"),
        ({"data": b"\xff" * 32}, "rows.data"),
    ],
)
def test_a_malformed_tensor_is_refused_by_field(change: dict[str, object], field: str) -> None:
    good = write_rows(torch.zeros(2, 4), "float32")
    fields: dict[str, object] = {"dtype": good.dtype, "shape": list(good.shape), "data": good.data}
    with pytest.raises(PeerError, match=f"^{field}"):
        read_tensor(types_pb2.TensorChunk(**(fields | change)), width=4, max_rows=8)


@pytest.mark.parametrize(
    ("text", "what"), [("a" * 262_145, "characters"), ("世" * 200_000, "bytes")]
)
def test_a_form_that_no_verifier_would_let_in_is_refused_unsent(text: str, what: str) -> None:
    with pytest.raises(PeerError, match=rf"^constraint\.regex: \d+ {what}, at most"):
        codec.read_constraint(types_pb2.Constraint(regex=text))
    assert codec.read_constraint(types_pb2.Constraint(regex="世" * 100)) is not None


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
    blocks = read_blocks(2, two_blocks(empty_reasons=[0, 42]), 100)
    assert blocks.empty_reasons[1] is EmptyReason.INVALID


ALL = np.arange(1 << 16, dtype="<u4")


@pytest.mark.parametrize("dtype", EXPONENT)
def test_finite_is_what_torch_says(dtype: str) -> None:
    wide = dtype == "float32"
    bits = ALL << 16 if wide else ALL.astype("<u2")
    values = torch.from_numpy(bits.view("<i4" if wide else "<i2").copy()).view(
        getattr(torch, dtype)
    )
    assert [finite(dtype, bits[at : at + 1]) for at in range(len(bits))] == torch.isfinite(
        values
    ).tolist()


def test_finite_finds_one_of_many_wherever_it_is_and_no_values_are_fine() -> None:
    bits = np.full(1000, 0x3F80, "<u2")
    assert finite("bfloat16", bits)
    for at, wrong in ((0, 0x7F80), (500, 0xFFC0), (999, 0xFF80)):
        spoilt = bits.copy()
        spoilt[at] = wrong
        assert not finite("bfloat16", spoilt)
    assert finite("bfloat16", bits[:0])
