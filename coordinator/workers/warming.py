"""Warm-up: the first requests of a worker, before any client's. A prompt and plain steps, then
drafted steps with each drafter.

The first run of a step pays for memory, kernels and connections; the warm-up pays before the
worker serves. Its requests run in a lane of their own: no metric counts them, and no estimate
learns from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

from coordinator.answers.answer import Answer, CommittedTokens, RequestStats
from coordinator.clock import Clock
from coordinator.config import CoordinatorConfig
from coordinator.lanes.facts import DrafterFacts, DrafterPort, VerifierFacts
from coordinator.lanes.lane import Lane
from coordinator.lanes.lane_context import LaneContext
from coordinator.lanes.request_state import LifeEvent, RequestState
from coordinator.lanes.request_state import SequenceLife as Life
from coordinator.requests.request import Request
from coordinator.requests.validation import parse_rule
from coordinator.workers.clients import VerifierClient
from dspark.errors import DsparkError
from dspark.rounds.policy import Fixed, Off, Policy
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, SamplingParams

PROMPT = 8  # tokens, where the context has room
PLAIN_STEPS = 2
DRAFTED_STEPS = 2


class WarmUpFailed(DsparkError):
    """A first request did not complete; the message says why."""


async def warm(
    verifier: VerifierClient,
    drafter: DrafterPort | None,
    *,
    config: CoordinatorConfig,
    clock: Clock,
) -> None:
    """Runs one request under the deployment's rule, drafted by `drafter` or plain. Raises
    WarmUpFailed if it fails or nothing is drafted. Has no timeout: the caller sets one."""
    owner, rule = _Owner(), parse_rule(config.rule)
    config = replace(config, bypass=False, cohorts=1)
    async with _lane(verifier, owner, config, clock) as lane:
        if drafter is None:
            await owner.run(lane, _state(verifier.facts, Off(), 1 + PLAIN_STEPS, rule, clock))
            return
        lane.drafter_joined(drafter)
        block = drafter.facts.block_size
        tokens = 1 + DRAFTED_STEPS * (block + 1)
        state = _state(verifier.facts, Fixed(block), tokens, rule, clock, drafter.facts)
        await owner.run(lane, state)
        if not state.stats.drafted:
            raise WarmUpFailed(f"{drafter.facts.name} drafted nothing")


@contextlib.asynccontextmanager
async def _lane(
    verifier: VerifierClient, owner: _Owner, config: CoordinatorConfig, clock: Clock
) -> AsyncGenerator[Lane]:
    """A lane of its own over a control stream of its own, which is closed on exit."""
    stream, facts = verifier.open(), replace(verifier.facts, cost=None)
    shared = LaneContext(clock, Metrics(), config)
    try:
        yield Lane(facts, stream, owner, shared)
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
    """Owner of the warm-up lane: any end of its request but a normal one is a failure."""

    _lane: Lane  # set by `run`

    def __init__(self) -> None:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, lane: Lane, state: RequestState) -> None:
        """Runs the request to its end or raises WarmUpFailed. After an error or a cancellation,
        the end of the lane's stream frees it."""
        self._lane = lane
        lane.take(state)
        await self._over

    def ended(self, state: RequestState, error: Exception | None) -> None:
        if state.sequence.finished:
            return
        state.sequence.apply(LifeEvent.ENDED)
        self._lane.forget(state)
        self._settle(None if error is None else str(error))

    def left(self, state: RequestState, event: LifeEvent) -> None:
        refused, lost = state.refused, self._lane.why_lost or "the verifier was lost"
        lost = (refused.message or refused.reason.name.lower()) if refused else lost
        self._settle(_WHY_LEFT.get(event, lost))

    def _settle(self, why: str | None) -> None:
        if self._over.done():
            return
        if why is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(WarmUpFailed(why))


class _Unread:
    """A sink that discards its pieces."""

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
    """A request for `tokens` tokens, fewer where context or page pool are smaller; random seed."""
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
        cache_salt=f"warm-up {secrets.token_hex(8)}",  # no cached prefix is found
        drafter=drafter.name if drafter else "",
    )
    number = secrets.randbits(62)  # clients' requests count up from another random number
    answer = Answer(request.prompt, max_tokens=request.max_tokens)
    return RequestState(request, Life(number), answer, RequestStats(clock.time()), _Unread())
