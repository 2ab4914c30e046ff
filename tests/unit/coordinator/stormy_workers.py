"""A cell whose workers make trouble by a seed, and look at what a `RoundLoop` asks for.

Blocks are late, lost or come twice, drafters forget rows, passes fail. What invariants promise is
asserted where it would be broken.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coordinator.simulation.drafter import Answered, SimulatedDrafter
from coordinator.simulation.pair import SimulatedBlock, SimulatedContext
from coordinator.simulation.verifier import SimulatedVerifier
from coordinator.simulation.world import Device
from dspark.rounds.events import Prefilled, PrefillRefused, Released, Report, RunPass, SendOrder
from dspark.types import Verdict
from tests.rounds_cell import SLOTS, RoundsCell, ToyPair

Hits = Callable[[float], bool]  # whether something of this chance happens
Key = tuple[int, int]  # sequence, epoch


class StormyPair(ToyPair):
    """Drafts are more or less sure, whatever they are worth."""

    def __init__(self, wrong_every: int, draw: random.Random) -> None:
        super().__init__(wrong_every)
        self._draw = draw

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> list[SimulatedBlock]:
        return [
            SimulatedBlock(block.token_ids, [self._draw.random() for _ in block.token_ids])
            for block in super().draft(asked)
        ]


class StormyDrafter(SimulatedDrafter):
    """Its blocks are late, lost or come twice."""

    hits: Hits

    def order(
        self,
        verifier: str,
        order: SendOrder,
        held: Sequence[SimulatedContext | None],
        answer: Callable[[Answered], object],
    ) -> None:
        def answered(said: Answered) -> None:
            if self.hits(0.03):
                return
            late_s = 0.2 if self.hits(0.05) else 0.0
            for times in range(1 + self.hits(0.04)):
                self.world.loop.call_later(late_s + 0.005 * times, answer, said)

        super().order(verifier, order, held, answered)


class StormyVerifier(SimulatedVerifier):
    """Some in its passes fail."""

    hits: Hits

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.seen, self.counts = Counter[str](), self._rounds.counts
        self.forgotten = set[Key]()  # sequences some of whose rows a drafter lost
        self._drawn, self._reported, self._in_pass = (Counter[Key]() for _ in range(3))
        self._ordered = set[tuple[int, int, int]]()
        self._carry_out = {
            kind: partial(self._noted, carry_out) for kind, carry_out in self._carry_out.items()
        }

    def _noted(self, carry_out: Callable[[Any], object], action: Any) -> None:
        self.seen[type(action).__name__] += 1
        if isinstance(action, Report):
            self._reported.update((row.sequence, row.epoch) for row in action.rounds)
        if isinstance(action, Released):
            self.seen[action.why.value if action.why is not None else ""] += 1
            key = (action.sequence, action.epoch)
            assert self._reported[key] == self._drawn[key] == action.rounds, "R6: as it was drawn"
        carry_out(action)

    def _send_order(self, action: SendOrder) -> None:
        drafter = self._numbered.get(action.drafter)
        for row in action.rows:
            key = (row.sequence, row.epoch)
            sequence = self._rounds.sequence(row.sequence)
            if sequence is not None:  # else it made room right afterwards
                assert sequence.ahead <= self._rounds.plan.window, "R8: not beyond the window"
            assert (*key, row.committed_len) not in self._ordered, "R4: one order for an anchor"
            self._ordered.add((*key, row.committed_len))
            assert 1 <= row.slots <= SLOTS
            rows = None if drafter is None else drafter.rows.get((self.facts.name, *key))
            assert rows is None or row.first_row <= rows or key in self.forgotten, "R11: no gap"
        super()._send_order(action)

    def _run(self, action: RunPass) -> None:
        self._in_pass.update((row.sequence, row.epoch) for row in action.rows)
        super()._run(action)

    def _judge(self, action: RunPass) -> list[Verdict | None]:
        keys = [(row.sequence, row.epoch) for row in action.rows]
        self._in_pass.subtract(keys)
        drawn = [None if self.hits(0.01) else each for each in super()._judge(action)]
        self._drawn.update(key for key, each in zip(keys, drawn, strict=True) if each)
        self.seen["failed"] += drawn.count(None)
        return drawn

    def _prefilled(self, prompts: Sequence[Any]) -> list[Prefilled | PrefillRefused]:
        told = super()._prefilled(prompts)
        self._drawn.update(
            (each.sequence, each.epoch) for each in told if isinstance(each, Prefilled)
        )
        return told

    def _free(self, key: Key) -> None:
        assert not self._in_pass[key], "pages of a sequence in a pass"
        super()._free(key)


class StormyCell(RoundsCell):
    """Its workers make trouble until it is `calm`."""

    def __init__(self, seed: int, wrong_every: int, **settings: Any) -> None:
        self.draw, self.calm = random.Random(f"workers/{seed}"), False
        self.made = list[StormyVerifier]()
        super().__init__(pair=StormyPair(wrong_every, self.draw), **settings)

    def _hits(self, share: float) -> bool:
        return not self.calm and self.draw.random() < share

    def new_verifier(self, name: str) -> StormyVerifier:
        made = StormyVerifier(self.world, name, Device(), self.drafters, self._waits)
        made.hits = self._hits
        self.made.append(made)
        return made

    def new_drafter(self, name: str, incarnation: int) -> StormyDrafter:
        made = StormyDrafter(self.world, name, incarnation)
        made.hits = self._hits
        return made

    def drafters_forget(self) -> None:
        """Some rows of every context."""
        for drafter in self.drafters:
            for verifier in self.made:
                verifier.forgotten.update(key[1:] for key in drafter.rows)
            drafter.rows.update({key: rows // 2 for key, rows in drafter.rows.items()})
