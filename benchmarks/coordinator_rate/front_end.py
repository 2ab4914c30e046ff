"""Tokens per second of processor time of a front end in a process of its own, and its number of
clients (B6).

Two synthetic workers, a coordinator and one front end, a process each; clients in this process,
over real gRPC, with text both ways. The kernel counts the front end's processor time. Measured in
drafted rounds and without drafts (`off`: a chunk for every token).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tokenizers import Tokenizer

from benchmarks import real_cell
from benchmarks.pair import ROOT
from benchmarks.row import Row, note
from deploy.processes import ProcessCell
from dspark.loadgen import prometheus
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

RATE_BAR, STREAMS_BAR = 12_000.0, 2_000
TARGET = ROOT / "tests" / "data" / "pair" / "target"  # its tokenizer alone
TOKENS_EACH = 2048  # token slots of one sequence in the synthetic pools
STREAMS, HELD = 128, 2048  # clients while the rate is measured; at once in the second part
CHANNELS = 16
WAVE = 50  # clients that come at once
WARM_UP_S = 120.0
SLOW_MS = 500.0  # of a step while streams are held: no answer is over before the last one has begun
PROMPT = "The module provides"


def rows(*, quick: bool) -> Iterator[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))
    windows, seconds = (3, 2.0) if quick else (7, 4.0)
    # The vocabulary of the tokenizer: every id is text.
    vocabulary = Tokenizer.from_file(str(TARGET / "tokenizer.json")).get_vocab_size()
    with tempfile.TemporaryDirectory() as folder:
        with _cell(real_cell.flat(Path(folder), vocabulary=vocabulary), 2 * STREAMS) as cell:
            rate = asyncio.run(_rates(cell, windows, seconds))
        bar = f"at least {RATE_BAR:.0f} committed tokens per CPU second of the front end process"
        yield Row("B6", "front end rate", rate, bar, rate["adaptive"] >= RATE_BAR)
        with _cell(real_cell.flat(Path(folder), SLOW_MS, vocabulary=vocabulary), HELD) as cell:
            told = asyncio.run(_hold(cell, 64 if quick else 128))
    bar = f"at least {STREAMS_BAR} client streams at once, every one with all its tokens"
    yield Row("B6", "front end streams", told, bar, told["complete"] == told["peak"] >= STREAMS_BAR)


@contextlib.contextmanager
def _cell(pair: Path, room: int) -> Iterator[ProcessCell]:
    """Workers, a coordinator and a front end."""
    served = {
        "max_running": room,
        "max_queued": room,
        "max_prefills": 256,
        "request_deadline_s": 1200,
    }
    own: dict[str, Any] = {"led": True, "target": TARGET, "coordinator": served}
    with real_cell.workers(pair, room=2 * room, tokens_each=TOKENS_EACH, **own) as cell:
        cell.add_front_end(request_deadline_s=1200, max_streams=2 * room)
        yield cell


@dataclass
class ReceivedTokens:
    """What clients received."""

    tokens: int = 0
    chunks: int = 0
    complete: int = 0  # answers with all their tokens, in order, and an end that says so
    started: int = 0


class Clients:
    """Streams over a few connections; each sends one request, or the next one whenever one ends."""

    def __init__(self, endpoint: str) -> None:
        self.heard = ReceivedTokens()
        # No keepalive: all share two cores, and a starved client is not what is measured.
        self._channels = [
            grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CHANNELS)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, count: int, policy: str, tokens: int, *, forever: bool) -> None:
        """Starts `count` streams in waves, over established connections."""
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        for number in range(count):
            if number % WAVE == WAVE - 1:
                await asyncio.sleep(0.02)
            stub = generate_pb2_grpc.GenerationStub(self._channels[number % CHANNELS])  # type: ignore[no-untyped-call]
            self._tasks.append(
                asyncio.create_task(self._talk(stub, number, policy, tokens, forever))
            )

    async def started(self, count: int) -> None:
        """Waits until `count` answers have begun; raises the error of a stream that failed."""
        while self.heard.started < count:
            done, _ = await asyncio.wait(
                self._tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()

    async def ended(self) -> None:
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _talk(self, stub: Any, number: int, policy: str, tokens: int, forever: bool) -> None:
        request = generate_pb2.GenerateRequest(
            text=PROMPT,
            sampling_params=generate_pb2.SamplingParams(
                max_tokens=tokens, ignore_eos=True, seed=number
            ),
            speculation=generate_pb2.SpeculationParams(policy=policy, rule="RULE_TOKEN"),
        )
        heard = self.heard
        while True:
            said, counted = 0, 0
            async for response in stub.Generate(request, timeout=1200):
                if response.HasField("chunk"):
                    chunk = response.chunk
                    if chunk.offset != said:
                        raise RuntimeError(f"a chunk at {chunk.offset} after {said} tokens")
                    heard.started += said == 0
                    said += len(chunk.token_ids)
                    heard.tokens += len(chunk.token_ids)
                    heard.chunks += 1
                else:
                    counted = response.complete.usage.completion_tokens
            heard.complete += said == counted == tokens
            if not forever:
                return


async def _rates(cell: ProcessCell, windows: int, seconds: float) -> dict[str, Any]:
    """Committed tokens that reached clients per CPU second of the front end, by policy; medians."""
    value: dict[str, Any] = {"streams": STREAMS}
    front = cell.children["frontend/0"]
    for policy in ("adaptive", "off"):
        rates = []
        async with _clients(front.endpoint, policy) as heard:
            tokens, chunks, began = heard.tokens, heard.chunks, time.monotonic()
            for _ in range(windows):
                said, spent = heard.tokens, cpu_seconds(front.pid)
                await asyncio.sleep(seconds)
                rates.append((heard.tokens - said) / (cpu_seconds(front.pid) - spent))
            tokens, chunks = heard.tokens - tokens, heard.chunks - chunks
            took = time.monotonic() - began
        note(f"{policy}: {[round(rate) for rate in rates]} tokens per CPU second")
        value[policy] = round(statistics.median(rates))
        value[f"{policy}_tokens_per_chunk"] = round(tokens / max(chunks, 1), 2)
        value[f"{policy}_tokens_per_second"] = round(tokens / took)
    return value


@contextlib.asynccontextmanager
async def _clients(endpoint: str, policy: str) -> AsyncIterator[ReceivedTokens]:
    """Context: clients whose answers have all begun."""
    clients = Clients(endpoint)
    try:
        await clients.ask(STREAMS, policy, 1 << 11, forever=True)
        async with asyncio.timeout(WARM_UP_S):
            await clients.started(STREAMS)
        await asyncio.sleep(1.0)
        yield clients.heard
    finally:
        await clients.close()


async def _hold(cell: ProcessCell, tokens: int) -> dict[str, Any]:
    """Runs all clients at once. Returns the most open streams, the complete answers and the
    tokens."""
    front = cell.children["frontend/0"]
    with cell.client() as client:
        port = next(
            each.metrics_port for each in client.status().processes if each.name == front.name
        )
    clients = Clients(front.endpoint)
    await clients.ask(HELD, "adaptive", tokens, forever=False)
    ended = asyncio.create_task(clients.ended())
    peak = 0.0
    while not ended.done():
        await asyncio.wait([ended], timeout=0.5)
        page = await prometheus.scrape(f"http://127.0.0.1:{port}/metrics")
        peak = max(peak, prometheus.total(page, "dspark_client_streams"))
    await ended
    await clients.close()
    return {"peak": int(peak), "complete": clients.heard.complete, "tokens": clients.heard.tokens}


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, its own and the kernel's on its behalf."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
