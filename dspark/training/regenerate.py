"""Generates the target's own answers to prompts through a running cell, as text to train on.

The output has one row for every prompt row, in their order, each written once: rows are requested a
window at a time, finished ones wait for those before them, and the file on disk is always a
complete beginning of the output. A run that was killed resumes where the file ends. Every answer
has a seed of its own (of the run's seed, row and turn), so an interruption changes no answer.
Failures that may be temporary are retried; a row that can never be answered is written as failed.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dspark.client import (
    AsyncClient,
    Completion,
    DeadlineExceeded,
    InvalidRequest,
    ModelInfo,
    Overloaded,
    Unavailable,
)
from dspark.errors import ConfigError
from dspark.progress import progress
from dspark.training.chat import Chat
from dspark.training.disk import (
    check_same_run,
    content_digest,
    read_rows,
    row_file,
    write_json,
)
from dspark.training.settings import RegenerationSettings, settled
from dspark.training.split import conversation_of

# rows in progress or waiting for an earlier one, for each answer that runs at the same time
WINDOW = 4
PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # before a retry


Told = TypeVar("Told")


async def regenerate(
    client: AsyncClient,
    prompts: Path,
    out: Path,
    chat: Chat,
    asking: RegenerationSettings,
) -> dict[str, Any]:
    """Answers every row of `prompts` and writes the rows to `out`; returns counts.

    ConfigError if `out` was begun with other prompts or settings. If the cell does not answer for
    longer than `patience_s`, the last failure (Unavailable, say) is raised: run it again later.
    """
    rows = list(read_rows(prompts))
    info = await _patiently(client.model_info, asking.patience_s)
    asker = _Asker(client, info, chat, asking)
    check = partial(_check_same_run, out, prompts, asking, info)
    with row_file(out, check) as append, progress("regenerate", len(rows)) as tell:
        start, counts = time.monotonic(), _done(out, rows)
        done = counts["rows"]
        tell(completed=done)
        left, running = enumerate(rows[done:], start=done), deque[asyncio.Task[dict[str, Any]]]()
        try:
            while True:
                for number, row in itertools.islice(
                    left, WINDOW * asking.concurrency - len(running)
                ):
                    running.append(asyncio.create_task(asker.row(number, row)))
                if not running:
                    break
                await running[0]
                # what has ended behind it goes to the disk with it: each time takes a while
                ended = [*itertools.takewhile(_is_answered, running)]
                finished = [running.popleft().result() for _ in ended]
                append(*finished)
                for row in finished:
                    counts.update(_counts(row))
                tell(completed=counts["rows"], note=f"{counts['tokens']:,} tokens")
        finally:
            for task in running:
                task.cancel()
            # the first failure is being raised already
            await asyncio.gather(*running, return_exceptions=True)
    return {
        **{name: counts[name] for name in ("rows", "failed", "tokens")},
        "seconds": time.monotonic() - start,
        "file": str(out),
    }


def _is_answered(task: asyncio.Task[dict[str, Any]]) -> bool:
    return task.done() and task.exception() is None


class _Asker:
    """Requests the answers of rows, at most `concurrency` rows at a time."""

    def __init__(
        self, client: AsyncClient, info: ModelInfo, chat: Chat, asking: RegenerationSettings
    ) -> None:
        self._client, self._info, self._chat, self._asking = client, info, chat, asking
        self._free = asyncio.Semaphore(asking.concurrency)

    async def row(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row to write: with its answers, or with the reason why it failed."""
        async with self._free:
            try:
                turns = await self._conversation(number, row)
            except (InvalidRequest, ConfigError) as error:
                return {**row, "status": "error", "reason": str(error)}
        return {**row, "conversations": turns, "status": "success"}

    async def _conversation(self, number: int, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The user's turns, each followed by the target's answer to everything before it."""
        turns: list[dict[str, Any]] = []
        for user in (turn for turn in conversation_of(row) if turn["role"] == "user"):
            turns.append(user)
            prompt = self._chat.prompt_ids(turns)
            turns.append(await self._answer(prompt, _seed(self._asking.seed, number, len(turns))))
        return turns

    async def _answer(self, prompt: Sequence[int], seed: int) -> dict[str, Any]:
        room = self._info.context_length - len(prompt)
        if room < 1:
            raise InvalidRequest(
                "prompt", f"{len(prompt)} tokens leave no room in {self._info.context_length}"
            )
        ask = self._asking

        def complete() -> Awaitable[Completion]:
            return self._client.complete(
                prompt,
                timeout=ask.answer_timeout_s,
                max_tokens=min(ask.max_tokens, room),
                temperature=ask.temperature,
                top_p=ask.top_p,
                top_k=ask.top_k,
                min_p=ask.min_p,
                seed=seed,
            )

        try:
            answer = await _patiently(complete, ask.patience_s)
        except DeadlineExceeded as error:  # again and again: it needs longer than that
            raise ConfigError(
                f"answer_timeout_s: {ask.answer_timeout_s:g} s, and {error}"
            ) from error
        return {
            "role": "assistant",
            "content": answer.text,
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.end.finish_reason,
        }


async def _patiently(ask: Callable[[], Awaitable[Told]], patience_s: float) -> Told:
    """Retries, with growing pauses, while the cell is unreachable or full; raises the failure when
    the patience is over, which begins with the first failure."""
    deadline, pause = math.inf, PAUSE_S
    while True:
        try:
            return await ask()
        except (Overloaded, Unavailable, DeadlineExceeded) as failure:
            deadline = min(deadline, time.monotonic() + patience_s)
            if isinstance(failure, Overloaded):
                pause = max(pause, failure.retry_after_s)
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _counts(row: Mapping[str, Any]) -> dict[str, int]:
    """What a finished row adds to the counts. A failed one keeps its old turns, which count
    nothing."""
    good = row.get("status") == "success"
    answers = row["conversations"][1::2] if good else []
    tokens = sum(len(answer.get("token_ids", ())) for answer in answers)
    return {"rows": 1, "failed": int(not good), "tokens": tokens}


def _seed(seed: int, row: int, turn: int) -> int:
    """The seed of one answer, 63 bits."""
    digest = hashlib.sha256(f"{seed}/{row}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _done(out: Path, rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Counts of the rows in `out`; ConfigError if they are not the beginning of the prompts."""
    counts: Counter[str] = Counter()
    for row in read_rows(out):
        done = counts["rows"]
        if done >= len(rows) or row.get("id") != rows[done].get("id"):
            raise ConfigError(
                f"{out}: row {done} is {row.get('id')!r}, which is not row {done} of the prompts"
            )
        counts.update(_counts(row))
    return counts


def _check_same_run(
    out: Path, prompts: Path, asking: RegenerationSettings, info: ModelInfo
) -> None:
    """Checks that `out` is new or was begun with these prompts, settings and target; ConfigError
    otherwise."""
    beside = out.with_name(f"{out.name}.settings.json")
    ours = {"prompts": content_digest(prompts), "target": info.model, **settled(asking)}
    if not beside.exists():
        if out.stat().st_size:
            raise ConfigError(
                f"{out}: there already, and {beside.name} does not say how it was made"
            )
        write_json(beside, ours)
        return
    check_same_run(out, json.loads(beside.read_text(encoding="utf-8")), ours)
