"""Random arrivals, cancellations, losses and delays: whatever happens, answers are exact and nothing is left behind."""

import random

import pytest
from fakes import FakeDrafter, FakeVerifier, ToyCell, answer_of, calm, read

from coordinator.lanes.drafting import DraftWaits
from coordinator.lanes.lane import Conduct
from coordinator.lanes.ports import Declined
from coordinator.lanes.track import Track
from coordinator.queue.admission import Bounds
from coordinator.scheduling.cost_curve import CostCurve
from dspark.errors import Cancelled, Overloaded
from dspark.types import Cursor, RefusalReason

KINDS = ("open", "draft", "prefill", "verify", "resend")
POLICIES = ("greedy", "async", "fixed:2", "threshold:0.5", "off")


class Storm:
    """One toy cell and a source of trouble."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        curve = CostCurve([1, 2, 40], [64], [0.001, 0.0011, 0.005]) if seed % 2 else None
        self.cell = ToyCell(
            drafters=2,
            pages=40,
            cost=curve,
            waits=Conduct(
                draft=DraftWaits(deadline_s=0.1, patience_s=2.0), prefills=3, verify_s=60.0, cohorts=seed % 3
            ),
            bounds=Bounds(max_running=12, max_queued=20, max_handovers=1000),
            outlet=1000,
        )
        self.tracks: list[tuple[Track, list[int]]] = []
        self.cancelled: set[Track] = set()
        self.names = 100

    async def one_thing(self) -> None:
        things = [self.ask] * 6 + [self.cancel, self.hold, self.hold, self.let_go, self.let_go, self.wait, self.wait]
        things += [self.lose_drafter, self.add_drafter, self.replace_verifier, self.lose_row, self.decline]
        await self.random.choice(things)()
        await calm(self.random.choice([0, 1, 3, 10, 40]))

    async def ask(self) -> None:
        prompt = tuple(self.random.randrange(90) for _ in range(self.random.randint(1, 9)))
        tokens = self.random.randint(1, 40)
        try:
            track = self.cell.ask(prompt, max_tokens=tokens, policy=self.random.choice(POLICIES))
        except Overloaded:
            return
        self.tracks.append((track, answer_of(prompt, tokens)))

    async def cancel(self) -> None:
        if self.tracks:
            track, _ = self.random.choice(self.tracks)
            if not track.sequence.finished:
                self.cancelled.add(track)
                self.cell.admission.ended(track, Cancelled("gone"))

    async def hold(self) -> None:
        self.random.choice([self.cell.verifier, *self.cell.drafters]).holding.add(self.random.choice(KINDS))

    async def let_go(self) -> None:
        for worker in (self.cell.verifier, *self.cell.drafters):
            for kind in KINDS:
                worker.let_go(kind)

    async def wait(self) -> None:
        await self.cell.clock.advance(self.random.choice([0.05, 0.2, 1.0]))

    async def lose_drafter(self) -> None:
        drafter = self.random.choice(self.cell.drafters)
        if drafter.alive:
            self.cell.lose_drafter(drafter)

    async def add_drafter(self) -> None:
        self.names += 1
        drafter = FakeDrafter(self.cell.talk, f"draft/{self.names}", incarnation=self.names)
        self.cell.drafters.append(drafter)
        self.cell.verifier.drafters.append(drafter)
        self.cell.join(self.cell.lane, drafter)

    async def replace_verifier(self) -> None:
        self.cell.lose_verifier()
        await calm(self.random.choice([0, 5]))
        self.names += 1
        name = f"verify/{self.names}"
        cell = self.cell
        cell.verifier = FakeVerifier(cell.talk, cell.drafters, name, pages=40, incarnation=self.names)
        cell.lane = cell.add_lane(cell.verifier)

    async def lose_row(self) -> None:
        for drafter in self.cell.drafters:
            for rows in drafter.rows.values():
                rows.pop(self.random.randrange(12), None)

    async def decline(self) -> None:
        why = self.random.choice([RefusalReason.UNKNOWN_SEQUENCE, RefusalReason.INTERNAL, RefusalReason.STALE_CURSOR])
        self.cell.verifier.decline = Declined(Cursor(0, 0, 0, 0), why)

    async def settle(self) -> None:
        """The trouble ends; everything comes to its end."""
        for _ in range(60):
            await self.let_go()
            await self.cell.clock.advance(1.0)
            if all(track.sequence.finished for track, _ in self.tracks):
                break


@pytest.mark.parametrize("seed", range(40))
async def test_answers_are_exact_and_nothing_is_left_behind(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(80):
        await storm.one_thing()
    await storm.settle()
    cell = storm.cell
    for track, expected in storm.tracks:
        assert track.sequence.finished, track.sequence.state
        if track in storm.cancelled:
            with pytest.raises(Cancelled):
                await read(track)
        else:
            assert await read(track) == expected
            tally = track.tally
            assert sum(tally.acceptance_histogram) == tally.rounds
            assert tally.committed_by_rounds + 1 + track.handovers >= len(expected)
            assert tally.accepted <= tally.verified <= tally.drafted
    await cell.clock.advance(5.0)
    assert cell.clean()
    assert (cell.admission.running, cell.admission.queued) == (0, 0)
    assert not any(cell._load.values())
    assert [loop for loop in cell._loops if loop.done() and loop.exception()] == []
    await cell.close()
