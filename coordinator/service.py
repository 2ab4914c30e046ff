"""The public interface: one answer per call, as chunks and then one `complete`.

A client that cancels, vanishes or runs out of time frees its sequence in both pools at once. This servicer holds no
state of its own: everything is in the track, and the track belongs to admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import grpc

from coordinator.admission import Cancelled
from coordinator.answer import Piece
from coordinator.clock import Clock
from coordinator.commit_log import Reason
from coordinator.frontdesk import FrontDesk
from coordinator.track import Track
from dspark.errors import Expired, InvalidRequest
from dspark.types import Rule
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc, types_pb2

MAX_ABORTS = 1024

_FINISH = {
    Reason.STOP: generate_pb2.FINISH_REASON_STOP,
    Reason.LENGTH: generate_pb2.FINISH_REASON_LENGTH,
    Reason.ABORT: generate_pb2.FINISH_REASON_ABORT,
}


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """Generate, Abort, GetModelInfo."""

    def __init__(self, desk: FrontDesk, clock: Clock, longest_s: float) -> None:
        self._desk, self._clock, self._longest_s = desk, clock, longest_s

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        remaining = context.time_remaining()
        budget_s = self._longest_s if remaining is None else min(remaining, self._longest_s)
        track = await self._desk.accept(request)
        end = self._desk.admission.ended
        timer = self._clock.call_later(budget_s, end, track, Expired(f"no answer within {budget_s:.3g} s"))
        try:
            while (piece := await track.outlet.get()) is not None:
                yield _chunk(track, piece)
            if track.end is not None and track.end.reason is Reason.ABORT:
                yield _chunk(track, Piece((), track.answer.remainder(), track.answer.log.answered, track.end))
            yield _complete(track)
        finally:
            timer.cancel()
            end(track, Cancelled("the client went away"))  # a no-op unless the call was cut short

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.AbortReply:
        if len(request.request_ids) > MAX_ABORTS:
            raise InvalidRequest("request_ids", f"{len(request.request_ids)} ids, at most {MAX_ABORTS} are allowed")
        return generate_pb2.AbortReply(
            aborted=[name for name in request.request_ids if self._desk.admission.abort(name)]
        )

    async def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.GetModelInfoReply:
        limits = self._desk.limits()
        drafter = next(iter(self._desk.membership.drafters), None)
        return generate_pb2.GetModelInfoReply(
            model=self._desk.membership.verifiers[0].model,
            drafter=drafter.model if drafter else "",
            vocab_size=limits.vocab_size,
            context_length=limits.context_length,
            block_size=drafter.block_size if drafter else 0,
            stop_token_ids=limits.stop_token_ids,
            policy=str(limits.policy),
            rule=_rule(limits.rule),
            has_tokenizer=limits.has_tokenizer,
        )


def _chunk(track: Track, piece: Piece) -> generate_pb2.GenerateResponse:
    chunk = generate_pb2.GenerateStreamChunk(token_ids=piece.tokens, text=piece.text, offset=piece.offset)
    return generate_pb2.GenerateResponse(request_id=track.request.id, chunk=chunk)


def _complete(track: Track) -> generate_pb2.GenerateResponse:
    tally, end, tokens = track.tally, track.end, track.answer.log.answered
    assert end is not None, "a complete answer has an end"
    complete = generate_pb2.GenerateComplete(
        finish_reason=_FINISH[end.reason],
        matched_token_id=end.token_id,
        usage=generate_pb2.Usage(prompt_tokens=len(track.request.prompt), completion_tokens=tokens),
        speculation=generate_pb2.SpeculationStats(
            rounds=tally.rounds,
            draft_tokens=tally.drafted,
            verified_tokens=tally.verified,
            accepted_tokens=tally.accepted,
            mean_acceptance_length=tally.mean_acceptance_length,
            acceptance_histogram=tally.acceptance_histogram,
            verified_histogram=tally.verified_histogram,
            policy=str(track.request.policy),
            rule=_rule(track.request.law.rule),
        ),
        timings=generate_pb2.Timings(
            queue_ms=1e3 * tally.queue_s(),
            ttft_ms=1e3 * tally.first_token_s(),
            itl_ms=1e3 * tally.per_token_s(tokens),
            total_ms=1e3 * tally.total_s(),
        ),
    )
    if end.text is not None:
        complete.matched_stop_str = end.text
    return generate_pb2.GenerateResponse(request_id=track.request.id, complete=complete)


def _rule(rule: Rule) -> types_pb2.Rule:
    return cast("types_pb2.Rule", int(rule))
