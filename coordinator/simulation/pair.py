"""Tokens and confidences of a simulated target and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dspark.rounds.control import Admission
from dspark.synthetic.oracle import SyntheticOracle


class SimulatedContext:
    """One sequence at a verifier."""

    __slots__ = ("admission", "domain", "key", "tokens")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.tokens = list(admission.token_ids)  # with all that were drawn
        self.key = self.domain = 0  # for its pair


class SimulatedBlock(NamedTuple):
    token_ids: Sequence[int]
    confidence: Sequence[float]


class SimulatedPair(Protocol):
    """A target and its drafter. Pure, for many sequences at once; callers keep the sequences."""

    def admitted(self, held: SimulatedContext) -> None:
        """Prepares a new sequence."""

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> Sequence[SimulatedBlock]:
        """Blocks of so many slots, behind the newest token of each sequence."""

    def judge(
        self, asked: Sequence[tuple[SimulatedContext, Sequence[int]]]
    ) -> Sequence[tuple[int, ...]]:
        """For each prefix: the accepted tokens, and the target's own behind them, which alone is
        the first one behind a prompt."""


class SyntheticPair:
    """The pair of a synthetic file: all is a hash of (seed, sequence, position, slot)."""

    def __init__(self, oracle: SyntheticOracle) -> None:
        self._oracle = oracle

    def admitted(self, held: SimulatedContext) -> None:
        params, first = held.admission.params, held.admission.token_ids[0]
        held.key = self._oracle.key(first, params.seed, params.choice)
        held.domain = self._oracle.domain(first)

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> Sequence[SimulatedBlock]:
        keys = np.array([held.key for held, _ in asked], np.uint64)
        anchors = np.array([len(held.tokens) - 1 for held, _ in asked])
        ids, chances = self._oracle.draft(
            keys, np.array([held.domain for held, _ in asked]), anchors
        )
        sure = self._oracle.confidences(keys, anchors, chances)
        rows = zip(ids.tolist(), sure.tolist(), asked, strict=True)
        return [
            SimulatedBlock(mine[:slots], believed[:slots]) for mine, believed, (_, slots) in rows
        ]

    def judge(
        self, asked: Sequence[tuple[SimulatedContext, Sequence[int]]]
    ) -> Sequence[tuple[int, ...]]:
        keys = np.array([held.key for held, _ in asked], np.uint64)
        lengths = np.array([len(held.tokens) for held, _ in asked])
        return self._oracle.judge(keys, lengths, [prefix for _, prefix in asked])
