"""The public interface: one call per request, its answers as chunks and then one `complete`.

A client that cancels, vanishes or runs out of time frees its sequences in both pools at once. This servicer holds no
state of its own: everything is in the tracks, one per answer, and they belong to admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc

from coordinator import replies
from coordinator.admission import Cancelled
from coordinator.answer import Piece
from coordinator.clock import Clock
from coordinator.commit_log import Reason
from coordinator.frontdesk import FrontDesk
from coordinator.track import Track
from dspark.errors import Expired, InvalidRequest
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

MAX_ABORTS = 1024


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """Generate, Abort, GetModelInfo."""

    def __init__(self, desk: FrontDesk, clock: Clock, longest_s: float) -> None:
        self._desk, self._clock, self._longest_s = desk, clock, longest_s

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        remaining = context.time_remaining()
        budget_s = self._longest_s if remaining is None else min(remaining, self._longest_s)
        tracks = await self._desk.accept(request)
        name, outlet = tracks[0].request.id, tracks[0].outlet
        timer = self._clock.call_later(budget_s, self._end, tracks, Expired(f"no answer within {budget_s:.3g} s"))
        try:
            while (piece := await outlet.get()) is not None:
                yield replies.chunk(name, piece)
            for track in tracks:
                if track.end is not None and track.end.reason is Reason.ABORT:
                    answer = track.answer
                    rest = Piece((), answer.remainder(), answer.log.answered, track.end, answer.index)
                    yield replies.chunk(name, rest)
            yield replies.complete(tracks)
        finally:
            timer.cancel()
            self._end(tracks, Cancelled("the client went away"))  # a no-op unless the call was cut short

    def _end(self, tracks: Sequence[Track], error: Exception) -> None:
        for track in tracks:
            self._desk.admission.ended(track, error)

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
            rule=replies.rule(limits.rule),
            has_tokenizer=limits.has_tokenizer,
        )
