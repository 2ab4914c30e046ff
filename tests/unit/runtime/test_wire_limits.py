"""Requests that are too large are refused by their bytes, and proper ones pass whatever is in
them."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service import feature_receiver, rounds
from dspark.errors import InvalidRequest
from dspark.runtime.wire_limits import (
    LOOKED_AT,
    MAX_REQUEST,
    MOST_PARTS,
    check_size,
    reading,
    request_bytes,
    too_large,
)
from dspark.wire.v1 import draft_pb2, features_pb2, generate_pb2, verify_pb2
from verify_service.service import control_bounds

GENERATE, ABORT = "/dspark.wire.v1.Generation/Generate", "/dspark.wire.v1.Generation/Abort"


MANY = [1] * 1_000_000


def asked(**fields: Any) -> bytes:
    return generate_pb2.GenerateRequest(**fields).SerializeToString()


def test_the_largest_proper_request_passes() -> None:
    params = {
        "stop": ["\U0001f600" * 256] * 16,
        "stop_token_ids": [2**32 - 1] * 64,
        "logit_bias": dict.fromkeys(range(2**32 - 1024, 2**32), -99.5),
        "max_tokens": 2**32 - 1,
        "seed": 2**63 - 1,
    }
    fields = {
        "request_id": "\U0001f600" * 128,
        "text": "x" * (4 << 20),
        "cache_salt": "\U0001f600" * 128,
        "resume": {"offsets": [2**32 - 1] * 16},
    }
    check_size(GENERATE, asked(**fields, sampling_params=params))
    check_size(ABORT, generate_pb2.AbortRequest(request_ids=["i" * 128] * 1024).SerializeToString())
    check_size("/dspark.wire.v1.Verify/Session", bytes(1 << 20))


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ("request_id", "x" * 2000),
        ("text", "x" * ((4 << 20) + 1)),
        ("sampling_params", {"logit_bias": dict.fromkeys(range(9000), 1.0)}),
        ("resume", {"offsets": [1] * 5000}),
    ],
)
def test_a_too_large_part_is_named(named: str, part: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_size(GENERATE, asked(**{named: part}))
    assert caught.value.field == named


def test_what_is_too_large_as_a_whole_or_no_field_at_all_is_refused() -> None:
    unknown = b"\xa2\x06\x88\x27" + bytes(5000)  # field 100, with 5000 bytes
    with pytest.raises(InvalidRequest, match=r"^message: 5000 bytes, at most 1024 are allowed"):
        check_size(GENERATE, unknown)
    with pytest.raises(InvalidRequest, match=r"^request: 307200 bytes, at most 262144 are"):
        check_size(ABORT, bytes(300 << 10))


def test_a_prompt_is_bounded_by_what_a_context_holds() -> None:
    room = request_bytes(4096)
    check_size(GENERATE, asked(tokenized={"input_ids": [2**32 - 1] * 4096}), room)
    check_size(GENERATE, asked(text="\U0001f600" * 4096), room)
    for wrong in (asked(tokenized={"input_ids": MANY}), asked(text="x" * (room + 1))):
        with pytest.raises(InvalidRequest, match=f"at most {room} are allowed"):
            check_size(GENERATE, wrong, room)
    assert request_bytes(1 << 30) < MAX_REQUEST, "the rest of a request has room beside it"


def test_many_small_parts_are_too_many() -> None:
    with pytest.raises(InvalidRequest, match="parts"):
        check_size(GENERATE, asked(request_id="x") * (MOST_PARTS + 1))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_the_parsers_business(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_size(GENERATE, data)


def told(**order: object) -> verify_pb2.ControlDown:
    return verify_pb2.ControlDown(incarnation=4, orders=[verify_pb2.ControlDown.Order(**order)])


OPENING = {"sequence": 7, "reserve_tokens": 8}


@pytest.mark.parametrize(
    ("command", "bounds", "field"),
    [
        (
            told(admission={"sequence": 7, "token_ids": MANY, "cache_salt": "s"}),
            control_bounds(4096),
            "token_ids",
        ),
        (
            draft_pb2.RoundsCommand(
                order={"order": 3, "sequence": MANY, "epoch": MANY, "anchors": MANY}
            ),
            rounds.BOUNDS,
            "order.sequence",
        ),
        (
            draft_pb2.RoundsCommand(open={**OPENING, "sampling": {"stop_token_ids": MANY}}),
            rounds.BOUNDS,
            "sampling",
        ),
        (
            features_pb2.FeatureChunk(sink_incarnation=5, token_ids=[1] * 200_000),
            feature_receiver.BOUNDS,
            "token_ids",
        ),
    ],
)
def test_a_command_with_a_part_that_is_too_large_is_not_parsed(
    command: Any, bounds: Any, field: str
) -> None:
    data = command.SerializeToString()
    read = reading(type(command).FromString, bounds)(data)
    assert read.too_large is not None
    assert read.too_large.field == field
    assert (read.message, read.size) == (type(command)(), len(data))


def test_values_that_are_not_packed_are_counted() -> None:
    loose = b"\x18\x01" * 100_000  # field 3, a varint each
    # an order of an admission
    command = b"\x12" + b"\xc4\x9a\x0c" + b"\x0a" + b"\xc0\x9a\x0c" + loose
    assert "parts" in str(too_large(memoryview(command), control_bounds(1 << 20)))


def test_the_largest_proper_commands_pass_whole() -> None:
    numbers = list(range(1 << 16))
    ids = [2**32 - 1] * len(numbers)
    sequences = [2**40 + number for number in numbers]
    order = draft_pb2.Order(
        order=1,
        sequence=sequences,
        epoch=numbers,
        round=ids,
        committed_len=numbers,
        anchors=ids,
        slots=ids,
        rows=ids,
        token_ids=[2**32 - 1] * 4096,
        features={"dtype": "float32", "shape": [4096, 64], "data": bytes(1 << 20)},
    )
    chunk = features_pb2.FeatureChunk(
        sink_incarnation=2**60,
        projection="p" * 64,
        sequence=2**40,
        token_ids=[2**32 - 1] * feature_receiver.MAX_ROWS,
        rows={"dtype": "float32", "shape": [feature_receiver.MAX_ROWS, 64], "data": bytes(1 << 20)},
    )
    longest = [2**32 - 1] * 40_960
    admission = {"sequence": 7, "token_ids": longest, "cache_salt": "\U0001f600" * 512}
    columns = {"sequence": sequences, "epoch": ids}
    for data, its in (
        (told(admission=admission).SerializeToString(), control_bounds(40_960)),
        (told(kept=columns).SerializeToString(), control_bounds(40_960)),
        (draft_pb2.RoundsCommand(order=order).SerializeToString(), rounds.BOUNDS),
        (chunk.SerializeToString(), feature_receiver.BOUNDS),
    ):
        assert len(data) > LOOKED_AT
        assert too_large(memoryview(data), its) is None


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_of_a_command_are_checked_without_an_error(data: bytes) -> None:
    too_large(memoryview(data * (1 + LOOKED_AT // len(data))), control_bounds(64))
