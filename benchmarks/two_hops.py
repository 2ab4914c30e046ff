"""What a round takes beside its two passes when it runs between verifier and drafter (`Verify.Control`).

Beside it, in the same run: two processes that exchange the same messages and do nothing else (`bare_hops`). Whole
blocks, temperature 1, a window of two rounds; the two take turns. Who stands for the coordinator commits and
acknowledges. They are compared by the median round, which a crowded machine spoils least.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks import bare_hops
from benchmarks.bare_lane import ANSWER, PROMPT
from benchmarks.row import Row, note
from benchmarks.synthetic_cell import FLAT, SyntheticWorkers
from coordinator.workers.control_client import ControlClient
from dspark.rounds.control import Admission, Down, DrafterAt, PassReport, Up
from dspark.rounds.events import Acknowledged, Admit
from dspark.rounds.plan import Plan, PlanKind, Terms
from dspark.runtime.channel import WORKER_WATCH_MS, open_channel
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, SamplingParams
from dspark.wire.v1 import draft_pb2_grpc, types_pb2, verify_pb2_grpc

SIZES = ((1, 64), (64, 64), (1, 4096), (64, 4096))  # sequences, values of a feature row
MOST = 1.6  # of what bare streams take beside the passes
SETTLED = 24  # passes before anything is measured


class Acknowledges:
    """Keeps `Listener`: everything that is reported is committed at once."""

    def __init__(self, port: ControlClient) -> None:
        self.passes, self.why_lost = 0, ""
        self.rounds_s: list[float] = []
        self._port = port
        port.listen(self)

    def heard(self, news: Sequence[Up]) -> None:
        told: list[Down] = []
        for each in news:
            if isinstance(each, PassReport):
                if each.report.number:
                    self.passes += 1
                    self.rounds_s.append(each.timing.round_s)
                told += [Acknowledged(one.sequence, one.epoch, one.round) for one in each.report.rounds]
            else:
                note(f"heard: {each}")
        self._port.tell(told)

    def lost(self, why: str) -> None:
        self.why_lost = why


def rows(verify_s: float, draft_s: float, repeats: int, seconds: float) -> Iterator[Row]:
    """One of each size."""
    for sequences, width in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            pair = _pair(Path(folder), width, verify_s, draft_s)
            with SyntheticWorkers(pair, room=2 * sequences) as workers:
                bare, two, means = list[float](), list[float](), list[float]()
                for _ in range(repeats):
                    bare += bare_hops.measure(sequences, width, verify_s, draft_s, seconds)
                    rounds_s, mean = asyncio.run(_two_hops(workers, sequences, draft_s, seconds))
                    two += rounds_s
                    means.append(mean)
        note(f"{sequences} x {width}: {[round(1e3 * each, 2) for each in means]} ms")
        passes = verify_s + draft_s
        yield _row(
            sequences,
            width,
            verify_s,
            draft_s,
            {name: statistics.median(its) - passes for name, its in (("bare", bare), ("two", two))},
            statistics.median(means) - passes,
        )


def _row(sequences: int, width: int, verify_s: float, draft_s: float, medians: dict[str, float], mean: float) -> Row:
    """Of seconds that rounds take beside their passes."""
    times_bare = medians["two"] / medians["bare"]
    value: dict[str, Any] = {
        "two_hops_ms": round(1e3 * medians["two"], 2),
        "bare_ms": round(1e3 * medians["bare"], 2),
        "times_bare": round(times_bare, 2),
        "overhead": round(medians["two"] / (medians["two"] + verify_s + draft_s), 4),
        "two_hops_mean_ms": round(1e3 * mean, 2),
    }
    return Row(
        f"hops {sequences}x{width}",
        f"a round beside its passes, {sequences} sequences, rows of {width} values, T_v {1e3 * verify_s:g} ms, "
        f"T_d {1e3 * draft_s:g} ms",
        value,
        f"at most {MOST:g} times bare streams",
        times_bare <= MOST,
    )


def _pair(folder: Path, width: int, verify_s: float, draft_s: float) -> Path:
    """The flat pair with rows and passes of this size."""
    spec = yaml.safe_load(FLAT.read_text(encoding="utf-8"))
    spec["feature_width"] = width
    spec["verify"]["ms"], spec["draft"]["ms"] = [1e3 * verify_s], [1e3 * draft_s]
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return path


async def _two_hops(
    workers: SyntheticWorkers, sequences: int, draft_s: float, seconds: float
) -> tuple[list[float], float]:
    """Seconds of each round, and of all of them on the average."""
    async with _rounds(workers, sequences, draft_s) as rounds:
        clock = asyncio.get_running_loop()
        before, began = rounds.passes, clock.time()
        rounds.rounds_s.clear()
        await asyncio.sleep(seconds)
        if rounds.why_lost:
            raise RuntimeError(rounds.why_lost)
        return rounds.rounds_s, (clock.time() - began) / (rounds.passes - before)


@asynccontextmanager
async def _rounds(workers: SyntheticWorkers, sequences: int, draft_s: float) -> AsyncIterator[Acknowledges]:
    """A verifier in the middle of its rounds."""
    (verifier,), (drafter,) = workers.endpoints("verify"), workers.endpoints("draft")
    async with open_channel(verifier, watch_ms=WORKER_WATCH_MS) as channel, open_channel(drafter) as other:
        facts = await verify_pb2_grpc.VerifyStub(channel).Describe(types_pb2.DescribeRequest())  # type: ignore[no-untyped-call]
        its = await draft_pb2_grpc.DraftStub(other).Describe(types_pb2.DescribeRequest())  # type: ignore[no-untyped-call]
        port = ControlClient(
            channel,
            name="verify/0",
            incarnation=facts.incarnation,
            vocab_size=facts.vocab_size,
            token=None,
            metrics=Metrics(),
        )
        rounds = Acknowledges(port)
        plan = Plan(1, Terms(PlanKind.FIXED, its.block_size), 1, 2, draft_s)
        port.tell([DrafterAt(1, drafter, its.incarnation), plan, *map(_admission, range(1, sequences + 1))])
        try:
            async with asyncio.timeout(60.0):
                while rounds.passes < SETTLED + sequences and not rounds.why_lost:  # noqa: ASYNC110  rounds ring no bell
                    await asyncio.sleep(0.1)
            yield rounds
        finally:
            port.close("measured")
            await port.ended()


def _admission(number: int) -> Admission:
    prompt = [2 + (number * 31 + at) % 1000 for at in range(PROMPT)]
    law = replace(SamplingParams(temperature=1.0, seed=number, rule=Rule.BLOCK), prompt_len=PROMPT)
    return Admission(Admit(number, 0, PROMPT, ANSWER, frozenset(), 1), prompt, law, PROMPT + ANSWER, True)
