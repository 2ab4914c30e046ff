"""SIGKILL of a drafter in the middle of eight long answers: every stream ends normally with the same ids.

Once with a single drafter, which comes back a little later, and once with two, of which one dies for good. Compared
token by token with an undisturbed run at temperature 0; nothing is prefilled a second time; drafts come back.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
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


@dataclass
class Trace:
    """One stream: ids, and when how many came."""

    ids: list[int] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)
    finish: str = ""


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
            "tokens_a_message_before": round(hurt.before, 2),
            "tokens_a_message_after": round(hurt.after, 2),
            "longest_pause_s": round(hurt.longest_pause_s, 3),
        }
        resumed = hurt.after > 1.0 + 0.5 * (hurt.before - 1.0)
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
        traces, killed, back = asyncio.run(_streams(cell, prompts, tokens, kill, restart=drafters == 1))
        prefills = _counter(metrics_port, "dspark_prefills_total")
    # The last quarter lies well behind the return of the drafter.
    late = [max(back, trace.times[len(trace.times) * 3 // 4][0]) for trace in traces]
    return Outcome(
        traces,
        prefills,
        before=_mean([n for trace in traces for at, n in trace.times[1:] if at < killed]),
        after=_mean([n for trace, start in zip(traces, late, strict=True) for at, n in trace.times if at > start]),
        longest_pause_s=max(
            b[0] - a[0] for trace in traces for a, b in zip(trace.times, trace.times[1:], strict=False)
        ),
    )


def _mean(values: list[int]) -> float:
    return statistics.mean(values) if values else 0.0


async def _streams(
    cell: LocalCell, prompts: list[list[int]], tokens: int, kill: bool, *, restart: bool
) -> tuple[list[Trace], float, float]:
    traces = [Trace() for _ in prompts]

    async def one(client: AsyncClient, prompt: list[int], trace: Trace) -> None:
        async for event in client.generate(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, timeout=900):
            if isinstance(event, Chunk):
                if event.offset != len(trace.ids):
                    raise AssertionError(f"offset {event.offset} after {len(trace.ids)} tokens")
                trace.ids += event.token_ids
                trace.times.append((time.monotonic(), len(event.token_ids)))
            elif isinstance(event, Finished):
                trace.finish = event.finish_reason

    async def disturb() -> tuple[float, float]:
        while sum(len(trace.ids) for trace in traces) < KILL_AFTER * tokens * len(traces):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        cell.kill("draft/0")
        killed = time.monotonic()
        note(f"killed draft/0 after {sum(len(trace.ids) for trace in traces)} tokens")
        if restart:
            await asyncio.sleep(BACK_AFTER_S)
            await asyncio.to_thread(cell.restart, "draft/0")
            note(f"draft/0 is back after {time.monotonic() - killed:.1f} s")
        return killed, time.monotonic()

    async with AsyncClient(cell.endpoint) as client:
        began = time.monotonic()
        running = asyncio.gather(*(one(client, p, t) for p, t in zip(prompts, traces, strict=True)))
        killed, back = await disturb() if kill else (began + 1e9, began)
        if kill and running.done():
            note("the streams ended before the drafter was back; use more tokens")
        await running
    return traces, killed, back


def _counter(port: int, name: str) -> int:
    """Sum of a counter over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)))


if __name__ == "__main__":
    sys.exit(main())
