"""What clients are told, as messages: pieces of answers as they are committed, then how all of a request's ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from coordinator.answer import Piece
from coordinator.commit_log import End, Reason
from coordinator.tally import Tally
from coordinator.track import Track
from dspark.types import Rule
from dspark.wire import codec
from dspark.wire.v1 import generate_pb2, types_pb2

_FINISH = {
    Reason.STOP: generate_pb2.FINISH_REASON_STOP,
    Reason.LENGTH: generate_pb2.FINISH_REASON_LENGTH,
    Reason.ABORT: generate_pb2.FINISH_REASON_ABORT,
}


def chunk(request_id: str, piece: Piece) -> generate_pb2.GenerateResponse:
    made = generate_pb2.GenerateStreamChunk(
        token_ids=piece.tokens,
        text=piece.text,
        offset=piece.offset,
        index=piece.index,
        logprobs=codec.write_logprobs(piece.logprobs) if piece.logprobs else None,
    )
    return generate_pb2.GenerateResponse(request_id=request_id, chunk=made)


def complete(tracks: Sequence[Track]) -> generate_pb2.GenerateResponse:
    """The last message of a request, whose answers have all ended."""
    first = tracks[0]
    tally = Tally.together([track.tally for track in tracks])
    tokens = [track.answer.log.answered for track in tracks]
    message = generate_pb2.GenerateComplete(
        usage=generate_pb2.Usage(prompt_tokens=len(first.request.prompt), completion_tokens=sum(tokens)),
        speculation=generate_pb2.SpeculationStats(
            rounds=tally.rounds,
            draft_tokens=tally.drafted,
            verified_tokens=tally.verified,
            accepted_tokens=tally.accepted,
            mean_acceptance_length=tally.mean_acceptance_length,
            acceptance_histogram=tally.acceptance_histogram,
            verified_histogram=tally.verified_histogram,
            policy=str(first.request.policy),
            rule=rule(first.request.law.rule),
        ),
        timings=generate_pb2.Timings(
            queue_ms=1e3 * tally.queue_s(),
            ttft_ms=1e3 * tally.first_token_s(),
            itl_ms=1e3 * _per_token_s(tracks, tokens),
            total_ms=1e3 * tally.total_s(),
        ),
        choices=[
            generate_pb2.ChoiceComplete(index=track.answer.index, completion_tokens=count)
            for track, count in zip(tracks, tokens, strict=True)
        ],
    )
    for track, choice in zip(tracks, message.choices, strict=True):
        _write_end(choice, track.end)
    _write_end(message, first.end)
    return generate_pb2.GenerateResponse(request_id=first.request.id, complete=message)


def rule(of: Rule) -> types_pb2.Rule:
    return cast("types_pb2.Rule", int(of))


def _write_end(message: generate_pb2.GenerateComplete | generate_pb2.ChoiceComplete, end: End | None) -> None:
    assert end is not None, "a complete answer has an end"
    message.finish_reason = _FINISH[end.reason]
    if end.token_id is not None:
        message.matched_token_id = end.token_id
    if end.text is not None:
        message.matched_stop_str = end.text


def _per_token_s(tracks: Sequence[Track], tokens: Sequence[int]) -> float:
    """Mean time per token after the first of each answer."""
    spent = sum(track.tally.per_token_s(count) * (count - 1) for track, count in zip(tracks, tokens, strict=True))
    return spent / max(sum(count - 1 for count in tokens if count > 1), 1)
