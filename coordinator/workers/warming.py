"""The first requests of a worker, before anybody's: a prompt and plain steps, then drafted steps by
each drafter.

What runs for the first time pays for memory, kernels and connections; whoever is taken in has paid.
They go through a lane like all others, but one that nobody else sees: nothing counts them, and no
estimate learns from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

from coordinator.answers.answer import Answer, CommitLog, CommittedTokens, RequestStats
from coordinator.clock import Clock
from coordinator.lanes.conduct import Conduct, LaneContext
from coordinator.lanes.facts import DrafterFacts, DrafterPort, VerifierFacts
from coordinator.lanes.lane import Lane
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.request_state import LifeEvent, RequestState
from coordinator.lanes.request_state import SequenceLife as Life
from coordinator.requests.request import Request
from coordinator.workers.clients import VerifierClient
from dspark.errors import DsparkError
from dspark.rounds.policy import Fixed, Off, Policy
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, SamplingParams

PROMPT = 8  # tokens, where the context has room
PLAIN_STEPS = 2
DRAFTED_STEPS = 2


class Unwarmed(DsparkError):
    """The first requests did not run to their end; says why."""


async def warm(
    verifier: VerifierClient,
    drafter: DrafterPort | None,
    *,
    rule: Rule,
    waits: Conduct,
    clock: Clock,
) -> None:
    """Runs one, drafted for by this drafter, or plain; Unwarmed if it fails or nothing is drafted.
    Bound it from outside."""
    owner, waits = _Owner(), replace(waits, bypass=False, cohorts=1)
    async with _lane(verifier, owner, waits, clock) as lane:
        if drafter is None:
            await owner.run(lane, _state(verifier.facts, Off(), 1 + PLAIN_STEPS, rule, clock))
            return
        lane.drafter_joined(drafter)
        block = drafter.facts.block_size
        state = _state(
            verifier.facts,
            Fixed(block),
            1 + DRAFTED_STEPS * (block + 1),
            rule,
            clock,
            drafter.facts,
        )
        await owner.run(lane, state)
        if not state.stats.drafted:
            raise Unwarmed(f"{drafter.facts.name} drafted nothing")


@contextlib.asynccontextmanager
async def _lane(
    verifier: VerifierClient, owner: _Owner, waits: Conduct, clock: Clock
) -> AsyncGenerator[Lane]:
    """One that nobody else sees, over a stream of its own, which ends with the first requests."""
    stream, facts = verifier.open(), replace(verifier.facts, cost=None)
    metrics = Metrics()

    def lost(why: str) -> None:
        owner.why_lost = why

    try:
        yield Lane(
            facts, stream, owner, LaneContext(clock, metrics, Monitor(metrics), waits), on_lost=lost
        )
    finally:
        stream.close("its first requests are over")
        await stream.ended()


_WHY_LEFT = {
    LifeEvent.TURNED_AWAY: "there is no page for it",
    LifeEvent.HELD_UP: "there is no time for its form",
    LifeEvent.PREEMPTED: "it found no page",
    LifeEvent.MOVED: "the verifier leaves",
}


class _Owner:
    """Of the lane: whatever becomes of its request but a good end is a failure."""

    def __init__(self) -> None:
        self.why_lost = "the verifier was lost"
        self._lane: Lane | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, lane: Lane, state: RequestState) -> None:
        """Until it has ended; what is left of it at an error or a cancellation is freed by the
        lane's end."""
        self._lane = lane
        lane.take(state)
        await self._over

    def ended(self, state: RequestState, error: Exception | None) -> None:
        if state.sequence.finished:
            return
        state.sequence.apply(LifeEvent.ENDED)
        assert self._lane is not None
        self._lane.forget(state)
        self._settle(None if error is None else str(error))

    def left(self, state: RequestState, event: LifeEvent) -> None:
        refused = state.refused
        lost = (refused.message or refused.reason.name.lower()) if refused else self.why_lost
        self._settle(_WHY_LEFT.get(event, lost))

    def _settle(self, why: str | None) -> None:
        if not self._over.done():
            self._over.set_exception(Unwarmed(why)) if why is not None else self._over.set_result(
                None
            )


class _Unread:
    """Nobody waits for what they say."""

    def push(self, piece: CommittedTokens) -> None:
        pass

    def close(self, error: Exception | None = None) -> None:
        pass


def _state(
    verifier: VerifierFacts,
    policy: Policy,
    tokens: int,
    rule: Rule,
    clock: Clock,
    drafter: DrafterFacts | None = None,
) -> RequestState:
    """A request of its own key, as long as the verifier's context and pool allow."""
    room = min(
        verifier.context_length,
        verifier.page_size * verifier.pages_total or verifier.context_length,
    )
    length = max(min(PROMPT, room - tokens), 1)
    request = Request(
        id="warm-up",
        prompt=tuple(position % verifier.vocab_size for position in range(1, length + 1)),
        params=SamplingParams(seed=secrets.randbits(64), rule=rule),
        max_tokens=max(min(tokens, room - length), 1),
        policy=policy,
        cache_salt=f"warm-up {secrets.token_hex(8)}",  # nobody's prompt is found computed
        drafter=drafter.name if drafter else "",
    )
    committed = CommitLog(request.prompt)
    number = secrets.randbits(62)  # those of requests are counted up, from elsewhere
    answer = Answer(committed, max_tokens=request.max_tokens)
    return RequestState(request, Life(number), answer, RequestStats(clock.time()), _Unread())
