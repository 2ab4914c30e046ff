"""Three hand-started services on one device, and the rate of streams that all run: see `gpu`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.pair import Pair
from benchmarks.real_cell import windowed
from benchmarks.row import note
from deploy.processes import ProcessCell
from dspark.client.request import Options
from dspark.loadgen import prometheus, prompts
from dspark.loadgen import run as loop

CONTEXT, ANSWER = 1024, 3072  # tokens of a prompt; of an answer, longer than any window
PROMPTS = 256  # more than are asked for at any load
SETTLE_S, WINDOW_S = 7.0, 6.0  # all prompts are in after the first
CLOCKS = {  # both passes, and from an order to its block
    "verify_ms": ("verify/0", "forward_seconds", 'kind="verify"'),
    "draft_ms": ("draft/0", "forward_seconds", 'kind="draft"'),
    "block_ms": ("coordinator/0", "draft_rpc_seconds", ""),
}
TINY_CONTEXT, TINY_ANSWER, TINY_SETTLE_S, TINY_WINDOW_S = 64, 1024, 4.0, 3.0


def measure(pair: Pair, args: argparse.Namespace, value: dict[str, Any], mean: float) -> None:
    """Adds to `value` the tokens a second at each number of streams, and the parts of a round by
    the services' own clocks. mean: tokens of a round."""
    tiny = args.tiny
    counts = (2, 4) if tiny else (48, 64)
    context, answer = (TINY_CONTEXT, TINY_ANSWER) if tiny else (CONTEXT, ANSWER)
    settle_s, window_s = (TINY_SETTLE_S, TINY_WINDOW_S) if tiny else (SETTLE_S, WINDOW_S)
    room = max(counts) * (context + answer + 64)
    page = 16 if tiny else args.page_size
    verify = {
        "kv_tokens": -(-room // page) * page,
        "page_size": page,
        "cuda_graphs": not args.no_graphs,
        "prefix_cache": False,
        "dtype": "bfloat16",
    }
    with (
        ProcessCell(
            pair.target,
            pair.drafter,
            coordinator={"max_running": max(counts)},
            verify=verify,
            draft={"context_tokens": room, "q_entries": 1},
            programs={"verify": ("benchmarks.forced", str(mean))},
        ) as cell,
        cell.client() as client,
    ):
        ports = {process.name: process.metrics_port for process in client.status().processes}
        for count in counts:
            options = Options(policy="fixed:7", temperature=0.0, ignore_eos=True, max_tokens=answer)
            plan = loop.LoadPlan(concurrency=count, duration_s=settle_s + window_s)
            before = _clocks(ports)
            asked = prompts.cycle(prompts.random_ids(PROMPTS, context, pair.vocabulary, 0), 0)
            tok_s = asyncio.run(windowed(cell.endpoint, options, asked, plan, settle_s, window_s))
            spent = zip(CLOCKS, (_clocks(ports) - before).tolist(), strict=True)
            means = {
                name: round(1e3 * seconds / max(times, 1), 2) for name, (seconds, times) in spent
            }
            value[f"{count} streams"] = found = {"tok_s": round(tok_s, 1)} | means
            note(f"{count} streams, served: {found}")


def _clocks(ports: Mapping[str, int]) -> npt.NDArray[np.float64]:
    """[clocks, 2]: seconds so far and their count, by the processes' own clocks."""
    pages = {
        name: prometheus.fetch(f"http://127.0.0.1:{port}/metrics") for name, port in ports.items()
    }
    return np.array(
        [
            [
                prometheus.total(pages[process], f"dspark_{metric}_{what}", label)
                for what in ("sum", "count")
            ]
            for process, metric, label in CLOCKS.values()
        ]
    )
