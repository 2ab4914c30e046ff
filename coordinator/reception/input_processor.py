"""Accepts requests: checks and tokenizes a request, submits it to the cell, and returns the stream
of its answers.

Every entry that serves clients, gRPC or HTTP, calls `accept`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from coordinator.answers.output_queue import OutputQueue, WakeUpLimit
from coordinator.cells.cell import CellPort, SubmitRequest
from coordinator.clock import Clock, beside
from coordinator.reception.output_processor import OutputProcessor
from coordinator.reception.response_stream import ResponseStream
from coordinator.reception.tokenizer import Tokenizer
from coordinator.requests.validation import (
    MAX_TEXT,
    check_count,
    check_head,
    read_request,
    read_resume,
)
from dspark.errors import Expired, InvalidRequest, RequestCancelled, Unavailable
from dspark.runtime.security import current_caller
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import MAX_REQUEST, request_bytes
from dspark.wire.v1 import generate_pb2

LONG_TEXT = 4096  # characters above which text is tokenized beside the event loop
LONG_IDS = 1024  # ids above which they are decoded beside the event loop
# How much sooner a client's gRPC may end a call than the timer here: seconds, and a share of the
# deadline, because gRPC rounds the remaining time that it sends.
TOGETHER_S, ROUNDED = 0.05, 0.01


def prompt_bytes(cell: CellPort) -> int:
    """Most bytes of a request that the cell can take; without a verifier, of any request."""
    try:
        return request_bytes(cell.terms().limits.context_length)
    except Unavailable:
        return MAX_REQUEST


async def encoded(
    tokenizer: Tokenizer, text: str, field: str, *, add_special: bool = True
) -> tuple[int, ...]:
    """Text as token ids; InvalidRequest names `field`. Long text is tokenized in a thread."""
    return await beside(
        len(text) > LONG_TEXT, encoded_now, tokenizer, text, field, add_special=add_special
    )


def encoded_now(
    tokenizer: Tokenizer, text: str, field: str, *, add_special: bool = True
) -> tuple[int, ...]:
    """Like `encoded`, on the calling thread."""
    check_count(field, len(text), MAX_TEXT, "characters")
    try:
        return tokenizer.encode(text, add_special=add_special)
    except Exception as error:  # the library raises bare Exception
        raise InvalidRequest(field, "cannot be tokenized") from error


async def decoded(tokenizer: Tokenizer, ids: Sequence[int], field: str, context_length: int) -> str:
    """Token ids as text, special tokens shown; InvalidRequest names `field`."""
    if len(ids) > context_length:
        raise InvalidRequest(
            field, f"{len(ids)} ids are more than the context of {context_length} tokens"
        )
    if any(not 0 <= token < tokenizer.vocab_size for token in ids):
        raise InvalidRequest(
            field, f"an id is not below the vocabulary size {tokenizer.vocab_size}"
        )
    return await beside(len(ids) > LONG_IDS, tokenizer.decode, ids, skip_special=False)


class InputProcessor:
    """Accepts requests and keeps none. max_unread: commits that a client may leave unread, per
    answer. longest_s: longest life of a request."""

    def __init__(
        self,
        cell: CellPort,
        tokenizer: Tokenizer | None,
        clock: Clock,
        metrics: Metrics,
        *,
        max_unread: int = 1024,
        longest_s: float = 600.0,
    ) -> None:
        self.cell, self.tokenizer, self.clock, self.metrics = cell, tokenizer, clock, metrics
        self._max_unread, self._longest_s = max_unread, longest_s
        self._wake_ups = WakeUpLimit()

    async def accept(
        self,
        message: generate_pb2.GenerateRequest,
        remaining_s: float | None = None,
        usual: int | None = None,
    ) -> ResponseStream:
        """Submits a request; raises a DsparkError, whose type shows whether the client is at fault.
        remaining_s: the client's deadline in seconds. usual: `max_tokens` of a request that sets
        none, cut to what the context leaves."""
        arrived = self.clock.time()
        lasts_s = self._longest_s if remaining_s is None else min(remaining_s, self._longest_s)
        has_tokenizer = self.tokenizer is not None
        check_head(message, has_tokenizer)
        resumed = message.request_id if message.HasField("resume") else ""
        tenant = current_caller().tenant
        self.cell.check_capacity(tenant, resumed)
        limits = self.cell.terms().limits
        prompt = await self._prompt(message)
        if usual is not None and not message.sampling_params.HasField("max_tokens"):
            message.sampling_params.max_tokens = max(min(usual, limits.longest - len(prompt)), 1)
        request = read_request(
            message,
            prompt,
            limits,
            name=secrets.token_hex(8),
            seed=secrets.randbits(64),
            tenant=tenant,
            has_tokenizer=has_tokenizer,
        )
        sink = OutputQueue(self._max_unread * request.choices, self._wake_ups)
        output = OutputProcessor(
            request, self.tokenizer, arrived, read_resume(message, request.choices)
        )
        call = self.cell.submit(SubmitRequest(message, request, arrived, lasts_s), sink)
        late, due = Expired(f"no answer within {lasts_s:.3g} s"), arrived + lasts_s
        timer = self.clock.call_later(max(due - self.clock.time(), 0.0), call.cut, late)

        def why_left() -> Exception:
            about = due - (TOGETHER_S + ROUNDED * lasts_s)
            return late if self.clock.time() >= about else RequestCancelled("the client went away")

        return ResponseStream(call, sink, output, timer, self.metrics, why_left)

    async def _prompt(self, message: generate_pb2.GenerateRequest) -> tuple[int, ...]:
        if message.WhichOneof("input") != "text" or self.tokenizer is None:
            return tuple(message.tokenized.input_ids)
        return await encoded(self.tokenizer, message.text, "text")
