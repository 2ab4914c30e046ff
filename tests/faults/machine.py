"""Random commands against a whole simulated cell, with a model of what must be true after each.

The model is small: an answer is a prefix of what the target alone says, and only grows; pages have
exactly the holders that sequences and kept prefixes account for; bounds are kept; when the trouble
ends, everything ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.faults import oracle, pair
from tests.faults.plan import Action, Plan, once
from tests.faults.promises import take_out_youngest
from tests.faults.simulated import SimulatedCell, in_memory
from tests.faults.simulation import Simulation
from tests.faults.streams import Stream

PROMPTS = tuple(pair.prompt(number, length) for number, length in enumerate((4, 1, 38, 6)))
LONGEST = 24
POLICIES = ("adaptive", "fixed:1", "fixed:3", "threshold:0.5", "off")
KINDS = (
    "ControlUp.report",
    "ControlUp.released",
    "ControlDown.acknowledged",
    "ControlDown.admission",
    "RoundsEvent.blocks",
    "RoundsEvent.opened",
    "RoundsCommand.order",
    "FeatureChunk",
)
MAX_RUNNING, MAX_QUEUED, PAGE = 6, 4, 16
SETTINGS: dict[str, Any] = {
    "verifiers": 2,
    "drafters": 1,
    "coordinator": {
        "max_running": MAX_RUNNING,
        "max_queued": MAX_QUEUED,
        "verify_deadline_s": 1.0,
        "prefill_deadline_s": 1.0,
        "max_handovers": 1000,
    },
    "verify": {"kv_tokens": 9 * PAGE, "page_size": PAGE, "prefill_chunk": 16},
}


@functools.cache
def plain() -> list[list[int]]:
    """What the target alone answers."""
    return oracle.plain_greedy(pair.TARGET, PROMPTS, LONGEST)


def walk(machine: type[CellMachine], walks: int, steps: int, **how: Any) -> None:
    """So many walks of so many steps; raises what the machine finds."""
    how |= {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    told = settings(max_examples=walks, stateful_step_count=steps, **how)
    run_state_machine_as_test(machine, settings=told)


class CellMachine(RuleBasedStateMachine):
    """Requests, cancels, kills, hangs, restarts, losses, preemption and time, in any order."""

    steps = 0  # of all machines

    def __init__(self) -> None:
        super().__init__()
        self.expected = plain()
        self.simulation = Simulation()
        self.simulation.__enter__()
        self.cell = self.simulation.run(self._begin())
        self.simulation.enter(in_memory(self.cell))
        self.simulation.run(self.cell.start())
        self.asked: list[tuple[int, int, asyncio.Task[Stream]]] = []
        self.seen: Counter[int] = Counter()  # committed tokens by sequence
        self.down: set[str] = set()
        self.hung: set[str] = set()

    async def _begin(self) -> SimulatedCell:
        return SimulatedCell(plan=Plan(), watch_s=1.0, **SETTINGS)

    @rule(
        which=st.integers(0, len(PROMPTS) - 1),
        tokens=st.integers(1, LONGEST),
        policy=st.sampled_from(POLICIES),
    )
    def ask(self, which: int, tokens: int, policy: str) -> None:
        work = self.cell.ask(PROMPTS[which], max_tokens=tokens, policy=policy)
        self._now(lambda: self.asked.append((which, tokens, asyncio.create_task(work))))
        self._pass(0.001)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        _, _, task = data.draw(st.sampled_from(self.asked))
        self._now(task.cancel)
        self._pass(0.0)

    @rule(seconds=st.sampled_from([0.0005, 0.003, 0.01, 0.03, 0.2]))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)

    @precondition(lambda self: len(self.down | self.hung) < 2)
    @rule(name=st.sampled_from(["verify/0", "verify/1", "draft/0"]))
    def kill(self, name: str) -> None:
        if name not in self.down:
            self._now(self.cell.kill, name)
            self.down.add(name)
            self.hung.discard(name)
            self._pass(0.001)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.down)))
        self.down.discard(name)
        self.simulation.run(self.cell.restart(name))
        self._pass(0.3)

    @precondition(lambda self: not self.down | self.hung)
    @rule(
        name=st.sampled_from(["verify/0", "verify/1", "draft/0"]),
        seconds=st.sampled_from([0.05, 0.5, 3.0]),
    )
    def hang(self, name: str, seconds: float) -> None:
        self._now(self.cell.freeze, name)
        self._pass(seconds)
        self._now(self.cell.thaw, name)
        self._pass(0.01)

    @rule(
        kind=st.sampled_from(KINDS),
        action=st.sampled_from([Action.DROP, Action.TWICE, Action.SWAP, Action.CUT]),
    )
    def hurt(self, kind: str, action: Action) -> None:
        plan = self.cell.network.plan
        plan.rules[:] = [once(kind, action, at=plan.seen[kind] + 1)]
        self._pass(0.02)

    @rule()
    def preempt(self) -> None:
        self._now(take_out_youngest, self.cell)  # as if a sequence found no page
        self._pass(0.0)

    @property
    def membership(self) -> Any:
        return self.cell.processes["coordinator/0"].cell.membership

    def _now(self, act: Callable[..., object], *args: Any) -> None:
        async def within() -> None:
            act(*args)

        self.simulation.run(within())

    def _pass(self, seconds: float) -> None:
        CellMachine.steps += 1
        self.simulation.run(self.cell.after(seconds))

    @invariant()
    def bounds_are_kept(self) -> None:
        admission = self.cell.processes["coordinator/0"].cell.admission
        assert admission.running <= MAX_RUNNING
        # Those who lost a place through no fault of their own come back on top of the bound.
        assert admission.queued <= MAX_QUEUED + MAX_RUNNING

    @invariant()
    def logs_grow_along_the_target_s_answer(self) -> None:
        for lane in self.membership.lanes:
            for state in lane.states:
                answer, sequence = state.answer, state.sequence
                prompt, said = answer.ids()[: answer.prompt_len], answer.ids()[answer.prompt_len :]
                assert list(said) == self.expected[PROMPTS.index(list(prompt))][: answer.length]
                assert answer.length >= self.seen[sequence.number], "a committed token is gone"
                self.seen[sequence.number] = answer.length

    @invariant()
    def pages_are_conserved(self) -> None:
        for name in ("verify/0", "verify/1"):
            if name in self.down:
                continue
            engine = self.cell.processes[name].engine
            kv_cache = engine._kv_cache
            pool = kv_cache.pool
            held = Counter(page for table in pool._tables.values() for page in table.pages)
            held.update(kept.page for kept in kv_cache.prefixes._kept.values())
            assert [held[page] for page in range(pool.total)] == pool._holders.tolist(), (
                "a page has who holds it"
            )
            assert pool.free == sum(held[page] == 0 for page in range(pool.total))
            left = set(pool._tables) - set(kv_cache.states.values())
            assert all(one.in_pass for one in left), "who left a pass goes at its end"
            for one in kv_cache.states.values():
                assert one.cached <= len(pool.pages(one)) * PAGE

    def teardown(self) -> None:
        try:
            self.simulation.run(self._settle())
        finally:
            self.simulation.__exit__()

    async def _settle(self) -> None:
        """The trouble ends; so does everything that was asked."""
        cell = self.cell
        cell.network.plan.rules.clear()
        for name in sorted(self.down):
            await cell.restart(name)
        tasks = [task for _, _, task in self.asked]
        if tasks:
            await asyncio.wait_for(asyncio.wait(tasks), 300.0)
        for which, tokens, task in self.asked:
            if task.cancelled():
                continue
            answer = task.result()
            if answer.error is None:
                assert answer.ids == self.expected[which][:tokens]
            else:
                assert answer.ids == self.expected[which][: len(answer.ids)], (
                    "what was shown stands"
                )
        await cell.until(lambda: not cell.left_over(), within_s=60.0)
