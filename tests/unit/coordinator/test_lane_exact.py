"""What lanes commit equals the one-page reference, through admission, planner, lane and
`RoundLoop`, whatever happens.

Target and drafter are small functions of the newest tokens, and everything drawn is drawn by the
reference's own rules and keys: so only the choices are the system's (when a block is asked for, how
much of it is verified, who moves). Invariant 7: at temperature 0 and in coupled mode the ids are
the same; elsewhere the recorded choices replay to them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from rounds_cell import RoundsCell, story
from torch import Tensor

from coordinator.config import CoordinatorConfig
from coordinator.lanes.request_state import RequestState
from coordinator.simulation.pair import SimulatedBlock, SimulatedContext
from dspark.decoding import reference
from dspark.decoding.reference import Pick, RecordedRound
from dspark.types import Rule, SamplingParams, SparseQ

VOCAB, SLOTS, MOST = 97, 4, 40
PROMPTS = [(5, 6), (8, 9, 1), (3,), tuple(range(20))]


def _logits(tokens: Sequence[int], seed: int) -> Tensor:
    """[V] after these; by the two newest."""
    return _row(tokens[-1], tokens[-2] if len(tokens) > 1 else 0, seed)


@functools.cache
def _row(last: int, before: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed((last * 131 + before) * 7919 + seed)
    return 3.0 * torch.randn(VOCAB, generator=generator)


def target(tokens: Sequence[int], rows: int) -> Tensor:
    return torch.stack([_logits(tokens[: len(tokens) - rows + 1 + row], 1) for row in range(rows)])


def drafter(tokens: Sequence[int], pick: Pick) -> Sequence[float]:
    """Nearly the target; how sure it says it is follows from its own logits."""
    said, confidence = list(tokens), []
    for _ in range(SLOTS):
        logits = _logits(said, 1) + 0.4 * _logits(said, 2)
        confidence.append(float(torch.softmax(logits, 0).max()))
        said.append(pick(logits))
    return confidence


class ReferencePair:
    """Draws as `reference.generate` does, and keeps the rounds that were drawn, by the seed of
    their request."""

    def __init__(self) -> None:
        self.rounds: dict[int, list[RecordedRound]] = {}
        self._blocks: dict[int, tuple[tuple[int, ...], SparseQ]] = {}

    @staticmethod
    def _params(held: SimulatedContext) -> SamplingParams:
        return replace(
            held.admission.params,
            prompt_len=len(PROMPTS[held.admission.params.seed % len(PROMPTS)]),
        )

    def admitted(self, held: SimulatedContext) -> None:
        """What was drawn and not committed before a hand-over is gone."""
        mine = self.rounds.setdefault(held.admission.params.seed, [])
        anchor = len(held.tokens) - 1
        mine[:] = [each for each in mine if each.anchor_position < anchor]

    def first(self, held: SimulatedContext) -> int:
        epoch = held.admission.admit.epoch
        token = reference._first(held.tokens, target, self._params(held), epoch)
        if epoch:
            again = RecordedRound(
                len(held.tokens) - 1, (), reference.NO_Q, 0, 0, token, epoch, prefilled=True
            )
            if len(held.tokens) > len(PROMPTS[held.admission.params.seed % len(PROMPTS)]):
                self.rounds[held.admission.params.seed].append(again)
        return token

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> list[SimulatedBlock]:
        blocks = []
        for held, slots in asked:
            params, epoch = self._params(held), held.admission.admit.epoch
            ids, q, confidence = reference._draft(held.tokens, drafter, params, 64, epoch)
            self._blocks[params.seed] = (ids, q)
            blocks.append(SimulatedBlock(ids[:slots], confidence[:slots]))
        return blocks

    def judge(
        self, asked: Sequence[tuple[SimulatedContext, Sequence[int]]]
    ) -> list[tuple[int, ...]]:
        drawn = []
        for held, prefix in asked:
            params, epoch = self._params(held), held.admission.admit.epoch
            ids, q = self._blocks[params.seed] if prefix else ((), reference.NO_Q)
            assert tuple(prefix) == ids[: len(prefix)]
            accepted, token = reference._verify(
                held.tokens, prefix, q.prefix(len(prefix)), target, params, epoch
            )
            made = RecordedRound(
                len(held.tokens) - 1, tuple(prefix), q, len(prefix), accepted, token, epoch
            )
            self.rounds[params.seed].append(made)
            drawn.append((*prefix[:accepted], token))
        return drawn


async def _troubled(cell: RoundsCell, params: SamplingParams, policy: str) -> list[RequestState]:
    """A verifier is killed, another drains, a drafter is lost and one comes, and pages run out."""
    states = [
        cell.ask(prompt, max_tokens=MOST, policy=policy, params=replace(params, seed=number))
        for number, prompt in enumerate(PROMPTS)
    ]
    await asyncio.sleep(0.09)
    cell.lose_verifier(0)
    await asyncio.sleep(0.06)
    cell.lose_drafter(cell.drafters[0])
    cell.add_drafter()
    cell.add_verifier()
    await asyncio.sleep(0.06)
    cell.lanes[0].move_all()
    cell.add_verifier()
    await cell.finish(*states)
    return states


@pytest.mark.parametrize(
    ("policy", "window", "cohorts"),
    [
        ("adaptive", 2, 0),
        ("adaptive", 0, 1),
        ("fixed:4", 2, 2),
        ("threshold:0.5", 2, 1),
        ("off", 2, 0),
    ],
)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, rule=Rule.BLOCK),
        SamplingParams(temperature=0.0, rule=Rule.TOKEN),
        SamplingParams(temperature=1.0, rule=Rule.COUPLED),
        SamplingParams(temperature=1.0, rule=Rule.BLOCK),
        SamplingParams(temperature=0.8, top_k=20, rule=Rule.TOKEN),
    ],
    ids=lambda params: f"{params.rule.name.lower()}-{params.temperature}",
)
def test_committed_ids_are_those_of_the_one_page_loop(
    params: SamplingParams, policy: str, window: int, cohorts: int
) -> None:
    pair = ReferencePair()

    async def tell(cell: RoundsCell) -> tuple[list[RequestState], float]:
        return await _troubled(cell, params, policy), cell.metrics.value("num_preemptions_total")

    states, _ = story(
        tell,
        pair=pair,
        verifiers=2,
        drafters=2,
        pages=40,
        config=CoordinatorConfig(
            window=window, cohorts=cohorts, verify_deadline_s=60.0, max_handovers=100
        ),
    )
    assert max(state.sequence.epoch for state in states) > 0
    for number, (state, prompt) in enumerate(zip(states, PROMPTS, strict=True)):
        own = replace(params, seed=number)
        said = state.answer.ids()[state.answer.prompt_len :]
        if params.greedy or params.rule is Rule.COUPLED:
            whole = reference.generate(
                prompt, target, drafter, lambda *_: SLOTS, own, max_tokens=MOST
            )
            assert said == whole.token_ids
        first = _begun(state, pair, number)
        assert said == reference.replay(
            prompt, target, pair.rounds[number], own, max_tokens=MOST, epoch=first
        )
        assert policy == "off" or any(each.prefix for each in pair.rounds[number])


def _begun(state: RequestState, pair: ReferencePair, number: int) -> int:
    """The epoch whose prefill gave the first token: a hand-over before anything was committed
    begins anew."""
    again = [each.epoch for each in pair.rounds[number] if each.prefilled]
    drawn = [each.epoch for each in pair.rounds[number]]
    return next(
        epoch for epoch in itertools.count() if epoch not in again and (epoch in drawn or not drawn)
    )
