"""A small coordinator over `RoundsPort`, for tests: admits, commits in order, acknowledges,
releases, begins anew.

It plans nothing by itself: a test sets the plan, and may set another one at any time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.workers.clients import ControlClient
from dspark.rounds.control import Admission, DrafterAt, Draining, PassReport, Up
from dspark.rounds.events import Acknowledged, Admit, DrafterEvent, Release, Released, ReleaseMode
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
from dspark.runtime.channel import open_channel
from dspark.types import Refusal, SamplingParams

DEADLINE_S = 60.0


@dataclass
class Answer:
    number: int
    prompt: Sequence[int]
    params: SamplingParams
    room: int
    drafter: int
    options: dict[str, Any]
    epoch: int = -1  # given out last
    round: int = 0  # of the report that comes next
    tokens: list[int] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)  # its RoundReports
    moves: int = 0  # times it began anew
    refused: list[Refusal] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.room


class Conductor:
    """Keeps `Listener`. verifier: the process at the other end of the port."""

    def __init__(self, port: ControlClient, plan: Plan, verifier: Any) -> None:
        self.port, self.verifier = port, verifier
        self.answers: dict[int, Answer] = {}
        self.health: list[DrafterEvent] = []
        self.released: list[Released] = []
        self.draining: list[Draining] = []
        self.why_lost: str | None = None
        self.holds_back = False  # acknowledges nothing
        self.begin_again = True  # those that were taken out
        port.listen(self)
        self.set(plan)

    def know(self, drafter: int, process: Any) -> None:
        self.port.tell([DrafterAt(drafter, process.endpoint, process.incarnation)])

    def set(self, plan: Plan) -> None:
        self.port.tell([plan])

    def ask(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        room: int,
        *,
        drafter: int = 0,
        **options: Any,
    ) -> Answer:
        number = len(self.answers) + 1
        params = replace(params, prompt_len=len(prompt))
        answer = Answer(number, prompt, params, room, drafter, options)
        self.answers[number] = answer
        self.admit(answer)
        return answer

    def admit(self, answer: Answer) -> None:
        epoch = answer.epoch = answer.epoch + 1
        answer.round = 0
        ids = [*answer.prompt, *answer.tokens]
        room = answer.room - len(answer.tokens)
        admit = Admit(answer.number, epoch, len(ids), room, frozenset(), answer.drafter)
        longest = len(answer.prompt) + answer.room
        self.port.tell(
            [Admission(admit, ids, answer.params, longest, keep_rows=True, **answer.options)]
        )

    async def tokens(self, *answers: Answer) -> list[list[int]]:
        """Once they have ended."""
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(answer.done.wait() for answer in answers))
        return [answer.tokens for answer in answers]

    def leave(self, *answers: Answer) -> None:
        """Their clients have heard enough."""
        for answer in answers:
            answer.done.set()
            self.port.tell([Release(answer.number, answer.epoch, ReleaseMode.DROP)])

    # What it hears.

    def heard(self, news: Sequence[Up]) -> None:
        for each in news:
            match each:
                case PassReport():
                    self._commit(each)
                case Released():
                    self._gone(each)
                case DrafterEvent():
                    self.health.append(each)
                case Draining():
                    self.draining.append(each)

    def lost(self, why: str) -> None:
        self.why_lost = why
        for answer in self.answers.values():
            answer.done.set()

    def _commit(self, told: PassReport) -> None:
        orders: list[Any] = []
        for round in told.report.rounds:
            answer = self.answers[round.sequence]
            came, wanted = (round.epoch, round.round), (answer.epoch, answer.round)
            if answer.done.is_set() or came < wanted:
                continue
            assert came == wanted, "R7: reports leave no gap"
            answer.round += 1
            assert round.committed_before == len(answer.prompt) + len(answer.tokens)
            answer.tokens += round.tokens
            answer.rounds.append(round)
            if answer.ended:
                answer.done.set()
                orders.append(Release(round.sequence, round.epoch, ReleaseMode.DROP))
            elif not self.holds_back:
                orders.append(Acknowledged(round.sequence, round.epoch, round.round))
        self.port.tell(orders)

    def _gone(self, released: Released) -> None:
        self.released.append(released)
        answer = self.answers[released.sequence]
        if released.refusal is not None and released.epoch == answer.epoch:
            answer.refused.append(released.refusal)
        if answer.done.is_set():
            return
        if self.begin_again and not answer.refused:
            answer.moves += 1
            self.admit(answer)
        else:
            answer.done.set()


@contextlib.asynccontextmanager
async def conducting(verifier: Any, plan: Plan) -> AsyncIterator[Conductor]:
    channel = open_channel(verifier.endpoint)
    port = ControlClient(channel, name="verify/0", incarnation=verifier.incarnation, token=None)
    conductor = Conductor(port, plan, verifier)
    try:
        yield conductor
    finally:
        port.close("the test is over")
        await port.ended()
        await channel.close()


def planned(kind: PlanKind, slots: int, *, window: int = 0) -> Plan:
    return Plan(BlockTerms(kind, slots), 1, window, 0.002)
