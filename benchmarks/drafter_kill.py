"""SIGKILL of a drafter in the middle of eight long answers: every stream ends normally with the same ids.

Once with a single drafter, which comes back a little later, and once with two, of which one dies for good. Compared
token by token with an undisturbed run at temperature 0; nothing is prefilled a second time; drafts come back.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import sys
import time
import urllib.request
from dataclasses import dataclass, field

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.head import free_ports
from deploy.processes import LocalCell
from dspark.client import AsyncClient, Chunk, Finished

STREAMS = 8
KILL_AFTER = 0.25  # share of the tokens after which the drafter is killed
BACK_AFTER_S = 1.0
SETTLED_AFTER_S = 1.0  # after a drafter is there again, or the others have taken over
RESUMED = 0.9  # of the share of rounds that began with a draft before


@dataclass
class Trace:
    """One stream: ids, and when messages came."""

    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish: str = ""


POLICY = "fixed:3"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafter_kill", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tokens", type=int, default=1500, help="length of each answer, cut to what the context holds")
    args = parser.parse_args(argv)
    pair = chosen(args)
    per_domain = -(-STREAMS // len(DOMAINS))
    prompts = [pair.token_ids(p) for domain in DOMAINS for p in pair.prompts(domain, per_domain)][:STREAMS]
    tokens = min(args.tokens, pair.context_length - max(map(len, prompts)) - 16)
    note(f"{STREAMS} streams of {tokens} tokens, undisturbed")
    calm = _run(pair, prompts, tokens, drafters=1, kill=False)
    value: dict[str, object] = {"streams": STREAMS, "tokens": tokens}
    holds = True
    for drafters in (1, 2):
        note(f"the same with {drafters} drafter(s), one killed")
        hurt = _run(pair, prompts, tokens, drafters=drafters, kill=True)
        same = sum(a.ids == b.ids for a, b in zip(hurt.traces, calm.traces, strict=True))
        ended = sum(trace.finish == "length" for trace in hurt.traces)
        value[f"drafters_{drafters}"] = {
            "same_ids": same,
            "ended_normally": ended,
            "prefills": hurt.prefills,
            "rounds_with_drafts_before": round(hurt.before, 3),
            "rounds_with_drafts_after": round(hurt.after, 3),
            "longest_pause_s": round(hurt.longest_pause_s, 3),
        }
        resumed = hurt.after >= RESUMED * hurt.before > 0
        holds &= same == ended == STREAMS and hurt.prefills == calm.prefills and resumed
    value["prefills_undisturbed"] = calm.prefills
    bar = "all streams end with the same ids, no prefill more, drafts come back"
    return Row(8, "a killed drafter costs speed only", value, bar, holds).show(as_json=args.json)


@dataclass
class Outcome:
    """What one run showed."""

    traces: list[Trace]
    prefills: int
    before: float
    after: float
    longest_pause_s: float


def _run(pair: Pair, prompts: list[list[int]], tokens: int, *, drafters: int, kill: bool) -> Outcome:
    (metrics_port,) = free_ports(1)
    with LocalCell(pair.target, pair.drafter, drafters=drafters, coordinator={"metrics_port": metrics_port}) as cell:
        meter = Meter(metrics_port)
        traces = asyncio.run(_streams(cell, prompts, tokens, meter, kill=kill, restart=drafters == 1))
        meter.mark()
        prefills = round(meter.counter("prefills"))
    gaps = [later - earlier for trace in traces for earlier, later in itertools.pairwise(trace.times)]
    return Outcome(traces, prefills, meter.share(0), meter.share(-1) if kill else 0.0, max(gaps))


class Meter:
    """Share of rounds that began with a draft, between marks."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._marks = [(0.0, 0.0)]

    def counter(self, name: str) -> float:
        """Sum of a counter of the coordinator over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"dspark_{name}_total[ {{]", line))

    def mark(self) -> None:
        """Ends one stretch and begins the next."""
        self._marks.append((self.counter("spec_decode_num_drafts"), self.counter("rounds")))

    def share(self, stretch: int) -> float:
        """Of one stretch; 0 when it held no round."""
        stretches = list(itertools.pairwise(self._marks))
        (drafts_before, rounds_before), (drafts, rounds) = stretches[stretch]
        return (drafts - drafts_before) / (rounds - rounds_before) if rounds > rounds_before else 0.0


async def _streams(
    cell: LocalCell, prompts: list[list[int]], tokens: int, meter: Meter, *, kill: bool, restart: bool
) -> list[Trace]:
    traces = [Trace() for _ in prompts]

    async def one(client: AsyncClient, prompt: list[int], trace: Trace) -> None:
        # A fixed length: `greedy` may have gone plain by itself, which would hide whether drafts come back.
        asked = client.generate(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, policy=POLICY, timeout=900)
        async for event in asked:
            if isinstance(event, Chunk):
                if event.offset != len(trace.ids):
                    raise AssertionError(f"offset {event.offset} after {len(trace.ids)} tokens")
                trace.ids += event.token_ids
                trace.times.append(time.monotonic())
            elif isinstance(event, Finished):
                trace.finish = event.finish_reason

    async def disturb(running: asyncio.Future[list[None]]) -> None:
        while sum(len(trace.ids) for trace in traces) < KILL_AFTER * tokens * len(traces):
            if running.done():  # a stream failed; awaiting it says why
                return
            await asyncio.sleep(0.01)
        await asyncio.to_thread(meter.mark)
        cell.kill("draft/0")
        killed = time.monotonic()
        note(f"killed draft/0 after {sum(len(trace.ids) for trace in traces)} tokens")
        if restart:
            await asyncio.sleep(BACK_AFTER_S)
            await asyncio.to_thread(cell.restart, "draft/0")
            note(f"draft/0 is back after {time.monotonic() - killed:.1f} s")
        await asyncio.sleep(SETTLED_AFTER_S)
        await asyncio.to_thread(meter.mark)

    async with AsyncClient(cell.endpoint) as client:
        running = asyncio.gather(*(one(client, p, t) for p, t in zip(prompts, traces, strict=True)))
        if kill:
            await disturb(running)
            if running.done():
                note("the streams ended before drafting could resume; use more tokens")
        await running
    return traces


if __name__ == "__main__":
    sys.exit(main())
