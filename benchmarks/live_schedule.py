"""The price, which is older than the blocks that meet it, beside Algorithm 1 that sees every block before it chooses.

Confidences and outcomes of the pair are recorded once, from whole blocks. Then rounds of so many sequences run in
simulated time: every sequence walks through recorded blocks, a round takes what the pair's measured curves say, and
commits what was accepted of the prefix. Algorithm 1 has the true curve and may stop at any of all sizes; it pays for
whole drafts. The planner learns from reports that are two rounds old, as with a window of two.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from benchmarks.pair import DOMAINS, Pair
from coordinator.planning.cost import CostCorrector, RunningRatio
from coordinator.planning.cost_curve import CostCurve
from coordinator.planning.planner import FinishedPass, PlannedLane, Planner
from coordinator.simulation.world import curve_of
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem
from draft_service.profiler import measure as measure_drafts
from dspark.rounds.plan import prefixes
from dspark.rounds.survival import Floats, Ints, survival
from dspark.runtime.cost_store import Curve
from dspark.synthetic.spec import load_spec
from dspark.types import Cursor, SamplingParams, Verdict
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.feature_store import FeatureRows
from verify_service.profiler import measure as measure_passes
from verify_service.sequences import VerifyItem

ROUNDS, SETTLING = 1200, 200  # of a simulation, and of them those that are not counted
LAG = 2  # rounds until a report meets a plan
HOP_S = 2e-3  # of a drafted round, besides both passes
CONTEXT = 256.0
SLOT_SHARE = 0.4  # of a draft pass, what grows with its slots


class Recorded(NamedTuple):
    """One whole block: what the drafter promised of its slots, and how many of them were accepted."""

    confidence: tuple[float, ...]
    accepted: int


@dataclass(frozen=True, slots=True)
class Recording:
    """answers: their blocks in order. verify, draft: measured curves."""

    answers: list[list[Recorded]]
    block: int
    verify: CostCurve
    draft: CostCurve

    def draft_s(self, sequences: float, slots: int) -> float:
        whole = self.draft.measured(sequences, CONTEXT)
        return whole * (1.0 - SLOT_SHARE + SLOT_SHARE * slots / self.block) if slots else 0.0

    def round_s(self, tokens: float, sequences: int, slots: int) -> float:
        hop = HOP_S if slots else 0.0
        return self.verify.measured(tokens, CONTEXT, sequences) + self.draft_s(sequences, slots) + hop


def with_costs(recording: Recording, file: Path) -> Recording:
    """The same blocks on the devices of a synthetic pair."""
    spec = load_spec(file)
    return replace(recording, verify=curve_of(spec.verify), draft=curve_of(spec.draft))


def record(pair: Pair, prompts: int, tokens: int, temperature: float) -> Recording:
    """Decodes `prompts` of every domain, `tokens` each, with whole blocks, both engines in this process."""
    room = 32 * 1024
    verifier = VerifyEngine.load(
        VerifyConfig(target=str(pair.target), drafter=str(pair.drafter), kv_tokens=room, prefix_cache=False)
    )
    drafter = DraftEngine.load(DraftConfig(drafter=str(pair.drafter), target=str(pair.target), context_tokens=room))
    verify, draft = _curve(measure_passes(verifier)), _curve(measure_drafts(drafter))
    asked = [pair.token_ids(prompt) for domain in DOMAINS for prompt in pair.prompts(domain, prompts)]
    answers = [_decode(verifier, drafter, n, prompt, tokens, temperature) for n, prompt in enumerate(asked)]
    return Recording(answers, drafter.drafter.config.block_size, verify, draft)


def _curve(measured: Curve | None) -> CostCurve:
    if measured is None:
        raise SystemExit("the pair's passes could not be measured")
    return CostCurve(
        measured.tokens.tolist(),
        measured.contexts.tolist(),
        measured.seconds.ravel().tolist(),
        sequence_seconds=measured.sequence_seconds,
        tokens_per_sequence=measured.tokens_per_sequence,
        borrowed=measured.borrowed,
    )


def _decode(
    verifier: VerifyEngine, drafter: DraftEngine, number: int, prompt: list[int], tokens: int, temperature: float
) -> list[Recorded]:
    law = SamplingParams(temperature, seed=number, prompt_len=len(prompt))
    cursor = Cursor(number, 1, 0, len(prompt))
    longest = len(prompt) + tokens + 2 * drafter.drafter.config.block_size
    for refusal in (
        verifier.open(cursor, law, longest, False, token_ids=prompt),
        drafter.open(cursor, longest),
    ):
        if refusal is not None:
            raise SystemExit(f"a sequence was refused: {refusal.message}")
    _push(drafter, verifier.prefill_chunk(number, prompt), number)
    anchor = verifier.first_token(number)
    assert isinstance(anchor, int), anchor
    said = [anchor]
    made: list[Recorded] = []
    while len(said) < tokens:
        cursor = cursor._replace(round=cursor.round + 1, committed_len=len(prompt) + len(said))
        (block,) = drafter.draft([DraftItem(cursor, said[-1], cursor.anchor_position, law)])
        judged = verifier.judge_cohort([VerifyItem(cursor, said[-1], block.token_ids, block.q)])
        (verdict,), (rows,) = judged.outcomes, judged.features
        if not isinstance(verdict, Verdict):
            raise SystemExit(f"a round failed: {verdict}")
        _push(drafter, rows, number)
        said += [*block.token_ids[: verdict.accepted], verdict.next_token]
        made.append(Recorded(tuple(block.confidence), verdict.accepted))
    verifier.release(number, 1)
    drafter.release(number, 1)
    return made


def _push(drafter: DraftEngine, made: object, number: int) -> None:
    assert isinstance(made, FeatureRows), made
    count = len(made.token_ids)
    rows = drafter.read_rows(made.message(0, count), count)
    drafter.ingest(number, made.epoch, made.start, made.token_ids, rows)


class LiveScheduler(Protocol):
    """Chooses for n sequences at a time."""

    def slots(self) -> int:
        """To be drafted in the round that begins."""

    def prefixes(self, confidence: Floats) -> Ints:
        """[n] of blocks [n, k], k the slots that were drafted."""

    def done(self, confidence: Floats, verified: Ints, accepted: Ints, tokens: int) -> None:
        """What came of the round."""


class Live:
    """Algorithm 1 over the blocks themselves."""

    def __init__(self, recording: Recording, sequences: int) -> None:
        self._recording, self._sequences = recording, sequences

    def slots(self) -> int:
        return self._recording.block

    def prefixes(self, confidence: Floats) -> Ints:
        count = self._sequences
        alive = survival(confidence, np.full(count, confidence.shape[1]))
        ranks = -np.sort(-alive, axis=None)
        gained = count + np.concatenate(([0.0], np.cumsum(ranks)))
        seconds = [self._recording.round_s(count + taken, count, confidence.shape[1]) for taken in range(len(gained))]
        best = int((gained / np.array(seconds)).argmax())
        return (alive >= ranks[best - 1]).sum(axis=1) if best else np.zeros(count, np.int64)

    def done(self, confidence: Floats, verified: Ints, accepted: Ints, tokens: int) -> None:
        pass


class Plain(Live):
    """No drafts."""

    def slots(self) -> int:
        return 0


class Priced:
    """The planner of a lane."""

    def __init__(self, recording: Recording, sequences: int) -> None:
        self._recording, self._sequences = recording, sequences
        cost = CostCorrector(recording.verify, recording.draft_s, RunningRatio(HOP_S))
        self._planner = Planner(cost, recording.block)
        self._lane = PlannedLane(
            range(sequences), [""] * sequences, np.ones(sequences), CONTEXT, window=LAG, cohorts=(1,)
        )
        self._late: deque[FinishedPass] = deque()
        self._plan = self._planner.next(self._lane)

    def slots(self) -> int:
        return self._plan.terms.slots

    def prefixes(self, confidence: Floats) -> Ints:
        terms = [self._plan.terms_of(number) for number in range(self._sequences)]
        return np.array(prefixes(confidence.tolist(), terms), np.int64)

    def done(self, confidence: Floats, verified: Ints, accepted: Ints, tokens: int) -> None:
        count, slots = confidence.shape
        forward_s = self._recording.verify.measured(tokens, CONTEXT, count)
        draft_s = self._recording.draft_s(count, slots)
        round_s = self._recording.round_s(tokens, count, slots)
        self._late.append(
            FinishedPass(
                [""] * count, confidence, verified, accepted, np.ones(count), CONTEXT, tokens, 0,
                forward_s, round_s, draft_s,
            )
        )  # fmt: skip
        if len(self._late) > LAG:
            self._planner.learn(self._late.popleft())
        self._plan = self._planner.next(self._lane)


def rate(recording: Recording, sequences: int, scheduler: LiveScheduler, rounds: int = ROUNDS) -> float:
    """Committed tokens a simulated second, the first rounds left out."""
    walks = [_walk(recording.answers, number) for number in range(sequences)]
    tokens, seconds = 0, 0.0
    for number in range(rounds):
        slots = scheduler.slots()
        blocks = [next(walk) for walk in walks] if slots else []
        confidence = np.array([block.confidence[:slots] for block in blocks]).reshape(sequences, slots)
        verified = scheduler.prefixes(confidence) if slots else np.zeros(sequences, np.int64)
        accepted = np.minimum(verified, [block.accepted for block in blocks]) if slots else verified
        size = sequences + int(verified.sum())
        scheduler.done(confidence, verified, accepted, size)
        if number >= min(SETTLING, rounds // 4):
            tokens += sequences + int(accepted.sum())
            seconds += recording.round_s(size, sequences, slots)
    return tokens / seconds


def _walk(answers: Sequence[Sequence[Recorded]], first: int) -> Iterator[Recorded]:
    """Blocks of one sequence: answer after answer, each sequence from another one on."""
    begin = first % len(answers)
    return itertools.chain.from_iterable(itertools.cycle([*answers[begin:], *answers[:begin]]))
