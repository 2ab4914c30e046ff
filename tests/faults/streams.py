"""Long streams through a cell of processes that are killed, stopped or restarted meanwhile.

Every stream checks its offsets as they come: a token that is repeated or skipped ends the program.
What was said is judged afterwards by the target alone, stream by stream (`oracle`): under greedy
and `coupled` every id, under the ratio rules whether each token is one that its law can give.
"""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.row import note
from deploy.processes import ProcessCell
from dspark.client import AsyncClient, Chunk, DsparkError, Finished
from tests.faults import oracle, pair
from tests.waiting import until, wait_until

PATIENT = {"max_handovers": 1000, "flap_limit": 0, "verifier_wait_s": 60}
# Ratio rules without a seed: what was drawn cannot be drawn again.
ALL_PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "rule": "coupled", "seed": 77},
    {"temperature": 0.8, "top_k": 8, "rule": "block"},
    {"temperature": 0.8, "top_k": 8, "rule": "token"},
)


@dataclass
class Stream:
    """One answer as its client saw it."""

    prompt: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # monotonic, of every chunk
    end: Finished | None = None
    error: DsparkError | None = None
    resumed: int = 0

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps, default=0.0)

    @property
    def finish(self) -> str:
        return self.end.finish_reason if self.end is not None else ""

    @property
    def over(self) -> bool:
        return self.end is not None or self.error is not None

    async def run(self, client: AsyncClient) -> None:
        asked = client.generate(
            self.prompt, **{"timeout": 900.0, "ignore_eos": True, **self.options}
        )
        try:
            async for event in asked:
                if isinstance(event, Chunk):
                    if event.offset != len(self.ids):
                        raise AssertionError(f"offset {event.offset} after {len(self.ids)} tokens")
                    self.ids += event.token_ids
                    self.times.append(time.monotonic())
                elif isinstance(event, Finished):
                    self.end = event
        except DsparkError as error:
            self.error = error
        self.resumed = asked.resumed

    def lives(self, at: float) -> bool:
        """Whether it was being answered then."""
        return bool(self.times) and self.times[0] <= at <= self.times[-1]

    def silence(self, at: float) -> float:
        """Seconds of the gap that this moment fell into."""
        before = max(when for when in self.times if when <= at)
        return min((when for when in self.times if when > at), default=before) - before


def wave(count: int, tokens: int, **options: Any) -> list[Stream]:
    """By turns under each law."""
    return [
        Stream(
            pair.prompt(at),
            {
                "max_tokens": tokens,
                "policy": "fixed:3",
                **ALL_PARAMS[at % len(ALL_PARAMS)],
                **options,
            },
        )
        for at in range(count)
    ]


def judged(streams: Sequence[Stream], target: Path = pair.TARGET) -> dict[str, Any]:
    """What a row says of its streams. right: ended in good order, with nothing wrong said."""
    found = [
        oracle.examine(one.prompt, one.ids, oracle.params_of(one.options, len(one.prompt)), target)
        for one in streams
    ]
    fine = [
        one.finish == "length" and not each.wrong for one, each in zip(streams, found, strict=True)
    ]
    ended = [one.end.speculation for one in streams if one.end is not None]
    return {
        "streams": len(streams),
        "right": sum(fine),
        "wrong": sorted({each.wrong for each in found if each.wrong})[:3],
        "near_ties": sum(each.near_ties for each in found),
        "errors": sorted({repr(one.error) for one in streams if one.error})[:3],
        "tokens_a_round": round(
            1 + sum(e.accepted_tokens for e in ended) / max(sum(e.rounds for e in ended), 1), 2
        ),
        "engine": "pair",
    }


def _went_on(begun: Sequence[Stream], at: float) -> bool:
    return all(one.over or one.times[-1] > at for one in begun)


@asynccontextmanager
async def asking(cell: Any, streams: Sequence[Stream]) -> AsyncIterator[list[Stream]]:
    """These requests again and again beside the body, once at least, by whoever has this endpoint;
    all have ended behind it. Gives all that were asked."""
    asked: list[Stream] = []
    over = asyncio.Event()

    async def again(client: AsyncClient) -> None:
        while not asked or not over.is_set():
            mine = [Stream(one.prompt, one.options) for one in streams]
            asked.extend(mine)
            await asyncio.gather(*(one.run(client) for one in mine))

    async with AsyncClient(cell.endpoint) as client:
        work = asyncio.create_task(again(client))
        try:
            yield asked
            over.set()
            await work
        finally:
            work.cancel()


async def hurt(
    cell: ProcessCell,
    streams: Sequence[Stream],
    act: Callable[[str], object],
    victims: Sequence[str],
    times: int,
    pause_s: tuple[float, float] = (0.1, 1.5),
    *,
    patient: bool = True,
) -> tuple[list[Stream], dict[str, list[float]]]:
    """So many times this is done to one of these processes, by turns, beside such streams: each at
    a moment drawn from a seed, once the cell is whole and all streams have gone on; if not patient,
    also while it recovers. What was asked, and by role in seconds the silence of each that lived
    through it."""
    draw, done = random.Random(1), list[tuple[str, float]]()
    async with asking(cell, streams) as asked:
        for victim, _ in zip(itertools.cycle(victims), range(times), strict=False):
            await asyncio.sleep(draw.uniform(*pause_s))
            done.append((victim.partition("/")[0], at := time.monotonic()))
            await asyncio.to_thread(act, victim)
            if patient:
                await whole(cell)
                begun = [one for one in asked if one.times]
                await until(partial(_went_on, begun, at))
            note(f"{len(done)} of {times}: {victim}, {len(asked)} streams")
    silences: dict[str, list[float]] = defaultdict(list)
    for role, at in done:
        silences[role] += [one.silence(at) for one in asked if one.lives(at)]
    return asked, silences


async def whole(cell: ProcessCell) -> None:
    """Until the coordinator says that every process serves."""

    def serves() -> bool:
        with cell.client() as client:
            states = [process.state for process in client.status().processes]
        return states.count("serving") == len(cell.children)

    await asyncio.to_thread(wait_until, serves)
