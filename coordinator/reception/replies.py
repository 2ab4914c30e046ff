"""What clients are told, as messages: parts of answers as they are read, then how all of a request's ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from coordinator.answers.commit_log import End, Reason
from coordinator.answers.tally import Tally
from coordinator.reception.reading import Reader, Reading, Shown
from dspark.types import PromptLogprobs, Rule
from dspark.wire import codec
from dspark.wire.v1 import generate_pb2, types_pb2

_FINISH = {
    Reason.STOP: generate_pb2.FINISH_REASON_STOP,
    Reason.LENGTH: generate_pb2.FINISH_REASON_LENGTH,
    Reason.ABORT: generate_pb2.FINISH_REASON_ABORT,
}


def chunk(request_id: str, shown: Shown) -> generate_pb2.GenerateResponse:
    made = generate_pb2.GenerateStreamChunk(
        token_ids=shown.tokens,
        text=shown.text,
        offset=shown.offset,
        index=shown.index,
        logprobs=codec.write_logprobs(shown.logprobs) if shown.logprobs else None,
    )
    return generate_pb2.GenerateResponse(request_id=request_id, chunk=made)


def parts(
    request_id: str, shown: Iterable[Shown], scored: PromptLogprobs | None
) -> Iterator[generate_pb2.GenerateResponse]:
    """What came together, the prompt's first."""
    if scored is not None:
        yield prompt_logprobs(request_id, scored)
    for one in shown:
        yield chunk(request_id, one)


def prompt_logprobs(request_id: str, told: PromptLogprobs) -> generate_pb2.GenerateResponse:
    return generate_pb2.GenerateResponse(request_id=request_id, prompt_logprobs=codec.write_prompt_logprobs(told))


def complete(reader: Reader) -> generate_pb2.GenerateResponse:
    """The last message of a request, whose answers have all ended."""
    request, readings = reader.request, reader.readings
    tally = Tally.together([reading.tally for reading in readings])
    message = generate_pb2.GenerateComplete(
        usage=generate_pb2.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=sum(reading.answered for reading in readings),
            cached_tokens=max(reading.cached_tokens for reading in readings),
        ),
        speculation=generate_pb2.SpeculationStats(
            rounds=tally.rounds,
            draft_tokens=tally.drafted,
            verified_tokens=tally.verified,
            accepted_tokens=tally.accepted,
            mean_acceptance_length=tally.mean_acceptance_length,
            acceptance_histogram=tally.acceptance_histogram,
            verified_histogram=tally.verified_histogram,
            policy=str(request.policy),
            rule=rule(request.law.rule),
        ),
        timings=generate_pb2.Timings(
            queue_ms=1e3 * tally.queue_s(),
            ttft_ms=1e3 * tally.first_token_s(),
            itl_ms=1e3 * _per_token_s(readings),
            total_ms=1e3 * tally.total_s(),
        ),
        choices=[
            generate_pb2.ChoiceComplete(index=reading.index, completion_tokens=reading.answered) for reading in readings
        ],
    )
    for reading, choice in zip(readings, message.choices, strict=True):
        _write_end(choice, reading.end)
    _write_end(message, readings[0].end)
    return generate_pb2.GenerateResponse(request_id=request.id, complete=message)


def rule(of: Rule) -> types_pb2.Rule:
    return cast("types_pb2.Rule", int(of))


def _write_end(message: generate_pb2.GenerateComplete | generate_pb2.ChoiceComplete, end: End | None) -> None:
    assert end is not None, "a complete answer has an end"
    message.finish_reason = _FINISH[end.reason]
    if end.token_id is not None:
        message.matched_token_id = end.token_id
    if end.text is not None:
        message.matched_stop_str = end.text


def _per_token_s(readings: Sequence[Reading]) -> float:
    """Mean time per token after the first of each answer."""
    spent = sum(reading.tally.per_token_s(reading.answered) * (reading.answered - 1) for reading in readings)
    return spent / max(sum(reading.answered - 1 for reading in readings if reading.answered > 1), 1)
