"""A cell in simulated time around one `RoundLoop`, where nearly everything goes wrong, by a seed.

Blocks are late, lost or come twice, drafters vanish and forget rows, passes fail, pages run out, plans change at any
moment, sequences are settled, moved and dropped, and come again under a new epoch. The target is greedy and
keyed by (answer, position), so whatever happens the answers must be the target's. What invariants promise is asserted
where it would be broken.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from report_cursor import ReportCursor
from verifier import Pages

from dspark.rounds.events import (
    Acknowledged,
    Action,
    Admit,
    BlocksCame,
    CallBackPrefill,
    CloseAtDrafter,
    DrafterEvent,
    DrafterLost,
    DrafterReady,
    Drawn,
    How,
    OpenAtDrafter,
    PassEnded,
    PassFailed,
    Prefill,
    Prefilled,
    PrefillRefused,
    Release,
    Released,
    Report,
    RunPass,
    SendOrder,
    SendRows,
    SessionLost,
    Tick,
    Told,
)
from dspark.rounds.loop import RoundLoop
from dspark.rounds.orders import Waits
from dspark.rounds.plan import NO_CAP, Plan, PlanKind, SequencePlan, Terms

PROMPT, ROOM, SLOTS = 6, 40, 4
WAITS = Waits(deadline_s=0.02, patience_s=0.2, inline_rows=5)
Key = tuple[int, int]


def token_at(answer: int, position: int) -> int:
    """What the target says there."""
    return (answer * 7919 + position * 104729) % 50


@dataclass
class Answer:
    """One answer, as its coordinator knows it."""

    number: int
    log: list[int] = field(default_factory=list)
    cursor: ReportCursor = field(default_factory=lambda: ReportCursor(0))
    epoch: int = -1
    there: bool = False  # at the verifier
    ended: bool = False


class GuardedPages(Pages):
    """Never takes anything from a sequence in a pass."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.in_pass: Counter[Key] = Counter()

    def free(self, sequence: int, epoch: int) -> None:
        assert not self.in_pass[sequence, epoch], "pages of a sequence in a pass"
        super().free(sequence, epoch)


class Storm:
    """Runs by events in a heap."""

    def __init__(self, seed: int, answers: int = 8) -> None:
        self.draw = random.Random(f"storm/{seed}")
        self.pages = GuardedPages(answers * (PROMPT + ROOM) // 2)
        self.loop = RoundLoop(self.pages, WAITS)
        self.now, self.steps, self._events, self._count = 0.0, 0, list[tuple[float, int, Callable[[], None]]](), 0
        self.answers: dict[int, Answer] = {}
        self._number = 0  # of the newest
        for _ in range(answers):
            self._new()
        self.calm = False
        self.drafters = {1: dict[Key, int](), 2: dict[Key, int]()}  # alive ones: rows by sequence
        self.ordered: set[tuple[int, int, int]] = set()
        self.drawn: Counter[Key] = Counter()
        self.reported: Counter[Key] = Counter()
        self.dropped: set[Key] = set()
        self.blocks: dict[tuple[int, int], list[int]] = {}
        self.passes: list[RunPass] = []
        self.busy = False
        self.forgotten: set[Key] = set()  # sequences some of whose rows a drafter lost
        self.answered: set[Key] = set()  # prompts
        self.seen: Counter[str] = Counter()
        self.plans = 0

    def _new(self) -> Answer:
        number = self._number = self._number + 1
        made = self.answers[number] = Answer(number)
        return made

    def at(self, delay: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what))

    def run(self, steps: int) -> None:
        """Trouble for so many steps, then until every answer is whole."""
        self.at(0.0, self._plan)
        for answer in list(self.answers.values()):
            self.at(self.draw.random() * 0.01, lambda answer=answer: self._admit(answer))  # type: ignore[misc]
        self.at(0.001, self._trouble)
        while not all(answer.ended for answer in self.answers.values()):
            self.calm = self.calm or self.steps > steps
            assert self.steps < 20 * steps, f"no end: {[vars(a) for a in self.answers.values() if not a.ended]}"
            due = self.loop.next_at()
            if due is not None and (not self._events or due < self._events[0][0]):
                self.now = max(self.now, due)
                self.tell(Tick())
                continue
            self.now, _, what = heapq.heappop(self._events)
            what()

    def tell(self, *told: Told | Plan) -> None:
        self.steps += 1
        for action in self.loop.feed_all(told, self.now):
            self.seen[type(action).__name__] += 1
            self._carry_out(action)

    # The coordinator.

    def _admit(self, answer: Answer) -> None:
        if answer.there or answer.ended or self.answers.get(answer.number) is not answer:
            return
        answer.epoch += 1
        answer.cursor = ReportCursor(answer.epoch)
        answer.there = True
        said = len(answer.log)
        drafter = self.draw.choice([0, *self.drafters])
        self.tell(Admit(answer.number, answer.epoch, PROMPT + said, ROOM - said, frozenset(), drafter))

    def _plan(self) -> None:
        self.plans += 1
        kind = PlanKind.PRICE if self.calm else self.draw.choice(list(PlanKind))
        terms = Terms(
            kind, self.draw.randint(0, SLOTS), self.draw.choice([0.0, 0.3, 0.8]), 1.0, self.draw.choice([NO_CAP, 3, 0])
        )
        some = {
            number: SequencePlan(drafter=self.draw.choice([None, None, 0, *self.drafters, 77]))
            for number in self.answers
            if self.draw.random() < 0.3
        }
        self.tell(Plan(self.plans, terms, self.draw.choice([1, 2]), self.draw.choice([0, 1, 2, 3]), 0.001, some))
        self.at(0.01, self._plan)

    def _trouble(self) -> None:
        if self.calm:
            return
        answer = self.draw.choice(list(self.answers.values()))
        match self.draw.randrange(12):
            case 0 | 1 | 2 if answer.there:
                self.tell(Release(answer.number, answer.epoch, How.SETTLE))
            case 3 if answer.there:  # its client leaves, another one comes
                self._drop(answer)
            case 4 | 5 if len(self.drafters) > 1:
                self._lose(self.draw.choice(list(self.drafters)))
            case 6:
                self.drafters[max(self.drafters, default=2) + 1] = {}
            case 7 if self.drafters:  # forgets some rows
                for rows in self.drafters.values():
                    for key in rows:
                        rows[key] = rows[key] // 2
                        self.forgotten.add(key)
            case 8 if self.draw.random() < 0.2:
                self.tell(SessionLost())
                for each in self.answers.values():
                    self.dropped.add((each.number, each.epoch))
                    each.there = False
                    self.at(0.005, lambda each=each: self._admit(each))  # type: ignore[misc]
            case _:
                pass
        self.at(self.draw.expovariate(1 / 0.004), self._trouble)

    def _drop(self, answer: Answer) -> None:
        if self.answers.get(answer.number) is not answer:
            return
        self.dropped.add((answer.number, answer.epoch))
        answer.there = False
        self.tell(Release(answer.number, answer.epoch, How.DROP))
        if not self.calm:  # another one comes
            del self.answers[answer.number]
            self._admit(self._new())

    def _lose(self, drafter: int) -> None:
        del self.drafters[drafter]
        self.tell(DrafterLost(drafter))

    def _report(self, report: Report) -> None:
        acknowledged = []
        for each in report.rounds:
            key = (each.sequence, each.epoch)
            self.reported[key] += 1
            answer = self.answers.get(each.sequence)
            if answer is None or answer.epoch != each.epoch:
                continue
            assert answer.cursor.takes(each.epoch, each.round), "R7: reports come in order"
            assert each.committed_before == PROMPT + len(answer.log)
            assert each.verified <= len(each.confidence)
            answer.log.extend(each.tokens)
            acknowledged.append(Acknowledged(*key, each.round))
            if len(answer.log) == ROOM:
                truth = [token_at(each.sequence, PROMPT + place) for place in range(ROOM)]
                assert answer.log == truth, "R10: whatever drafters do, the answer is the target's"
                answer.ended = True
                self.at(0.001, lambda answer=answer: self._drop(answer))  # type: ignore[misc]
        self.at(self.draw.random() * 0.004, lambda: self.tell(*acknowledged))

    # Workers.

    def _carry_out(self, action: Action) -> None:
        match action:
            case Prefill(sequence, epoch):
                self.at(0.001 + self.draw.random() * 0.003, lambda: self._prefill((sequence, epoch)))
            case CallBackPrefill(sequence, epoch):
                self.at(0.0, lambda: self._called_back((sequence, epoch)))
            case OpenAtDrafter(drafter, sequence, epoch):
                if drafter in self.drafters:
                    self.drafters[drafter][sequence, epoch] = 0
            case CloseAtDrafter(drafter, sequence, epoch):
                self.drafters.get(drafter, {}).pop((sequence, epoch), None)
            case SendRows():
                self.at(0.002, lambda: self._rows(action))
            case SendOrder():
                self._order(action)
            case RunPass():
                for row in action.rows:
                    self.pages.in_pass[row.sequence, row.epoch] += 1
                self.passes.append(action)
                if not self.busy:
                    self.busy = True
                    self.at(0.005, self._pass_over)
            case Report():
                self._report(action)
            case Released(sequence, epoch, rounds):
                self._released((sequence, epoch), rounds)
            case DrafterEvent(drafter, what):
                if what == "silent" and drafter in self.drafters:
                    del self.drafters[drafter]

    def _called_back(self, key: Key) -> None:
        if key not in self.answered:
            self.answered.add(key)
            self.tell(PrefillRefused(*key))

    def _prefill(self, key: Key) -> None:
        if key in self.answered:
            return
        sequence = self.loop.sequence(key[0])
        if sequence is None or sequence.epoch != key[1]:
            return
        self.answered.add(key)
        length = sequence.committed_len
        if self.pages.grow(*key, length, 0) is None:
            self.tell(PrefillRefused(*key))
            return
        self.drawn[key] += 1
        self.tell(Prefilled(*key, token_at(key[0], length)))

    def _rows(self, action: SendRows) -> None:
        rows = self.drafters.get(action.drafter, {})
        key = (action.sequence, action.epoch)
        if key in rows and action.start <= rows[key]:
            rows[key] = max(action.stop, rows[key])
        if key in rows:
            self.tell(DrafterReady(action.drafter, *key, rows[key]))

    def _order(self, order: SendOrder) -> None:
        confidence, marks = [], []
        rows = self.drafters.get(order.drafter)
        for place, row in enumerate(order.rows):
            key = (row.sequence, row.epoch)
            sequence = self.loop.sequence(row.sequence)
            if sequence is not None:  # else it made room right afterwards
                assert sequence.ahead <= self.loop.plan.window, "R8: not farther ahead than the window"
            assert (*key, row.committed_len) not in self.ordered, "R4: one order for an anchor"
            self.ordered.add((*key, row.committed_len))
            assert 1 <= row.slots <= SLOTS
            if rows is not None and key in rows:
                assert row.first_row <= rows[key] or key in self.forgotten, "R11: rows without a gap"
                if row.first_row <= rows[key]:
                    rows[key] = row.committed_len - 1
                marks.append(rows[key])
            else:
                marks.append(0)
            good = [self.draw.random() < 0.7 for _ in range(row.slots)]
            first = row.committed_len
            self.blocks[order.order, place] = [
                token_at(row.sequence, first + k) if hit else 1000 for k, hit in enumerate(good)
            ]
            confidence.append([self.draw.random() for _ in good])
        came = BlocksCame(order.order, confidence, marks)
        chance = 1.0 if self.calm else self.draw.random()
        delay = 0.1 if chance < 0.05 else 0.002 + self.draw.random() * 0.003  # the first is late
        if rows is not None and not 0.05 <= chance < 0.08:  # else it is lost
            self.at(delay, lambda: self._block(order.drafter, came))
        if 0.08 <= chance < 0.12:
            self.at(2 * delay, lambda: self._block(order.drafter, came))

    def _block(self, drafter: int, came: BlocksCame) -> None:
        if drafter in self.drafters:
            self.tell(came)

    def _pass_over(self) -> None:
        run = self.passes.pop(0)
        for row in run.rows:
            self.pages.in_pass[row.sequence, row.epoch] -= 1
        if not self.calm and self.draw.random() < 0.03:
            self.tell(PassFailed(run.number))
        else:
            drawn = []
            for row in run.rows:
                block = self.blocks[row.order, row.row][: row.prefix] if row.prefix else []
                truth = [token_at(row.sequence, row.committed_len + k) for k in range(len(block) + 1)]
                kept = next((k for k, token in enumerate(block) if token != truth[k]), len(block))
                drawn.append(Drawn(tuple(truth[: kept + 1])))
                self.drawn[row.sequence, row.epoch] += 1
            self.tell(PassEnded(run.number, drawn))
        self.busy = bool(self.passes)
        if self.busy:
            self.at(0.005, self._pass_over)

    def _released(self, key: Key, rounds: int) -> None:
        assert self.reported[key] == self.drawn[key] == rounds, "R6: what was drawn is reported"
        answer = self.answers.get(key[0])
        if answer is not None and answer.epoch == key[1]:
            answer.there = False
            self.at(0.01, lambda: self._admit(answer))

    def check(self) -> None:
        """Everything that was drawn was reported, or lost with its stream or client."""
        for key, drawn in self.drawn.items():
            assert key in self.dropped or self.reported[key] == drawn
