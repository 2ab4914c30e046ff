"""Rounds of a lane in numbers: calibrated blocks of several kinds of text, a cost model, and what
plans make of them.

Blocks cost what the model says, tokens are expected ones (the sums of survivals), so that two ways
to plan the same rounds compare without noise; acceptance itself, which the planner learns from, is
drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.planning.cost import CostCorrector, CostCurve, RunningRatio
from coordinator.planning.options import PlannedLane
from coordinator.planning.planner import Planner, ValidRounds
from dspark.rounds.control import PassReport, Timing
from dspark.rounds.events import Report, RoundReport
from dspark.rounds.plan import prefixes
from dspark.rounds.survival import Floats, Ints
from tests.algorithm_1 import lengths_of

SLOTS = 7
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXT = 128.0
MIXED = (0.89, 0.86, 0.75)  # chance that a slot is kept once those before it are, by kind of text
HARD = (0.35, 0.3, 0.2)


@dataclass(frozen=True)
class Costs:
    """Seconds of passes, drafts and what lies between."""

    verify_s: Callable[[float], float]  # by tokens
    draft_s: Callable[[float, int], float]  # by sequences and slots
    hop_s: float

    def curve(self) -> CostCurve:
        """As the verifier would announce it."""
        return CostCurve(SIZES, [int(CONTEXT)], [self.verify_s(size) for size in SIZES])

    def round_s(self, tokens: float, sequences: int, slots: int) -> float:
        drafted_s = self.draft_s(sequences, slots) + self.hop_s if slots else 0.0
        return self.verify_s(tokens) + drafted_s


COSTS = {
    "gpu": Costs(lambda t: 20e-3 + 0.1e-3 * t, lambda n, k: 1.5e-3 + 0.2e-3 * k + 20e-6 * n, 2e-3),
    "small gpu": Costs(
        lambda t: 5e-3 + 0.05e-3 * t, lambda n, k: 0.7e-3 + 0.1e-3 * k + 8e-6 * n, 1.5e-3
    ),
    "cpu": Costs(lambda t: 2e-3 + 1.5e-3 * t, lambda n, k: 1e-3 + 0.2e-3 * k * n, 1e-3),
}


def planner_of(costs: Costs, **options: Any) -> Planner:
    """Of a lane whose services announced these costs."""
    cost = CostCorrector(costs.curve(), costs.draft_s, RunningRatio(costs.hop_s))
    return Planner(cost, SLOTS, **options)


def lane(streams: int, cohorts: int = 2) -> PlannedLane:
    return PlannedLane(
        range(streams),
        ["d"] * streams,
        np.ones(streams),
        CONTEXT,
        cohorts=tuple(range(1, cohorts + 1)),
    )


def learn(
    planner: Planner,
    confidence: Floats,  # [n, k]
    verified: int | Ints,
    accepted: int | Ints,
    seconds: tuple[float, float, float],  # of the pass, of the round, of the draft
    *,
    keys: Sequence[str] = (),
    prompts: int = 0,  # tokens of them
    drafted: bool = False,
    together: int = 0,  # sequences of two cohorts, of which these are one; 0: there is one alone
) -> None:
    """Of a pass by sequences of the same weight. verified, accepted: of each, or of all alike."""
    count = len(confidence)
    verified = np.broadcast_to(np.asarray(verified, np.int64), count)
    accepted = np.broadcast_to(np.asarray(accepted, np.int64), count)
    rounds = [
        RoundReport(number, 0, 1, 0, (), kept, judged, block[~np.isnan(block)].tolist())
        for number, (block, judged, kept) in enumerate(
            zip(confidence, verified.tolist(), accepted.tolist(), strict=True)
        )
    ]
    forward_s, round_s, draft_s = seconds
    timing = Timing(forward_s=forward_s, round_s=round_s, draft_s=draft_s)
    load = count + int(verified.sum())
    report = PassReport(Report(1, rounds), timing, CONTEXT, load, prompts)
    planner.learn(
        ValidRounds(report, rounds, list(keys) or ["d"] * count, [1.0] * count, [False] * count),
        CONTEXT,
        cohorts=2 if together else 1,
        together=together or count,
        drafted=drafted,
    )


def blocks(rng: np.random.Generator, texts: Floats) -> Floats:
    """[n, SLOTS] calibrated confidences of texts of these mean chances [n], one anchor each."""
    return np.clip(rng.beta(texts[:, None], 1.0 - texts[:, None], (len(texts), SLOTS)), 0.0, 1.0)


def blocks_at(recorded: Floats, streams: int, number: int) -> Floats:
    """[streams, SLOTS]: each stream reads texts [texts, rounds, SLOTS] one after the other, from
    one of its own on."""
    texts, rounds, _ = recorded.shape
    begins = np.arange(streams) * (texts * rounds // streams)
    return recorded.reshape(texts * rounds, -1)[(begins + number) % (texts * rounds)]


def planned(
    costs: Costs,
    kinds: tuple[float, ...],
    streams: int,
    rounds: int,
    *,
    seed: int = 0,
    announced: Costs | None = None,
    bent: Callable[[Floats], Floats] = lambda confidence: confidence,
    lag: int = 1,
    stalls: int = 0,
    switching: float = 1.0,
    recorded: Floats | None = None,
) -> tuple[float, Planner, list[int]]:
    """(tokens per second after a warm-up, the planner, slots of its plans).

    announced: costs as they were measured, if they have changed since. bent: what the drafter says
    its chances are. recorded: blocks in place of drawn ones, see `blocks_at`. lag: finished rounds
    that a plan does not know yet. stalls: every so many rounds one is said to have taken ten times
    as long. switching: by which a plain round behind a drafted one takes longer than one behind
    another plain one.
    """
    rng = np.random.default_rng(seed)
    planner, one = planner_of(announced or costs), lane(streams, cohorts=1)
    texts = rng.choice(kinds, streams)
    tokens = seconds = 0.0
    plans = [planner.next(one)] * (lag + 1)
    slots_of = []
    slots = 0
    for number in range(rounds):
        leaving = rng.random(streams) < 1 / 30
        texts = np.where(leaving, rng.choice(kinds, streams), texts)
        plan = plans[-1 - lag]
        true = blocks(rng, texts) if recorded is None else blocks_at(recorded, streams, number)
        terms = [plan.terms_of(stream) for stream in range(streams)]
        drafts = np.array([each.drafts for each in terms])
        before, slots = slots, max(each.slots for each in terms)
        said = np.where(drafts[:, None], bent(true)[:, :slots], np.nan)
        verified = np.array(prefixes([list(row) for row in said], terms))
        alive = np.cumprod(true, axis=1)
        brought = float(np.where(np.arange(SLOTS) < verified[:, None], alive, 0.0).sum())
        accepted = np.minimum(
            (np.cumprod(rng.random(true.shape) < true, axis=1)).sum(axis=1), verified
        )
        load = streams + int(verified.sum())
        drafting = int(drafts.sum())
        took = costs.round_s(load, drafting, slots) * (switching if before and not slots else 1.0)
        told_s = took * (10.0 if stalls and number % stalls == stalls - 1 else 1.0)
        learn(
            planner,
            said,
            verified,
            accepted,
            (costs.verify_s(load), told_s, costs.draft_s(drafting, slots) * (slots > 0)),
            drafted=slots > 0,
        )
        plans.append(planner.next(one))
        slots_of.append(slots)
        if number >= rounds // 4:
            tokens += streams + brought
            seconds += took
    return tokens / seconds, planner, slots_of


def live(
    costs: Costs,
    kinds: tuple[float, ...],
    streams: int,
    rounds: int,
    slots: int,
    *,
    seed: int = 0,
    recorded: Floats | None = None,
) -> float:
    """The same with Algorithm 1 run on the live confidences of blocks of so many slots, which no
    plan can do; 0 slots are plain decoding."""
    rng = np.random.default_rng(seed)
    texts = rng.choice(kinds, streams)
    overhead = costs.draft_s(streams, slots) + costs.hop_s if slots else 0.0
    convex = costs.curve()  # the models are convex
    tokens = seconds = 0.0
    for number in range(rounds):
        leaving = rng.random(streams) < 1 / 30
        texts = np.where(leaving, rng.choice(kinds, streams), texts)
        true = blocks(rng, texts) if recorded is None else blocks_at(recorded, streams, number)
        chosen = np.array(
            lengths_of(true[:, :slots], lambda tokens: convex.measured(tokens, CONTEXT) + overhead)
        )
        alive = np.cumprod(true, axis=1)
        rng.random(true.shape)  # as `planned` draws
        if number >= rounds // 4:
            tokens += streams + float(
                np.where(np.arange(SLOTS) < chosen[:, None], alive, 0.0).sum()
            )
            seconds += costs.round_s(streams + int(chosen.sum()), streams, slots)
    return tokens / seconds
