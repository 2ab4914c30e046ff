"""Requests that are too large are refused by their bytes, and proper ones pass whatever is in them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service import feature_sink
from draft_service import session as draft_session
from dspark.errors import InvalidRequest
from dspark.runtime.wire_limits import LOOKED_AT, MAX_REQUEST, MOST_PARTS, check_size, reading, request_bytes, trimmed
from dspark.wire.v1 import draft_pb2, features_pb2, generate_pb2, types_pb2, verify_pb2
from verify_service.commands import bounds

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
    assert request_bytes(1 << 30) < MAX_REQUEST, "the rest of a request has room beside it"


def test_many_small_parts_are_too_many() -> None:
    with pytest.raises(InvalidRequest, match="parts"):
        check_size(GENERATE, generate_pb2.GenerateRequest(request_id="x").SerializeToString() * (MOST_PARTS + 1))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_the_parsers_business(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_size(GENERATE, data)


MANY = [1] * 1_000_000
CURSOR = types_pb2.Cursor(sequence=7, epoch=1, round=2, committed_len=9)


def test_a_prompt_beyond_the_context_is_left_out_of_its_command() -> None:
    prefill = verify_pb2.Prefill(cursor=CURSOR, token_ids=MANY, cache_salt="s")
    command = verify_pb2.VerifyCommand(tag=3, incarnation=4, prefill=prefill)
    read = reading(verify_pb2.VerifyCommand.FromString, bounds(4096))(command.SerializeToString())
    assert read.too_large is not None
    assert read.too_large.field == "token_ids"
    kept = verify_pb2.Prefill(cursor=CURSOR, cache_salt="s")
    assert read.message == verify_pb2.VerifyCommand(tag=3, incarnation=4, prefill=kept)


def test_columns_of_a_million_are_left_out_of_a_cohort() -> None:
    cursors = types_pb2.Cursors(sequence=MANY, epoch=MANY, round=MANY, committed_len=MANY)
    cohort = verify_pb2.VerifyCohort(cursors=cursors, anchors=MANY, lengths=MANY, source=MANY, q_ids=bytes(10))
    command = verify_pb2.VerifyCommand(tag=3, verify=cohort)
    kept, why = trimmed(command.SerializeToString(), bounds(4096))
    assert why is not None
    assert verify_pb2.VerifyCommand.FromString(kept).verify == verify_pb2.VerifyCohort(q_ids=bytes(10))


def test_values_that_are_not_packed_are_counted() -> None:
    loose = b"\x10\x01" * 100_000  # field 2, a varint each
    command = b"\x1a" + b"\xc0\x9a\x0c" + loose  # a Prefill of 200,000 bytes
    kept, why = trimmed(command, bounds(1 << 20))
    assert why is not None
    assert "parts" in str(why)
    assert len(verify_pb2.VerifyCommand.FromString(kept).prefill.token_ids) <= MOST_PARTS


def test_runs_of_a_chunk_are_counted_before_they_are_parsed() -> None:
    chunk = features_pb2.FeatureChunk(sink_incarnation=5, runs=[features_pb2.FeatureRun(sequence=1)] * 200_000)
    read = reading(features_pb2.FeatureChunk.FromString, feature_sink.BOUNDS)(chunk.SerializeToString())
    assert read.too_large is not None
    assert read.too_large.field == "runs"
    assert read.message.sink_incarnation == 5


def test_a_law_of_a_million_ids_is_left_out_of_an_open() -> None:
    opening = draft_pb2.Open(cursor=CURSOR, reserve_tokens=8, law=types_pb2.Law(stop_token_ids=MANY))
    command = draft_pb2.DraftCommand(tag=6, open=opening)
    read = reading(draft_pb2.DraftCommand.FromString, draft_session.BOUNDS)(command.SerializeToString())
    assert read.too_large is not None
    assert read.too_large.field == "law"
    assert read.message == draft_pb2.DraftCommand(tag=6, open=draft_pb2.Open(cursor=CURSOR, reserve_tokens=8))


def test_the_largest_proper_commands_pass_whole() -> None:
    rows = list(range(1 << 16))
    ids = [2**32 - 1] * len(rows)
    cursors = types_pb2.Cursors(sequence=[2**40 + row for row in rows], epoch=rows, round=ids, committed_len=rows)
    sources = [verify_pb2.Source(sink=types_pb2.FeatureSink(endpoint="x" * 200), drafter_version="v" * 200)] * 64
    cohort = verify_pb2.VerifyCohort(
        cursors=cursors, anchors=ids, lengths=ids, draft_ids=8 * ids, q_entries=ids, source=ids, sources=sources
    )
    cohort.q_ids = bytes(1 << 20)
    drafts = draft_pb2.DraftCohort(cursors=cursors, anchors=ids, features_through=ids, max_slots=ids)
    runs = [features_pb2.FeatureRun(sequence=2**40, epoch=1, start_position=9, token_ids=[5])] * feature_sink.MAX_ROWS
    chunk = features_pb2.FeatureChunk(sink_incarnation=2**60, runs=runs, projection="p" * 64)
    chunk.rows.CopyFrom(types_pb2.TensorChunk(dtype="float32", shape=[len(runs), 64], data=bytes(1 << 20)))
    prefill = verify_pb2.Prefill(cursor=CURSOR, token_ids=[2**32 - 1] * 40_960, cache_salt="\U0001f600" * 512)
    for data, its in (
        (verify_pb2.VerifyCommand(tag=1, verify=cohort).SerializeToString(), bounds(40_960)),
        (verify_pb2.VerifyCommand(tag=1, prefill=prefill).SerializeToString(), bounds(40_960)),
        (draft_pb2.DraftCommand(tag=1, draft=drafts).SerializeToString(), draft_session.BOUNDS),
        (chunk.SerializeToString(), feature_sink.BOUNDS),
    ):
        assert len(data) > LOOKED_AT
        kept, why = trimmed(data, its)
        assert why is None
        assert kept is data


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_of_a_command_are_trimmed_without_an_error(data: bytes) -> None:
    long = data * (1 + LOOKED_AT // len(data))
    kept, why = trimmed(long, bounds(64))
    assert kept == long or why is not None
    assert len(kept) <= len(long)
