"""A simulated cell around one `RoundLoop`, where nearly everything goes wrong, by a seed.

Blocks are late, lost or come twice, drafters vanish and forget rows, passes fail, pages run out,
plans change at any moment, sequences are settled, moved and dropped, and come again under a new
epoch. The target is greedy, so whatever happens the answers must be its. What invariants promise is
asserted where it would be broken.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fakes import answer_of
from report_cursor import ReportCursor
from rounds_cell import SLOTS, ToyPair, costs

from coordinator.simulation.drafter import Answered, SimulatedDrafter
from coordinator.simulation.pair import SimulatedBlock, SimulatedContext
from coordinator.simulation.verifier import SimulatedVerifier
from coordinator.simulation.world import Device, Hops, KVShape, World
from dspark.rounds.control import Admission, Down, DrafterAt, PassReport, Up
from dspark.rounds.events import (
    Acknowledged,
    Admit,
    DrafterEvent,
    How,
    Keep,
    Prefilled,
    PrefillRefused,
    Release,
    Released,
    RoundReport,
    RunPass,
    SendOrder,
    Told,
)
from dspark.rounds.orders import Waits
from dspark.rounds.plan import NO_CAP, Plan, PlanKind, SequencePlan, Terms
from dspark.types import SamplingParams, Verdict

PROMPT, ROOM = 6, 40
WAITS = Waits(deadline_s=0.02, patience_s=0.2, inline_rows=5)
HOPS = Hops(1e-4, 0.0, 0.0, 0.0, 0.0)
Key = tuple[int, int]


class StormyPair(ToyPair):
    """Drafts are more or less sure, whatever they are worth."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(wrong_every=3)
        self._draw = draw

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> list[SimulatedBlock]:
        return [
            SimulatedBlock(block.token_ids, [self._draw.random() for _ in block.token_ids])
            for block in super().draft(asked)
        ]


class StormyDrafter(SimulatedDrafter):
    """Its blocks are late, lost or come twice. hits: whether something of this chance happens."""

    def __init__(self, world: World, number: int, hits: Callable[[float], bool]) -> None:
        super().__init__(world, f"draft/{number}", number)
        self._hits = hits

    def order(
        self,
        verifier: str,
        order: SendOrder,
        held: Sequence[SimulatedContext | None],
        answer: Callable[[Answered], object],
    ) -> None:
        def answered(said: Answered) -> None:
            if self._hits(0.03):
                return
            late_s = 0.1 if self._hits(0.05) else 0.0
            for times in range(1 + self._hits(0.04)):
                self.world.loop.call_later(late_s + 0.005 * times, answer, said)

        super().order(verifier, order, held, answered)


class StormyVerifier(SimulatedVerifier):
    """Some in its passes fail, and it looks at what its `RoundLoop` asks for."""

    def __init__(
        self, world: World, drafters: Sequence[SimulatedDrafter], hits: Callable[[float], bool]
    ) -> None:
        super().__init__(world, "verify/0", Device(), drafters, WAITS)
        self._hits, self.steps, self.seen, self.counts = (
            hits,
            0,
            Counter[str](),
            self._rounds.counts,
        )
        self.drawn = Counter[Key]()
        self.forgotten = set[Key]()  # sequences some of whose rows a drafter lost
        self._ordered = set[tuple[int, int, int]]()
        self._in_pass, self.failed = Counter[Key](), 0
        self._carry_out = {
            kind: partial(self._noted, carry_out) for kind, carry_out in self._carry_out.items()
        }

    def _noted(self, carry_out: Callable[[Any], object], action: Any) -> None:
        self.seen[type(action).__name__] += 1
        carry_out(action)

    def _feed(self, *told: Told | Plan) -> None:
        self.steps += 1
        super()._feed(*told)

    def _send_order(self, action: SendOrder) -> None:
        drafter = self._numbered.get(action.drafter)
        for row in action.rows:
            key = (row.sequence, row.epoch)
            sequence = self._rounds.sequence(row.sequence)
            if sequence is not None:  # else it made room right afterwards
                assert sequence.ahead <= self._rounds.plan.window, (
                    "R8: not farther ahead than the window"
                )
            assert (*key, row.committed_len) not in self._ordered, "R4: one order for an anchor"
            self._ordered.add((*key, row.committed_len))
            assert 1 <= row.slots <= SLOTS
            rows = None if drafter is None else drafter.rows.get((self.facts.name, *key))
            assert rows is None or row.first_row <= rows or key in self.forgotten, (
                "R11: rows without a gap"
            )
        super()._send_order(action)

    def _run(self, action: RunPass) -> None:
        self._in_pass.update((row.sequence, row.epoch) for row in action.rows)
        super()._run(action)

    def _judge(self, action: RunPass) -> list[Verdict | None]:
        keys = [(row.sequence, row.epoch) for row in action.rows]
        self._in_pass.subtract(keys)
        drawn = [None if self._hits(0.01) else each for each in super()._judge(action)]
        self.drawn.update(key for key, each in zip(keys, drawn, strict=True) if each)
        self.failed += drawn.count(None)
        return drawn

    def _prefilled(self, prompts: Sequence[Any]) -> list[Prefilled | PrefillRefused]:
        told = super()._prefilled(prompts)
        self.drawn.update(
            (each.sequence, each.epoch) for each in told if isinstance(each, Prefilled)
        )
        return told

    def _free(self, key: Key) -> None:
        assert not self._in_pass[key], "pages of a sequence in a pass"
        super()._free(key)


@dataclass
class Answer:
    """One answer, as its coordinator knows it."""

    number: int
    log: list[int] = field(default_factory=list)
    cursor: ReportCursor = field(default_factory=lambda: ReportCursor(0))
    epoch: int = -1
    there: bool = False  # at the verifier
    ended: bool = False

    @property
    def prompt(self) -> list[int]:
        return [self.number % 97, *range(1, PROMPT)]


class Storm:
    """The coordinator. Keeps `Listener`."""

    def __init__(self, seed: int, answers: int = 8) -> None:
        self.draw = random.Random(f"storm/{seed}")
        self.calm = False
        self.clock = asyncio.get_running_loop()
        pages = KVShape(answers * (PROMPT + ROOM) // 2, 1)
        self._world = World(StormyPair(self.draw), costs(), HOPS, pages)
        self._pool: list[StormyDrafter] = []
        self.verifier = StormyVerifier(self._world, self._pool, self._hits)
        self.verifier.listen(self)
        self.drafters: dict[int, StormyDrafter] = {}  # alive ones
        self.answers: dict[int, Answer] = {}
        self._newest = 0
        for _ in range(answers):
            self._new()
        self.reported = Counter[Key]()
        self.dropped = set[Key]()

    async def run(self, steps: int) -> None:
        """Trouble for so many steps, then until every answer is whole and what was drawn is told
        of."""
        wrong: list[dict[str, Any]] = []
        self.clock.set_exception_handler(lambda _, context: wrong.append(context))
        self._join()
        self._join()
        self._plan()
        for answer in list(self.answers.values()):
            self.clock.call_later(self.draw.random() * 0.01, self._admit, answer)
        self.clock.call_later(0.001, self._trouble)
        while not all(answer.ended for answer in self.answers.values()):
            await asyncio.sleep(0.001)
            self.calm |= self.verifier.steps > steps
            assert not wrong, wrong
            assert self.verifier.steps < 20 * steps, f"no end: {self.answers}"
        for key, drawn in self.verifier.drawn.items():
            assert key in self.dropped or self.reported[key] == drawn

    def _hits(self, share: float) -> bool:
        return not self.calm and self.draw.random() < share

    def _tell(self, *orders: Down) -> None:
        self.verifier.tell(orders)

    def _new(self) -> Answer:
        self._newest += 1
        made = self.answers[self._newest] = Answer(self._newest)
        return made

    def _join(self) -> None:
        number = len(self._pool) + 1
        made = self.drafters[number] = StormyDrafter(self._world, number, self._hits)
        self._pool.append(made)
        self._tell(DrafterAt(number, made.facts.endpoint, made.facts.incarnation))

    def _admit(self, answer: Answer) -> None:
        if answer.there or answer.ended or self.answers.get(answer.number) is not answer:
            return
        answer.epoch += 1
        answer.cursor = ReportCursor(answer.epoch)
        answer.there = True
        ids = [*answer.prompt, *answer.log]
        drafter = self.draw.choice([0, *self.drafters])
        admit = Admit(
            answer.number, answer.epoch, len(ids), PROMPT + ROOM - len(ids), frozenset(), drafter
        )
        self._tell(Admission(admit, ids, SamplingParams(temperature=0.0), PROMPT + ROOM, True))

    def _plan(self) -> None:
        kind = PlanKind.PRICE if self.calm else self.draw.choice(list(PlanKind))
        terms = Terms(
            kind,
            self.draw.randint(0, SLOTS),
            self.draw.choice([0.0, 0.3, 0.8]),
            1.0,
            self.draw.choice([NO_CAP, 3, 0]),
        )
        some = {
            number: SequencePlan(drafter=self.draw.choice([None, None, 0, *self.drafters, 77]))
            for number in self.answers
            if self.draw.random() < 0.3
        }
        self._tell(
            Plan(
                terms,
                self.draw.choice([1, 2]),
                self.draw.choice([0, 1, 2, 3]),
                0.001,
                some,
            )
        )
        self.clock.call_later(0.01, self._plan)

    def _trouble(self) -> None:
        if self.calm:
            return
        answer = self.draw.choice(list(self.answers.values()))
        match self.draw.randrange(12):
            case 0 | 1 | 2 if answer.there:
                self._tell(Release(answer.number, answer.epoch, How.SETTLE))
            case 3 if answer.there:  # its client leaves, another one comes
                self._drop(answer)
            case 4 | 5 if len(self.drafters) > 1:
                self._lose(self.draw.choice(list(self.drafters)))
            case 6:
                self._join()
            case 7:  # drafters forget some rows
                for drafter in self.drafters.values():
                    self.verifier.forgotten.update(key[1:] for key in drafter.rows)
                    drafter.rows.update({key: rows // 2 for key, rows in drafter.rows.items()})
            case 8 if self.draw.random() < 0.2:
                self._tell(Keep(frozenset()))
                for each in self.answers.values():
                    self.dropped.add((each.number, each.epoch))
                    each.there = False
                    self.clock.call_later(0.005, self._admit, each)
            case _:
                pass
        self.clock.call_later(self.draw.expovariate(1 / 0.004), self._trouble)

    def _drop(self, answer: Answer) -> None:
        if self.answers.get(answer.number) is not answer:
            return
        self.dropped.add((answer.number, answer.epoch))
        answer.there = False
        self._tell(Release(answer.number, answer.epoch, How.DROP))
        if not self.calm:  # another one comes
            del self.answers[answer.number]
            self._admit(self._new())

    def _lose(self, drafter: int) -> None:
        if drafter in self.drafters:
            self.drafters.pop(drafter).lose()

    # What it hears.

    def heard(self, news: Sequence[Up]) -> None:
        for each in news:
            match each:
                case PassReport():
                    acknowledged = [
                        told for row in each.report.rounds for told in self._report(row)
                    ]
                    self.clock.call_later(self.draw.random() * 0.004, self._tell, *acknowledged)
                case Released(sequence, epoch, rounds):
                    self._released((sequence, epoch), rounds)
                case DrafterEvent(drafter, "silent"):
                    self._lose(drafter)

    def lost(self, why: str) -> None:
        raise AssertionError(why)

    def _report(self, row: RoundReport) -> list[Acknowledged]:
        self.reported[row.sequence, row.epoch] += 1
        answer = self.answers.get(row.sequence)
        if answer is None or not answer.there or answer.epoch != row.epoch:
            return []
        assert answer.cursor.takes(row.epoch, row.round), "R7: reports come in order"
        assert row.committed_before == PROMPT + len(answer.log)
        assert row.verified <= len(row.confidence)
        answer.log.extend(row.tokens)
        if len(answer.log) == ROOM:
            assert answer.log == answer_of(answer.prompt, ROOM), (
                "R10: whatever drafters do, the answer is the target's"
            )
            answer.ended = True
            self.clock.call_later(0.001, self._drop, answer)
        return [Acknowledged(row.sequence, row.epoch, row.round)]

    def _released(self, key: Key, rounds: int) -> None:
        assert self.reported[key] == self.verifier.drawn[key] == rounds, (
            "R6: what was drawn is reported"
        )
        answer = self.answers.get(key[0])
        if answer is not None and answer.epoch == key[1]:
            answer.there = False
            self.clock.call_later(0.01, self._admit, answer)
