"""The stream of one answer, and going on with it where it broke: how long, and what is asked for
then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dspark.client.events import Chunk, Event
from dspark.errors import DsparkError, Overloaded, Unavailable
from dspark.wire.v1 import generate_pb2

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0


class Resuming:
    """One request over all streams it takes.

    resume_s: seconds without any news to go on trying for; 0: not at all. timeout: seconds for
    everything together.
    """

    def __init__(
        self,
        request: generate_pb2.GenerateRequest,
        *,
        resume_s: float,
        timeout: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self._resume_s, self._clock = request, resume_s, clock
        # asked for anew, not resumed
        self._scores = request.sampling_params.HasField("prompt_logprobs")
        self._offsets = [0] * max(request.sampling_params.n, 1)
        self._deadline = None if timeout is None else clock() + timeout
        self._pause_s = FIRST_PAUSE_S
        self._broken_at: float | None = None
        self.times = 0  # that it was asked for again

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline of the request."""
        return None if self._deadline is None else max(self._deadline - self._clock(), 0.001)

    def note(self, event: Event) -> None:
        """An event came."""
        self._broken_at, self._pause_s = None, FIRST_PAUSE_S
        if isinstance(event, Chunk) and event.index < len(self._offsets):
            self._offsets[event.index] = event.offset + len(event.token_ids)

    def pause(self, error: DsparkError) -> float | None:
        """Seconds to wait before it is asked for again; None when the error is the client's to
        see."""
        if not isinstance(error, Unavailable | Overloaded) or not self._resume_s or self._scores:
            return None
        if isinstance(error, Overloaded) and self._broken_at is None:
            # it was refused, or cut for reading too slowly; only who comes back goes on asking
            return None
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
        return pause if now + pause <= last else None

    def again(self) -> generate_pb2.GenerateRequest:
        """The message that asks for what is missing."""
        self.times += 1
        request = generate_pb2.GenerateRequest()
        request.CopyFrom(self.request)
        request.resume.offsets[:] = self._offsets
        return request


class AnswerCall:
    """The call of one answer, whichever client reads it. Dropped or closed before its end, it
    cancels the call.

    ask: makes a call of a message and a deadline in seconds.
    """

    def __init__(
        self,
        ask: Callable[[generate_pb2.GenerateRequest, float | None], Any],
        endpoint: str,
        resuming: Resuming,
    ) -> None:
        self._call: Any = None
        self._ask, self._endpoint, self._resuming = ask, endpoint, resuming
        self._call = ask(resuming.request, resuming.left_s)
        self.request_id = resuming.request.request_id

    @property
    def resumed(self) -> int:
        """How often the rest was asked for after its stream broke."""
        return self._resuming.times

    def close(self) -> None:
        """Ends the request; harmless after its end."""
        if self._call is not None:
            self._call.cancel()

    def _pause(self, error: DsparkError) -> float:
        """Seconds until the rest is asked for; raises what ended the answer."""
        if (pause := self._resuming.pause(error)) is None:
            raise error from None
        return pause

    def __del__(self) -> None:
        self.close()
