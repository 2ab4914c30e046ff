"""Requests that are too large are refused by their bytes, and proper ones pass whatever is in them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import InvalidRequest
from dspark.runtime.wire_limits import MAX_REQUEST, MOST_PARTS, check_size, request_bytes
from dspark.wire.v1 import generate_pb2

GENERATE, ABORT = "/dspark.wire.v1.Generation/Generate", "/dspark.wire.v1.Generation/Abort"


def test_the_largest_proper_request_passes() -> None:
    params = generate_pb2.SamplingParams(
        stop=["\U0001f600" * 256] * 16,
        stop_token_ids=[2**32 - 1] * 64,
        logit_bias=dict.fromkeys(range(2**32 - 1024, 2**32), -99.5),
        max_tokens=2**32 - 1,
        seed=2**63 - 1,
    )
    request = generate_pb2.GenerateRequest(
        request_id="\U0001f600" * 128,
        text="x" * (4 << 20),
        sampling_params=params,
        cache_salt="\U0001f600" * 128,
        resume=generate_pb2.Resume(offsets=[2**32 - 1] * 16),
    )
    check_size(GENERATE, request.SerializeToString())
    check_size(ABORT, generate_pb2.AbortRequest(request_ids=["i" * 128] * 1024).SerializeToString())
    check_size("/dspark.wire.v1.Verify/Session", bytes(1 << 20))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (generate_pb2.GenerateRequest(request_id="x" * 2000), "request_id"),
        (generate_pb2.GenerateRequest(text="x" * ((4 << 20) + 1)), "text"),
        (
            generate_pb2.GenerateRequest(
                sampling_params=generate_pb2.SamplingParams(logit_bias=dict.fromkeys(range(9000), 1.0))
            ),
            "sampling_params",
        ),
        (generate_pb2.GenerateRequest(resume=generate_pb2.Resume(offsets=[1] * 5000)), "resume"),
    ],
)
def test_a_part_that_is_too_large_is_named(request_: generate_pb2.GenerateRequest, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_size(GENERATE, request_.SerializeToString())
    assert caught.value.field == named


def test_a_prompt_is_bounded_by_what_a_context_holds() -> None:
    room = request_bytes(4096)
    largest = generate_pb2.TokenizedInput(input_ids=[2**32 - 1] * 4096)
    check_size(GENERATE, generate_pb2.GenerateRequest(tokenized=largest).SerializeToString(), room)
    check_size(GENERATE, generate_pb2.GenerateRequest(text="\U0001f600" * 4096).SerializeToString(), room)
    for request in (
        generate_pb2.GenerateRequest(tokenized=generate_pb2.TokenizedInput(input_ids=[1] * 1_000_000)),
        generate_pb2.GenerateRequest(text="x" * (room + 1)),
    ):
        with pytest.raises(InvalidRequest, match=f"at most {room} are allowed"):
            check_size(GENERATE, request.SerializeToString(), room)
    assert request_bytes(1 << 30) == MAX_REQUEST


def test_many_small_parts_are_too_many() -> None:
    with pytest.raises(InvalidRequest, match="parts"):
        check_size(GENERATE, generate_pb2.GenerateRequest(request_id="x").SerializeToString() * (MOST_PARTS + 1))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_the_parsers_business(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_size(GENERATE, data)
