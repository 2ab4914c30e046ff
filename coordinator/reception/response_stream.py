"""The stream of a request's answers from the cell to a reader, the same for every entry, and its
gRPC messages.

Every reader calls `leave` in the end, which frees unfinished sequences in both pools at once. What
waits for a reader slower than the cell is returned in one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from coordinator.answers.answer import CommittedTokens, End, RequestStats
from coordinator.answers.output_queue import OutputQueue
from coordinator.cells.cell import RequestHandle
from coordinator.cells.cell_wire import FINISH_REASONS
from coordinator.clock import Timer
from coordinator.reception.output_processor import OutputChunk, OutputProcessor, per_token_s
from dspark.errors import PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, ScoredPrompt
from dspark.wire import codec
from dspark.wire.v1 import generate_pb2, types_pb2


class ResponseStream:
    """A submitted request: reads its committed pieces from a queue and returns what to show.

    timer: ends the request at its deadline. why_left: the error that ends it when its reader left.
    """

    def __init__(
        self,
        call: RequestHandle,
        sink: OutputQueue,
        output: OutputProcessor,
        timer: Timer,
        metrics: Metrics,
        why_left: Callable[[], Exception],
    ) -> None:
        self.request, self.output = output.request, output
        self._call, self._sink, self._metrics = call, sink, metrics
        self._timer, self._why_left = timer, why_left
        # the pieces of the newest parts, with clock times
        self.pieces: list[tuple[CommittedTokens, float]] = []
        self.scored: ScoredPrompt | None = None  # the prompt's log-probabilities, if among them
        metrics.client_streams.inc()

    @property
    def done(self) -> bool:
        """Whether every answer has ended."""
        return self.output.done

    async def parts(self) -> list[OutputChunk]:
        """Waits for new pieces and returns all there are: one chunk per answer, none for an answer
        that cannot show anything yet. Raises the error that ended the request."""
        waiting = await self._sink.take()
        if waiting is None:
            raise PeerError("the cell closed a request whose answers have not ended")
        self.pieces = waiting
        had = self.output.prompt_logprobs
        shown = self.output.read(waiting)
        for one in shown:
            if one.end is not None and one.end.text is not None:  # a stop string ended it
                self._call.finish(one.index)
        self.scored = self.output.prompt_logprobs if had is None else None
        self._metrics.client_chunks.inc(sum(one.says for one in shown))
        return shown

    def cut(self, error: Exception) -> None:
        """Ends every unfinished answer; `parts` raises the error."""
        self._call.cut(error)

    def leave(self) -> None:
        """Ends the stream, because its reader is done or gone. Call it exactly once."""
        self._timer.cancel()
        self._metrics.client_streams.dec()
        if unsaid := self.output.unsaid:
            self._metrics.dropped.labels(kind="token", reason="behind_stop_string").inc(unsaid)
        self._call.cut(self._why_left())  # a no-op unless the answers were cut short


def _write_chunk(request_id: str, shown: OutputChunk) -> generate_pb2.GenerateResponse:
    made = generate_pb2.GenerateStreamChunk(
        token_ids=shown.tokens,
        text=shown.text,
        offset=shown.offset,
        index=shown.index,
        logprobs=codec.write_logprobs(shown.logprobs) if shown.logprobs else None,
    )
    return generate_pb2.GenerateResponse(request_id=request_id, chunk=made)


def write_parts(
    request_id: str, shown: Iterable[OutputChunk], scored: ScoredPrompt | None
) -> Iterator[generate_pb2.GenerateResponse]:
    """Messages of the parts, after one of the prompt's log-probabilities if there are any."""
    if scored is not None:
        told = codec.write_prompt_logprobs(scored)
        yield generate_pb2.GenerateResponse(request_id=request_id, prompt_logprobs=told)
    for one in filter(lambda one: one.says, shown):
        yield _write_chunk(request_id, one)


def write_complete(output: OutputProcessor) -> generate_pb2.GenerateResponse:
    """The last message of a request whose answers have all ended."""
    request, answers = output.request, output.answers
    stats = RequestStats.together([answer.stats for answer in answers])
    message = generate_pb2.GenerateComplete(
        usage=generate_pb2.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=sum(answer.answered for answer in answers),
            cached_tokens=max(answer.cached_tokens for answer in answers),
        ),
        speculation=generate_pb2.SpeculationStats(
            rounds=stats.rounds,
            draft_tokens=stats.drafted,
            verified_tokens=stats.verified,
            accepted_tokens=stats.accepted,
            mean_acceptance_length=stats.mean_acceptance_length,
            acceptance_histogram=stats.acceptance_histogram,
            verified_histogram=stats.verified_histogram,
            policy=str(request.policy),
            rule=write_rule(request.params.rule),
        ),
        timings=generate_pb2.Timings(
            queue_ms=1e3 * stats.queue_s(),
            ttft_ms=1e3 * stats.first_token_s(),
            itl_ms=1e3 * per_token_s(answers),
            total_ms=1e3 * stats.total_s(),
        ),
        choices=[
            generate_pb2.ChoiceComplete(index=answer.index, completion_tokens=answer.answered)
            for answer in answers
        ],
    )
    for answer, choice in zip(answers, message.choices, strict=True):
        _write_end(choice, answer.end)
    _write_end(message, answers[0].end)
    return generate_pb2.GenerateResponse(request_id=request.id, complete=message)


def write_rule(of: Rule) -> types_pb2.Rule:
    return cast("types_pb2.Rule", int(of))


def _write_end(
    message: generate_pb2.GenerateComplete | generate_pb2.ChoiceComplete, end: End | None
) -> None:
    assert end is not None, "a complete answer has an end"
    message.finish_reason = FINISH_REASONS[end.reason]
    if end.token_id is not None:
        message.matched_token_id = end.token_id
    if end.text is not None:
        message.matched_stop_str = end.text
