"""Long streams through a cell of processes that are killed, stopped or restarted meanwhile.

Every stream checks its offsets as they come: a token that is repeated or skipped ends the program. Ids are compared
with those of an undisturbed run, at temperature 0 or under the coupled rule.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Unpack

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.synthetic_cell import FLAT
from deploy.processes import Flags, LocalCell
from dspark.client import AsyncClient, Chunk, DsparkError, Finished, Options

SYNTHETIC_ROOM = 1 << 21  # token slots of a synthetic worker


@dataclass
class Stream:
    """One answer as its client saw it."""

    prompt: Sequence[int]
    options: Options
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # monotonic, of every chunk
    finish: str = ""
    error: str = ""
    resumed: int = 0

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]

    async def run(self, client: AsyncClient, *, resume_s: float = 0.0) -> None:
        options: Options = {**self.options, "ignore_eos": True}
        asked = client.generate(self.prompt, timeout=900, resume_s=resume_s, **options)
        try:
            async for event in asked:
                if isinstance(event, Chunk):
                    if event.offset != len(self.ids):
                        raise AssertionError(f"offset {event.offset} after {len(self.ids)} tokens")
                    self.ids += event.token_ids
                    self.times.append(time.monotonic())
                elif isinstance(event, Finished):
                    self.finish = event.finish_reason
        except DsparkError as error:
            self.error = f"{type(error).__name__}: {error}"
        self.resumed = asked.resumed


def arguments(name: str, text: str | None) -> argparse.ArgumentParser:
    """The pair, or `--synthetic`: workers without a model, whose ids hang on seed and position alone."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=text)
    add_arguments(parser)
    parser.add_argument("--synthetic", action="store_true", help="workers without a model, which start in a second")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and of who is hurt when")
    return parser


@dataclass(frozen=True)
class Setup:
    """What is served."""

    pair: Pair
    synthetic: bool

    @staticmethod
    def of(args: argparse.Namespace) -> Setup:
        return Setup(chosen(args), args.synthetic)

    @property
    def name(self) -> str:
        return "synthetic" if self.synthetic else self.pair.target.name

    def prompts(self, count: int) -> list[list[int]]:
        per_domain = -(-count // len(DOMAINS))
        asked = [prompt for domain in DOMAINS for prompt in self.pair.prompts(domain, per_domain)]
        return [self.pair.token_ids(prompt) for prompt in asked[:count]]

    def longest(self, count: int) -> int:
        """Tokens that the longest of so many prompts leaves room for."""
        return self.pair.context_length - max(map(len, self.prompts(count))) - 16

    def cell(
        self,
        *,
        verifiers: int = 1,
        drafters: int = 1,
        coordinator: Flags | None = None,
        verify: Flags | None = None,
        draft: Flags | None = None,
    ) -> LocalCell:
        own: dict[str, object] = {"engine": "synthetic", "synthetic": FLAT} if self.synthetic else {}
        given = {**own, "measure_cost": False}
        return LocalCell(
            self.pair.target,
            self.pair.drafter,
            verifiers=verifiers,
            drafters=drafters,
            coordinator={"metrics_port": "none", **(coordinator or {})},
            verify={**given, **({"kv_tokens": SYNTHETIC_ROOM} if self.synthetic else {}), **(verify or {})},
            draft={**given, **({"context_tokens": SYNTHETIC_ROOM} if self.synthetic else {}), **(draft or {})},
        )

    def streams(self, count: int, tokens: int, **options: Unpack[Options]) -> list[Stream]:
        """Every second one at temperature 0, the others coupled."""
        laws: list[Options] = [{"temperature": 0.0}, {"temperature": 0.8, "rule": "coupled"}]
        prompts = self.prompts(count)
        return [
            Stream(prompt, {"max_tokens": tokens, "seed": 1000 + at, "policy": "fixed:3", **laws[at % 2], **options})
            for at, prompt in enumerate(prompts)
        ]


def fresh(streams: Sequence[Stream]) -> list[Stream]:
    """The same requests once more."""
    return [Stream(stream.prompt, stream.options) for stream in streams]


async def undisturbed(cell: LocalCell, streams: Sequence[Stream]) -> list[Stream]:
    """The same requests, and nobody is hurt."""
    calm = fresh(streams)
    async with AsyncClient(cell.endpoint) as client:
        await asyncio.gather(*(stream.run(client) for stream in calm))
    wrong = [stream.error or stream.finish for stream in calm if stream.finish != "length"]
    if wrong:
        raise SystemExit(f"the undisturbed run failed: {wrong[0]}")
    return calm


@asynccontextmanager
async def running(cell: LocalCell, streams: Sequence[Stream], *, resume_s: float = 0.0) -> AsyncIterator[None]:
    """Streams that run beside the body and have ended behind it."""
    async with AsyncClient(cell.endpoint) as client:
        tasks = asyncio.gather(*(stream.run(client, resume_s=resume_s) for stream in streams))
        try:
            yield
            await tasks
        finally:
            tasks.cancel()


def same(streams: Sequence[Stream], calm: Sequence[Stream]) -> int:
    """How many streams ended normally with the ids of the undisturbed run."""
    return sum(
        (one.ids, one.finish, one.error) == (other.ids, other.finish, "")
        for one, other in zip(streams, calm, strict=True)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 without any."""
    ordered = sorted(values)
    return ordered[max(-(-int(share * 1000) * len(ordered) // 1000) - 1, 0)] if ordered else 0.0


async def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Looks now and then at what other processes do; ends the program when it does not come true."""
    deadline = time.monotonic() + within_s
    while True:
        if await asyncio.to_thread(true):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"not so within {within_s:g} s")
        await asyncio.sleep(0.01)


def serving(cell: LocalCell) -> set[str]:
    """Names of processes that the coordinator says serve."""
    with cell.client() as client:
        return {process.name for process in client.status().processes if process.state == "serving"}
