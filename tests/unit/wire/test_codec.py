"""There and back for every noun, and refusals that name the field."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import PeerError
from dspark.types import Rule, SamplingParams
from dspark.wire import codec
from dspark.wire.tensors import FP8, read_tensor, write_rows
from dspark.wire.v1 import types_pb2

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
def test_a_form_that_a_verifier_would_not_let_in_is_refused_before_it_is_sent(
    text: str, what: str
) -> None:
    with pytest.raises(PeerError, match=rf"^constraint\.regex: \d+ {what}, at most"):
        codec.read_constraint(types_pb2.Constraint(regex=text))
    assert codec.read_constraint(types_pb2.Constraint(regex="世" * 100)) is not None
