"""The call of one request, and how it is resumed when its stream breaks: for how long, and with
which message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dspark.client.errors import Cancelled, ServerError
from dspark.client.events import Chunk, Event, Finished
from dspark.errors import DsparkError, Overloaded, Unavailable
from dspark.wire.v1 import generate_pb2

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
MOST_ANSWERS = 1024  # whose tokens are counted; servers refuse fewer already


class AnswerCall:
    """The call of one request, over all streams that it takes; common to both clients. Deleting or
    closing it before its end cancels the call.

    ask: starts a call with a message and a deadline in seconds. resume_s: for how many seconds
    without an event to try to resume; 0: not at all. timeout: seconds for the whole request.
    """

    _call: Any = None
    _closed = _finished = False

    def __init__(
        self,
        ask: Callable[[generate_pb2.GenerateRequest, float | None], Any],
        endpoint: str,
        request: generate_pb2.GenerateRequest,
        *,
        resume_s: float,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._endpoint, self._request = ask, endpoint, request
        self._resume_s, self._clock = resume_s, clock
        # such a request is not resumed
        self._scores = request.sampling_params.HasField("prompt_logprobs")
        self._offsets = [0] * min(max(request.sampling_params.n, 1), MOST_ANSWERS)
        self._deadline = None if timeout is None else clock() + timeout
        self._pause_s = FIRST_PAUSE_S
        self._broken_at: float | None = None
        self.request_id = request.request_id
        self.resumed = 0  # how often the answer went on after its stream broke
        self._call = ask(request, self._left_s)

    def close(self) -> None:
        """Ends the request; harmless after its end."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    @property
    def _left_s(self) -> float | None:
        """Seconds until the deadline of the request, at least 0.001; None without a deadline."""
        if self._deadline is None:
            return None
        return max(self._deadline - self._clock(), 0.001)

    def _note(self, event: Event) -> None:
        """Notes a received event: a resumption continues after its tokens."""
        self.resumed += self._broken_at is not None
        self._broken_at, self._pause_s = None, FIRST_PAUSE_S
        self._finished = isinstance(event, Finished)
        if isinstance(event, Chunk) and event.index < len(self._offsets):
            self._offsets[event.index] = event.offset + len(event.token_ids)

    def _check_end(self) -> None:
        """Raises for a stream that is over and did not say why: a reader that was cancelled while
        it waited has ended the call."""
        if self._finished:
            return
        if self._broken_at is not None or self._call.cancelled():
            raise Cancelled("the call was cancelled") from None
        raise ServerError(f"{self._endpoint} ended the answer without saying why") from None

    def _pause(self, error: DsparkError) -> float:
        """Seconds until the request is resumed after `error`; raises `error` when it is not,
        Cancelled when it was closed."""
        if not isinstance(error, Unavailable | Overloaded) or not self._resume_s or self._scores:
            raise error from None
        if isinstance(error, Overloaded) and self._broken_at is None:
            # it was refused, or cut for reading too slowly; only a resumed one is tried again
            raise error from None
        now = self._clock()
        if self._broken_at is None:
            self._broken_at = now
        pause = self._pause_s
        if isinstance(error, Overloaded):
            pause = max(pause, min(error.retry_after_s, LONGEST_PAUSE_S))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        last = self._broken_at + self._resume_s
        if self._deadline is not None:
            last = min(last, self._deadline)
        if now + pause > last:
            raise error from None
        self._check_open()
        return pause

    def _resume(self) -> None:
        """Makes the call for the missing tokens, after the pause. Raises Cancelled if the request
        or its client was closed meanwhile."""
        self._check_open()
        missing = generate_pb2.GenerateRequest()
        missing.CopyFrom(self._request)
        missing.resume.offsets[:] = self._offsets
        self._call = self._ask(missing, self._left_s)
        if self._closed:  # on another thread, which still saw the call before
            self._call.cancel()

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("the call was cancelled") from None

    def __del__(self) -> None:
        self.close()
