"""Row 18: clients that stop reading: the others do not notice, and each of them is cut once it has
taken nothing for T.

The same honest clients beside so many that read and beside so many that stop after their first
token, by turns. Stalled streams take little ahead (a small window), so that what they do not read
is felt; with gRPC's own windows two to six megabytes of an answer leave before anybody could
notice, and cost the kernel's memory instead of the coordinator's.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.row import note
from dspark.wire.v1 import generate_pb2_grpc
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.synthetic_cell import counter, loaded, message, small_channel, synthetic_cell

HONEST, TOKENS, LONG = 8, 300, 20_000
TURNS = 2  # what else the machine does falls on both
UNREAD_S = 4.0
FULL_S = 10.0  # in which a small window is full at any speed
CUT = "dspark_slow_readers_cut_total"
WINDOW_CHUNKS = 90  # that a small window takes, with what gRPC takes ahead


def rows(args: Args) -> Rows:
    stalled = 500 if args.long else 60
    given = {"max_running": 640, "max_unread_s": UNREAD_S, "max_prefills": 64, "policy": "off"}
    with synthetic_cell(sequences=640, coordinator=given) as cell:
        value = asyncio.run(_measure(cell, stalled))
    itl, last_s = value["itl_p99_ms"], value["begun_within_s"] + value["window_full_after_s"]
    in_time = value["first_cut_s"] >= UNREAD_S and value["last_cut_s"] <= last_s + UNREAD_S + 1.0
    bars = {
        "ITL p99 of others <= 1.2 x beside as many that read": itl["beside_stalled"]
        <= 1.2 * itl["beside_readers"],
        "<= 256 KB each": value["rss_kb_each"] <= 256,
        f"all cut after {UNREAD_S:g} s +- 1 s": value["cut"] == stalled and in_time,
        "nothing left over": not value["left_over"],
    }
    yield statement("18", "stalled readers", value, bars)


@dataclass(slots=True)
class Stalled:
    """What happened to clients that stopped. Seconds count from the first of them."""

    gaps: list[float]  # of the others meanwhile
    grown_kb: float
    begun_s: float  # until all had their first token
    cuts: list[float]


async def _measure(cell: FaultCell, count: int) -> dict[str, Any]:
    async with contextlib.AsyncExitStack() as ends:
        channels = [
            await ends.enter_async_context(small_channel(cell.endpoint, number))
            for number in range(max(count // 50, 1))
        ]
        await _honest(cell)
        reading, turns = [], []
        for _ in range(TURNS):
            reading += await _beside_readers(cell, channels, count)
            turns.append(await _beside_stalled(cell, channels, count))
        with cell.client() as client:
            await asyncio.sleep(1.0)
            left = sum(
                each.sequences for each in client.status().processes if each.name != "coordinator/0"
            )
    beside = [gap for turn in turns for gap in turn.gaps]
    itl = {"beside_readers": reading, "beside_stalled": beside}
    return {
        "stalled": count,
        "turns": TURNS,
        "itl_p99_ms": {name: round(1e3 * quantile(gaps, 0.99), 1) for name, gaps in itl.items()},
        "rss_kb_each": round(max(turn.grown_kb for turn in turns) / count, 1),
        "cut": min(len(turn.cuts) for turn in turns),
        "first_cut_s": round(min(min(turn.cuts, default=0.0) for turn in turns), 2),
        "last_cut_s": round(max(max(turn.cuts, default=0.0) for turn in turns), 2),
        "begun_within_s": round(max(turn.begun_s for turn in turns), 2),
        "window_full_after_s": round(WINDOW_CHUNKS * quantile(beside, 0.5), 2),
        "unread_s": UNREAD_S,
        "left_over": left,
    }


def _calls(channels: Sequence[grpc.aio.Channel], count: int, tokens: int) -> Iterator[Any]:
    for number in range(count):
        stub = generate_pb2_grpc.GenerationStub(channels[number % len(channels)])
        yield stub.Generate(message(tokens, seed=number))


async def _read(call: Any) -> None:
    async for _ in call:
        pass


async def _beside_readers(
    cell: FaultCell, channels: Sequence[grpc.aio.Channel], count: int
) -> list[float]:
    others = [asyncio.create_task(_read(call)) for call in _calls(channels, count, 2000)]
    await asyncio.sleep(1.0)
    gaps = await _honest(cell)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0.5)
    return gaps


async def _beside_stalled(
    cell: FaultCell, channels: Sequence[grpc.aio.Channel], count: int
) -> Stalled:
    resident = cell.resources("coordinator/0")["rss"]
    before = await asyncio.to_thread(counter, cell, CUT)
    calls, began = [], time.monotonic()
    for call in _calls(channels, count, LONG):
        await call.read()
        calls.append(call)
    begun = time.monotonic() - began
    watching = asyncio.create_task(
        _watch(cell, before, count, began, begun + UNREAD_S + FULL_S + 30.0)
    )
    gaps = await _honest(cell)
    grown = cell.resources("coordinator/0")["rss"] - resident
    cuts = await watching
    codes = [call.code() for call in calls if call.done()]
    note(f"stalled clients that read on hear {set(codes)}")
    for call in calls:
        call.cancel()
    return Stalled(gaps, grown / 1024, begun, cuts)


async def _honest(cell: FaultCell) -> list[float]:
    """Seconds between chunks of clients that read."""
    told = (await loaded(cell, TOKENS, concurrency=HONEST, requests=HONEST)).answers
    assert not any(each.error for each in told), [each.error for each in told]
    return [gap for each in told for gap in each.gaps()]


async def _watch(
    cell: FaultCell, before: int, count: int, began: float, longest_s: float
) -> list[float]:
    """When each client was cut, in seconds since `began`; `before`: cut in earlier turns."""
    cuts: list[float] = []
    while len(cuts) < count and time.monotonic() - began < longest_s:
        known = await asyncio.to_thread(counter, cell, CUT) - before
        cuts += [time.monotonic() - began] * (known - len(cuts))
        await asyncio.sleep(0.2)
    return cuts
