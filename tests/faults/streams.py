"""Long streams through a cell of processes that are killed, stopped or restarted meanwhile.

Every stream checks its offsets as they come: a token that is repeated or skipped ends the program.
What was said is judged afterwards by the target alone, stream by stream (`oracle`): under greedy
and `coupled` every id, under the ratio rules whether each token is one that its law can give.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from deploy.processes import ProcessCell
from dspark.client import AsyncClient, Chunk, DsparkError, Finished
from faults import oracle, pair

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

    prompt: Sequence[int]
    options: dict[str, Any]
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # monotonic, of every chunk
    finish: str = ""
    error: str = ""
    resumed: int = 0
    end: Finished | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]

    @property
    def over(self) -> bool:
        return bool(self.finish or self.error)

    async def run(self, client: AsyncClient, *, resume_s: float = 0.0) -> None:
        asked = client.generate(
            self.prompt, timeout=900, resume_s=resume_s, ignore_eos=True, **self.options
        )
        try:
            async for event in asked:
                if isinstance(event, Chunk):
                    if event.offset != len(self.ids):
                        raise AssertionError(f"offset {event.offset} after {len(self.ids)} tokens")
                    self.ids += event.token_ids
                    self.times.append(time.monotonic())
                elif isinstance(event, Finished):
                    self.finish, self.end = event.finish_reason, event
        except DsparkError as error:
            self.error = f"{type(error).__name__}: {error}"
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


def judged(streams: Sequence[Stream]) -> dict[str, Any]:
    """What a row says of its streams. right: ended in good order, with nothing said that should not
    be."""
    found = [
        oracle.examine(one.prompt, one.ids, oracle.params_of(one.options, len(one.prompt)))
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
        "errors": sorted({one.error for one in streams if one.error})[:3],
        "tokens_a_round": round(
            1 + sum(e.accepted_tokens for e in ended) / max(sum(e.rounds for e in ended), 1), 2
        ),
        "engine": "pair",
    }


@asynccontextmanager
async def asking(
    cell: ProcessCell, streams: Sequence[Stream], *, resume_s: float = 0.0
) -> AsyncIterator[list[Stream]]:
    """These requests again and again beside the body; all have ended behind it. Gives all that were
    asked."""
    asked: list[Stream] = []
    over = asyncio.Event()

    async def again(client: AsyncClient) -> None:
        while not over.is_set():
            mine = [Stream(one.prompt, one.options) for one in streams]
            asked.extend(mine)
            await asyncio.gather(*(one.run(client, resume_s=resume_s) for one in mine))

    async with AsyncClient(cell.endpoint) as client:
        work = asyncio.create_task(again(client))
        try:
            yield asked
            over.set()
            await work
        finally:
            work.cancel()


async def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Looks now and then at what other processes do; ends the program when it does not come
    true."""
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(true):
        if time.monotonic() > deadline:
            raise SystemExit(f"not so within {within_s:g} s")
        await asyncio.sleep(0.02)


def whole(cell: ProcessCell) -> bool:
    """Whether the coordinator says that every process serves."""
    with cell.client() as client:
        states = [process.state for process in client.status().processes]
    return states.count("serving") == len(cell.children)
