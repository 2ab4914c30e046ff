"""Admits requests, places their sequences in lanes, and queues those that lose their lane.

The queue is bounded, in number and in time, and fair: the tenant that was given least is next, see
`waiting_queue`, and a tenant's own sequences are served in order of arrival; one that lost its lane
is ahead of all younger ones again. What cannot be served in time is refused with a retry hint from
measured times. The scheduler owns every request from `submit` to its end; ends are idempotent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Any

import structlog

from coordinator.answers.answer import End, Reason
from coordinator.clock import Clock, Timer, until
from coordinator.config import CoordinatorConfig
from coordinator.lanes.lane import Lane
from coordinator.lanes.request_state import LifeEvent, RequestState
from coordinator.queue.waiting_queue import TenantShares, WaitingQueue
from coordinator.requests.request import Request
from coordinator.watching.answer_log import AnswerLog
from coordinator.watching.tracing import Tracing
from dspark.errors import DsparkError, InvalidRequest, Overloaded, PeerError, Unavailable
from dspark.runtime.telemetry import Metrics
from dspark.types import Refusal, RefusalReason

log = structlog.get_logger("dspark.admission")

# a lane that turned a sequence away is tried again after this, or when one in it ended
PAGES_RETRY_S = 0.5
FORM_RETRY_S = 0.5  # a sequence held up for its constraint is queued again after this
ENDS = 32  # whose times give the retry hint
LEAST_HINT_S, MOST_HINT_S = 0.1, 30.0  # bounds of a retry hint
# between two checks whether a verifier still runs its first requests
WARM_LOOK_S = 0.25
NEWCOMERS = 8  # an extra place per so many, only for tenants with no sequence running
LOOKS = 20  # checks for overdue sequences, within the longest wait


class Scheduler:
    """Holds every request, waiting or placed."""

    def __init__(self, config: CoordinatorConfig, clock: Clock, metrics: Metrics) -> None:
        self._config, self._clock, self._metrics = config, clock, metrics
        # answers that have not ended, by the request's id
        self._requests: dict[str, list[RequestState]] = {}
        self._line = WaitingQueue()
        self._shares = TenantShares()
        self._overdue: Timer | None = None  # the next check for overdue sequences
        self._homes: dict[RequestState, Lane] = {}
        self._lanes: list[Lane] = []
        self._open = False  # whether one of them does not drain
        self._full: set[Lane] = set()
        self._between_ends = deque[float](maxlen=ENDS)  # seconds, without idle times
        # clock time of the last end; while none has ended, of the first request after an idle time
        self._last_end = 0.0
        # runs from the last loss of a verifier, or from when none was left that does not drain ...
        self._outage: Timer | None = None
        self._lost_at = 0.0  # ... at this clock time
        # whether a connected verifier runs its first requests
        self.verifier_warms: Callable[[], bool] = lambda: False
        self.draining = False
        self.tracing: Tracing | None = None
        self.endings = AnswerLog(metrics)

    # Requests.

    @property
    def queued(self) -> int:
        return self._line.count

    @property
    def running(self) -> int:
        return len(self._homes)

    @property
    def queue_limit(self) -> int:
        return self._config.max_queued

    def find(self, request_id: str) -> RequestState | None:
        """The first answer of a running request that has not ended."""
        return next(iter(self._requests.get(request_id, ())), None)

    def check_open(self) -> None:
        """Raises `Unavailable` while draining or without a verifier that takes sequences."""
        if self.draining:
            drains = Unavailable("the coordinator is draining; try another one")
            raise self._refuse("draining", drains)
        if not self._open:
            why = "every verifier is draining" if self._lanes else "no verifier is connected"
            raise self._refuse("no_verifier", Unavailable(why))

    def check_capacity(self, answers: int = 1, tenant: str = "") -> None:
        """Raises `Unavailable` or `Overloaded` when a request could not even wait. Cheap, so it is
        called before anything is parsed."""
        self.check_open()
        if self._lacks_room(answers) and not self._line.displaced_by(tenant, answers):
            full = Overloaded(f"{self._line.count} requests wait already", self._hint_s())
            raise self._refuse("queue_full", full)

    def check(self, request: Request) -> None:
        """Raises when a request cannot be admitted."""
        self.check_capacity(request.choices, request.tenant)
        if request.id in self._requests:
            raise InvalidRequest("request_id", "a running request has this id")

    def _lacks_room(self, answers: int) -> bool:
        config = self._config
        running = len(self._homes)
        if running and not config.max_queued and running + answers > config.max_running:
            return True
        return self._line.count + answers > max(config.max_queued, answers, 1)

    def _hint_s(self) -> float:
        """Seconds until the whole queue would be served, by the mean time between the last ends."""
        each_s = sum(self._between_ends) / max(len(self._between_ends), 1)
        whole_s = each_s * max(self._line.count, 1)
        return min(max(whole_s, LEAST_HINT_S), MOST_HINT_S)

    def submit(self, *states: RequestState) -> None:
        """Queues all answers of a request that `check` passed in this turn of the event loop."""
        state = states[0]
        tenant = state.request.tenant
        if self._lacks_room(len(states)):
            for displaced in self._line.displaced_by(tenant, len(states)):
                self._give_up(displaced, "displaced", "others wait with less")
        if not self._line.of(tenant):
            self._shares.arrives(tenant, self._line.tenants, tuple(self._alive()))
        if not self._requests:
            self._last_end = self._clock.time()
        self._requests[state.request.id] = list(states)
        self._metrics.prompt_tokens.inc(len(state.request.prompt))
        for each in states:
            self._line.add(each)
        self._look_after_the_line()
        if self.tracing is not None:
            self.tracing.begun(state.request.id, state.request.traceparent)
        log.info(
            "request.accepted",
            request=state.request.id,
            sequence=state.sequence.number,
            prompt_tokens=len(state.request.prompt),
            answers=len(states),
            policy=str(state.request.policy),
        )
        self._place()
        # a resumed answer, where only another target is served
        if state.shown and self._outage is None and not all(map(self._could_place, states)):
            self._await_verifier()

    def abort(self, request_id: str) -> bool:
        """Ends a running request in order; its tokens stand. Returns whether it was found."""
        states = tuple(self._requests.get(request_id, ()))
        for state in states:
            state.end = End(Reason.ABORT)
            state.sink.push(state.answer.stopped(state.end))
            self.ended(state, None)
        return bool(states)

    def finish(self, state: RequestState) -> None:
        """Ends an answer whose text is complete, as found by the front end; sends no message."""
        if not state.sequence.finished:
            state.end = End(Reason.STOP)
            self.ended(state, None)

    async def emptied(self, longest_s: float) -> None:
        """Waits until no request is left, at most `longest_s` seconds."""
        await until(lambda: not self._requests, longest_s)

    def cut_all(self) -> None:
        """Ends every request with an error that names its answer's offset."""
        for state in [each for states in self._requests.values() for each in states]:
            self.ended(state, Unavailable(f"the coordinator stops; {_said(state)}"))

    # Reports of lanes.

    def ended(self, state: RequestState, error: Exception | None) -> None:
        """Frees everything an answer held, at once; only its first end counts. An error ends the
        request's other answers too."""
        if state.sequence.finished:
            return
        state.sequence.apply(LifeEvent.ENDED)
        lane = self._homes.pop(state, None)
        if lane is not None:
            lane.forget(state)
            self._full.discard(lane)
        elif state in self._line:
            self._line.remove(state)
        self._shares.ended(state)
        siblings = self._requests[state.request.id]
        siblings.remove(state)
        if not siblings:
            del self._requests[state.request.id]
        now = self._clock.time()
        state.stats.ended = now
        self._between_ends.append(now - self._last_end)
        self._last_end = now
        outcome = self.endings.add(state, error)
        if self.tracing is not None:
            self.tracing.ended(state, outcome, last=not siblings)
        if not siblings:
            state.sink.close(error)
        elif error is not None:
            self.ended(siblings[0], error)  # that call ends the next one
        self._place()

    def left(self, state: RequestState, event: LifeEvent) -> None:
        """Queues a sequence that left its lane unfinished, by order of arrival, for a lane with
        room for all of its tokens."""
        lane = self._homes.pop(state, None)
        if event is LifeEvent.HELD_UP:  # its lane may take others
            self._clock.call_later(FORM_RETRY_S, self._again, state)
            self._soon()
            return
        self._line.add(state)
        if event is LifeEvent.TURNED_AWAY and lane is not None:
            # a full page pool is not tried again at once
            self._full.add(lane)
            self._clock.call_later(PAGES_RETRY_S, self._retry, lane)
        elif event is LifeEvent.PREEMPTED:
            self._metrics.num_preemptions.inc()
            log.info("sequence.preempted", **_place_of(state))
        elif event is LifeEvent.MOVED:  # planned, so it does not count as a loss
            self._metrics.handovers.labels(reason="drained").inc()
        elif event is LifeEvent.ORPHANED:
            # its verifier is gone or lost it; allowed a bounded number of times
            state.handovers += 1
            self._metrics.handovers.labels(reason="lost").inc()
            log.warning("sequence.orphaned", **_place_of(state))
            refused, state.refused = state.refused, None
            if state.handovers > self._config.max_handovers:
                self.ended(state, _given_up(state, refused))
                return
        self._soon()

    # Lanes.

    def lane_joined(self, lane: Lane) -> None:
        self._lanes.append(lane)
        self.lanes_changed()

    def lanes_changed(self) -> None:
        """Call it when a lane begins to drain, or takes sequences again."""
        was, self._open = self._open, any(not lane.draining for lane in self._lanes)
        if was and not self._open:
            self._await_verifier()
        self._place()

    def lane_left(self, lane: Lane) -> None:
        """Removes a lane; call it after `lane.close()`. Queued sequences wait a bounded time for
        another verifier to connect, and to run its first requests once it is connected."""
        self._full.discard(lane)
        if lane not in self._lanes:
            return  # a bug kept it from joining
        self._lanes.remove(lane)
        for each in self._lanes:
            each.show()
        self._await_verifier()
        self.lanes_changed()

    def _await_verifier(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
        self._lost_at = self._clock.time()
        self._outage = self._clock.call_later(self._config.verifier_wait_s, self._waited)

    def _waited(self) -> None:
        """Ends the sequences that no lane could take, unless a verifier is about to serve."""
        waited = self._clock.time() - self._lost_at
        # its first requests: twice `warm_up_s`, for plain ones, then for drafted ones
        left = self._config.verifier_wait_s + 2 * self._config.warm_up_s - waited
        if left > 0 and self.verifier_warms():
            self._outage = self._clock.call_later(min(left, WARM_LOOK_S), self._waited)
            return
        for state in [*self._line]:
            if not self._could_place(state):
                why = f"no verifier came within {waited:.3g} s; {_said(state)}"
                self.ended(state, Unavailable(why))
        self._outage = None

    # Placing.

    def _place(self) -> None:
        kept = set[Lane]()  # for sequences that wait for room in one of them
        while len(kept) < len(self._lanes) and (state := self._next(kept)) is not None:
            lane = self._choose(state, kept)
            if lane is None:
                kept.update(each for each in self._lanes if each.could_take(state))
                continue
            self._line.remove(state)
            self._homes[state] = lane
            self._shares.placed(state.request.tenant)
            if state.stats.placed is None:
                for each in self._requests[state.request.id]:
                    each.begun = True
                state.stats.placed = self._clock.time()
                self._metrics.request_queue_time.observe(state.stats.queue_s())
            lane.take(state)
        self._metrics.num_requests_running.set(len(self._homes))
        self._metrics.num_requests_waiting.set(self._line.count)
        if self._line.count and self._outage is None and not self._open:
            self._await_verifier()

    def _could_place(self, state: RequestState, kept: AbstractSet[Lane] = frozenset()) -> bool:
        """Whether a lane that takes sequences and is not kept could hold this one, were it
        empty."""
        return any(lane.could_take(state) for lane in self._lanes if lane not in kept)

    def _next(self, kept: AbstractSet[Lane]) -> RequestState | None:
        """The oldest of the tenant that was given least; None if none waits or no place is free.

        Nobody overtakes one that waits for room at the lanes that could hold it, which are `kept`;
        one that no lane could hold, as the only verifier that can drains, delays nobody.

        Some places are only for tenants with no sequence running, which so need not wait for others
        to end.
        """
        tenants, most = self._line.tenants, self._config.max_running
        if len(self._homes) >= most:
            if not tenants or len(self._homes) >= most + most // NEWCOMERS:
                return None
            running = {state.request.tenant for state in self._homes}
            tenants = tuple(tenant for tenant in tenants if tenant not in running)
        able = partial(self._could_place, kept=kept)
        firsts = [self._line.first(tenant, able) for tenant in tenants]
        placed = [state for state in firsts if state is not None]
        if len(placed) < 2:
            return next(iter(placed), None)
        given = self.given()
        return min(placed, key=lambda state: (given[state.request.tenant], state.sequence.number))

    def given(self) -> dict[str, float]:
        """Weighted tokens that each tenant in the queue was given, see `TenantShares`."""
        return self._shares.given(self._line.tenants, self._alive())

    def _alive(self) -> Iterable[RequestState]:
        return chain.from_iterable(self._requests.values())

    def _choose(self, state: RequestState, kept: AbstractSet[Lane]) -> Lane | None:
        """The lane with the fewest sequences that has room for this one and is not kept."""
        able = [
            lane
            for lane in self._lanes
            if lane not in self._full and lane not in kept and lane.can_take(state)
        ]
        return min(able, key=len, default=None)

    def _retry(self, lane: Lane) -> None:
        self._full.discard(lane)
        self._place()

    def _again(self, state: RequestState) -> None:
        if state.sequence.finished:
            return
        self._line.add(state)
        self._place()

    def _soon(self) -> None:
        """Places once all reports of this turn of the event loop are in and the queue's order
        settled."""
        self._clock.call_soon(self._place)

    # Waiting too long.

    def _look_after_the_line(self) -> None:
        if self._overdue is None and self._line.count:
            each_s = self._config.queue_deadline_s / LOOKS
            self._overdue = self._clock.call_later(each_s, self._look)

    def _look(self) -> None:
        self._overdue, longest_s = None, self._config.queue_deadline_s
        for state in self._line.overdue(self._clock.time() - longest_s):
            self._give_up(state, "queue_deadline", f"no place was free within {longest_s:g} s")
        self._look_after_the_line()

    def _give_up(self, state: RequestState, reason: str, why: str) -> None:
        """Refuses a queued sequence."""
        if not state.sequence.finished:
            self.ended(state, self._refuse(reason, Overloaded(why, self._hint_s())))

    # Metrics.

    def _refuse(self, reason: str, error: DsparkError) -> DsparkError:
        self._metrics.admission_rejections.labels(reason=reason).inc()
        return error


def _place_of(state: RequestState) -> dict[str, Any]:
    """Fields of log events."""
    at = state.sequence
    return {
        "request": state.request.id,
        "sequence": at.number,
        "epoch": at.epoch,
        "offset": state.answer.length,
    }


def _given_up(state: RequestState, refused: Refusal | None) -> DsparkError:
    """The error after too many handovers: verifiers were lost, or the last one is up and says why
    it refused. A bug of the verifier's is no reason for a client to try again."""
    if refused is None:
        return Unavailable(f"{state.handovers} verifiers were lost; {_said(state)}")
    why = refused.message or refused.reason.name.lower()
    told = f"begun {state.handovers} times, and refused again: {why}; {_said(state)}"
    return PeerError(told) if refused.reason is RefusalReason.INTERNAL else Unavailable(told)


def _said(state: RequestState) -> str:
    return f"the answer stands at offset {state.answer.length}"
