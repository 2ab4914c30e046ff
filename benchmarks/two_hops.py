"""Rounds between a verifier and a drafter (`Verify.Control`), measured beside bare streams of the
same payload.

A stand-in for the coordinator commits and acknowledges everything at once. Rounds are compared by
their median, which a busy machine disturbs least.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import bare_hops, real_cell
from benchmarks.row import note
from coordinator.workers.clients import ControlClient
from deploy.processes import ProcessCell
from dspark.rounds.control import Admission, Down, DrafterAt, PassReport, Up
from dspark.rounds.events import Acknowledged, Admit
from dspark.rounds.plan import PLAIN, BlockTerms, Plan, PlanKind
from dspark.runtime.channel import WORKER_WATCH_MS, open_channel
from dspark.types import Rule, SamplingParams
from dspark.wire.v1 import draft_pb2_grpc, types_pb2, verify_pb2_grpc

SETTLED = 24  # passes before anything is measured
PROMPT, ANSWER = 32, 1 << 14  # tokens; no answer ends while it is measured


@dataclass(frozen=True, slots=True)
class RoundSetting:
    """Rounds to measure. Seconds of a verification and of a draft; width: values of a feature row,
    of two bytes each."""

    sequences: int
    verify_s: float
    draft_s: float
    width: int = 64
    cohorts: int = 1
    drafts: bool = True


def measure(setting: RoundSetting, repeats: int, seconds: float) -> dict[str, float]:
    """Measures `repeats` windows of rounds, and one of bare streams behind each of them.

    verifier_busy: share of time. overhead: share of a round outside its passes. times_bare: time
    outside the passes over that of bare streams; two cohorts wait for each other and plain rounds
    have no hop, so neither of them is compared.
    """
    two, bare, steps = list[float](), list[float](), list[float]()
    compared = setting.drafts and setting.cohorts == 1
    with tempfile.TemporaryDirectory() as folder:
        times_ms = 1e3 * setting.verify_s, 1e3 * setting.draft_s
        pair = real_cell.flat(Path(folder), *times_ms, feature_width=setting.width)
        with real_cell.workers(pair, room=2 * setting.sequences) as workers:
            for _ in range(repeats):
                rounds_s, step_s, rows = asyncio.run(_two_hops(workers, setting, seconds))
                two += rounds_s
                steps.append(step_s)
                if compared:
                    payload = setting.sequences, setting.width, round(rows)
                    bare += bare_hops.measure(*payload, setting.verify_s, setting.draft_s, seconds)
    round_s, passes_s = statistics.median(two), setting.verify_s + setting.drafts * setting.draft_s
    found = {"verifier_busy": setting.verify_s / statistics.median(steps)}
    if setting.cohorts == 1:
        found |= {"beside_ms": 1e3 * (round_s - passes_s), "overhead": 1.0 - passes_s / round_s}
    if compared:
        bare_s = statistics.median(bare) - passes_s
        found |= {"bare_ms": 1e3 * bare_s, "times_bare": (round_s - passes_s) / bare_s}
    note(f"{setting}: {found}, steps of {[round(1e3 * step, 2) for step in steps]} ms")
    return found


class Acknowledges:
    """A `Listener` that acknowledges every reported round at once, as if it were committed."""

    def __init__(self, port: ControlClient) -> None:
        self.passes, self.tokens, self.why_lost = 0, 0, ""
        self.rounds_s: list[float] = []
        self._port = port
        port.listen(self)

    def heard(self, news: Sequence[Up]) -> None:
        told: list[Down] = []
        for each in news:
            if isinstance(each, PassReport):
                if each.report.number:
                    self.passes += 1
                    self.tokens += sum(len(one.tokens) for one in each.report.rounds)
                    self.rounds_s.append(each.timing.round_s)
                told += [
                    Acknowledged(one.sequence, one.epoch, one.round) for one in each.report.rounds
                ]
            else:
                note(f"heard: {each}")
        self._port.tell(told)

    def lost(self, why: str) -> None:
        self.why_lost = why


async def _two_hops(
    workers: ProcessCell, setting: RoundSetting, seconds: float
) -> tuple[list[float], float, float]:
    """Seconds of each round; mean seconds from one pass to the next; feature rows of a round."""
    async with _rounds(workers, setting) as rounds:
        clock = asyncio.get_running_loop()
        before, tokens, began = rounds.passes, rounds.tokens, clock.time()
        rounds.rounds_s.clear()
        await asyncio.sleep(seconds)
        if rounds.why_lost:
            raise RuntimeError(rounds.why_lost)
        passes = rounds.passes - before
        return rounds.rounds_s, (clock.time() - began) / passes, (rounds.tokens - tokens) / passes


@asynccontextmanager
async def _rounds(workers: ProcessCell, setting: RoundSetting) -> AsyncIterator[Acknowledges]:
    """Context: a verifier in the middle of its rounds."""
    (verifier,), (drafter,) = workers.endpoints("verify"), workers.endpoints("draft")
    async with (
        open_channel(verifier, watch_ms=WORKER_WATCH_MS) as channel,
        open_channel(drafter) as other,
    ):
        facts = await verify_pb2_grpc.VerifyStub(channel).Describe(types_pb2.DescribeRequest())  # type: ignore[no-untyped-call]
        its = await draft_pb2_grpc.DraftStub(other).Describe(types_pb2.DescribeRequest())  # type: ignore[no-untyped-call]
        port = ControlClient(
            channel,
            name="verify/0",
            incarnation=facts.incarnation,
            token=None,
        )
        rounds = Acknowledges(port)
        terms = BlockTerms(PlanKind.FIXED, its.block_size) if setting.drafts else PLAIN
        plan = Plan(terms, setting.cohorts, 2, setting.draft_s)
        admissions = [_admission(number) for number in range(setting.sequences)]
        port.tell([DrafterAt(1, drafter, its.incarnation), plan, *admissions])
        try:
            async with asyncio.timeout(60.0):
                while rounds.passes < SETTLED + setting.sequences and not rounds.why_lost:  # noqa: ASYNC110  rounds ring no wakeup
                    await asyncio.sleep(0.1)
            yield rounds
        finally:
            port.close("measured")
            await port.ended()


def _admission(number: int) -> Admission:
    prompt = [2 + (number * 31 + at) % 1000 for at in range(PROMPT)]
    params = replace(
        SamplingParams(temperature=1.0, seed=number, rule=Rule.BLOCK), prompt_len=PROMPT
    )
    return Admission(
        Admit(number, 0, PROMPT, ANSWER, frozenset(), 1), prompt, params, PROMPT + ANSWER, True
    )
