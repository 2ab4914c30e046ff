"""Arrivals, cancellations, losses, drains, lack of memory, plans and troubled workers at random,
around real `RoundLoop`s in simulated time.

Whatever happens answers are exact, nothing is left behind, no epoch is given twice, what was
shown was written, and rounds keep their invariants, see `stormy_workers`.
"""

import asyncio
import itertools
import random
from collections import Counter
from typing import Any, get_args

import pytest

from coordinator.lanes.request_state import RequestState
from dspark.errors import Overloaded, RequestCancelled, Unavailable
from dspark.rounds.control import Admission
from dspark.rounds.events import Acknowledged, Action, KeepSequences, Release, ReleaseMode
from dspark.rounds.plan import NO_CAP, BlockTerms, Plan, PlanKind, SequencePlan
from tests.fakes import answer_of, read
from tests.rounds_cell import SLOTS
from tests.unit.coordinator.stormy_workers import StormyCell

POLICIES = ("adaptive", "fixed:2", "fixed:4", "threshold:0.95", "off")


class Storm:
    """A cell and a source of trouble."""

    def __init__(self, cell: StormyCell, seed: int) -> None:
        self.cell, self.draw = cell, random.Random(f"lane/{seed}")
        self.states: list[tuple[RequestState, list[int]]] = []
        self.cancelled: set[RequestState] = set()
        self.epochs: dict[int, list[int]] = {}
        self.ports: list[Any] = list(cell.ports)
        self._others = itertools.count()

    def one_thing(self) -> None:
        things = [self.ask] * 8 + [self.cancel, self.finish]
        things += [self.lose_verifier, self.drain, self.move]
        things += [self.lose_drafter, self.add_drafter, self.partition, self.silence, self.leaves]
        things += [self.plan] * 4 + [self.settle] * 4 + [self.keep, self.cell.drafters_forget]
        things += [self.crowd] * 2
        self.draw.choice(things)()

    def ask(self) -> None:
        prompt = tuple(self.draw.randrange(90) for _ in range(self.draw.choice([1, 3, 9, 30])))
        tokens, noted = self.draw.randint(1, 50), list[int]()
        try:
            state = self.cell.ask(
                prompt,
                max_tokens=tokens,
                policy=self.draw.choice(POLICIES),
                weight=self.draw.choice([1.0, 1.0, 2.0]),
                note_epoch=lambda epoch, target: noted.append(epoch),
            )
        except (Overloaded, Unavailable):  # a full queue, or every verifier leaves
            return
        self.epochs[state.sequence.number] = noted
        self.states.append((state, answer_of(prompt, tokens)))

    def _running(self) -> RequestState | None:
        running = [state for state, _ in self.states if not state.sequence.finished]
        return self.draw.choice(running) if running else None

    def cancel(self) -> None:
        if (state := self._running()) is not None:
            self.cancelled.add(state)
            self.cell.admission.ended(state, RequestCancelled("gone"))

    def finish(self) -> None:
        """As a front end that found a stop string."""
        if (state := self._running()) is not None:
            self.cancelled.add(state)
            self.cell.admission.finish(state)

    def lose_verifier(self) -> None:
        if self.draw.random() < 0.4:
            self.cell.lose_verifier(self.draw.randrange(len(self.cell.ports)))
            if len(self.cell.ports) < 2:
                self._add_verifier()

    def _add_verifier(self) -> None:
        self.cell.add_verifier()
        self.ports.append(self.cell.ports[-1])

    def drain(self) -> None:
        if self.draw.random() < 0.3:
            lane = self.draw.choice(self.cell.lanes)
            lane.drain(0.3)
            port = self.cell.ports[self.cell.lanes.index(lane)]
            self.cell.clock.call_later(0.5, port.close, "drained")
            self._add_verifier()

    def move(self) -> None:
        if self.draw.random() < 0.3:
            self.draw.choice(self.cell.lanes).move_all()
            self._add_verifier()

    def lose_drafter(self) -> None:
        if len(self.cell.drafters) > 1:
            self.cell.lose_drafter(self.draw.choice(self.cell.drafters))

    def add_drafter(self) -> None:
        if len(self.cell.drafters) < 4:
            self.cell.add_drafter()

    def partition(self) -> None:
        """This process loses a drafter, verifiers do not; it comes back."""
        drafter = self.draw.choice(self.cell.drafters)
        self.cell.part_from(drafter)

        def back() -> None:
            if drafter in self.cell.drafters:
                for lane in self.cell.lanes:
                    if drafter not in lane.drafters:
                        lane.drafter_joined(drafter)

        self.cell.clock.call_later(0.1, back)

    def silence(self) -> None:
        drafter = self.draw.choice(self.cell.drafters)
        drafter.silent = not drafter.silent and self.draw.random() < 0.5

    def leaves(self) -> None:
        drafter = self.draw.choice(self.cell.drafters)
        leaves = self.draw.random() < 0.5
        for lane in self.cell.lanes:
            lane.drafter_leaves(drafter, leaves)

    def plan(self) -> None:
        """A verifier is told to draw as no planner would have it."""
        terms = BlockTerms(
            self.draw.choice(list(PlanKind)),
            self.draw.randint(0, SLOTS),
            self.draw.choice([0.0, 0.3, 0.8]),
            cap=self.draw.choice([NO_CAP, 3, 0]),
        )
        some = {
            state.sequence.number: SequencePlan(drafter=self.draw.choice([0, 1, 2, 77]))
            for state, _ in self.states
            if self.draw.random() < 0.3
        }
        plan = Plan(terms, self.draw.choice([1, 2]), self.draw.randint(0, 3), 0.001, some)
        self.draw.choice(self.cell.ports).port.tell([plan])

    def settle(self) -> None:
        """A verifier lets a sequence go that nobody asked it for."""
        lane = self.draw.choice(self.cell.lanes)
        if lane.states:
            life = self.draw.choice(lane.states).sequence
            port = self.cell.ports[self.cell.lanes.index(lane)].port
            port.tell([Release(life.number, life.epoch, ReleaseMode.SETTLE)])

    def crowd(self) -> None:
        """Somebody else takes all pages of a verifier for a while."""
        pages = self.draw.choice(self.cell.ports).port.pages
        other = (0, next(self._others))
        if pages.total and pages.left and pages.grow(*other, pages.page_size * pages.left, 0) == 0:
            self.cell.clock.call_later(0.1, pages.free, *other)

    def keep(self) -> None:
        """Verifiers are told who is wanted."""
        for lane, port in zip(self.cell.lanes, self.cell.ports, strict=True):
            lives = [state.sequence for state in lane.states]
            port.port.tell([KeepSequences(frozenset((each.number, each.epoch) for each in lives))])

    def calm(self) -> None:
        self.cell.calm = True
        for drafter in self.cell.drafters:
            drafter.silent = False
        if not any(not lane.draining for lane in self.cell.lanes):
            self._add_verifier()


async def weathered(seed: int) -> StormyCell:
    """A cell whose storm is over."""
    cell = StormyCell(
        seed,
        (3, 5, 1000)[seed % 3],
        verifiers=2,
        drafters=2,
        pages=120 if seed % 2 else 0,
        max_prefills=3,
        window=seed % 3,
        cohorts=(0, 1, 2)[seed % 3],
        verify_deadline_s=60.0,
        max_running=12,
        max_queued=20,
        max_handovers=1000,
    )
    storm = Storm(cell, seed)
    for _ in range(120):
        storm.one_thing()
        await asyncio.sleep(storm.draw.choice([0.0, 0.0002, 0.003, 0.02, 0.1]))
    storm.calm()
    await cell.finish(*(state for state, _ in storm.states))
    for state, expected in storm.states:
        if state in storm.cancelled:
            said = list(state.answer.ids()[state.answer.prompt_len :])
            assert said == expected[: len(said)]
            continue
        assert await read(state) == expected
        stats = state.stats
        assert sum(stats.acceptance_histogram) == stats.rounds
        assert stats.accepted <= stats.verified <= stats.drafted
    for noted in storm.epochs.values():
        assert noted == sorted(set(noted)), "no epoch twice"
    for port in storm.ports:
        admitted = [(e.admit.sequence, e.admit.epoch) for e in port.orders(Admission)]
        assert len(admitted) == len(set(admitted))
        assert all(epoch in storm.epochs[number] for number, epoch in admitted)
        rounds = [(e.sequence, e.epoch, e.through_round) for e in port.orders(Acknowledged)]
        assert len(rounds) == len(set(rounds)), "no report is applied twice"
    assert cell.metrics.value("dropped_total", kind="verdict", reason="out_of_order") == 0
    assert cell.metrics.value("dropped_total", kind="released", reason="out_of_order") == 0
    await asyncio.sleep(1.0)
    assert cell.clean(), (cell.load, [*map(len, cell.lanes)], [p.port.held for p in cell.ports])
    assert (cell.admission.running, cell.admission.queued) == (0, 0)
    return cell


@pytest.mark.parametrize("seed", range(30))
async def test_answers_are_exact_and_nothing_is_left_behind(seed: int) -> None:
    await weathered(seed)


async def test_storms_meet_everything() -> None:
    met = Counter[str]()
    for seed in range(4):
        for verifier in (await weathered(seed)).made:
            met += verifier.seen + verifier.counts
    wanted = {kind.__name__ for kind in get_args(Action)} | {
        "failed",
        "no pages",
        "out of pages",
        "late block",
        "block of a sequence that left",
        "verdict of a dropped sequence",
    }
    assert not wanted - set(met), met
