"""What both kinds of answers share: the frame around choices, usage, and the order in which a stream says things.

A stream is: an opening of each choice where the shape has one, parts, a finish reason with the last part of a choice,
then usage where asked for, then [DONE]. Several answers of one round leave in one write.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.answers.commit_log import End
from coordinator.beside import beside
from coordinator.http.asking import Asking, Scored
from coordinator.http.schema import Body
from coordinator.http.spec_metrics import Detail, metrics_of
from coordinator.http.sse import DONE, event
from coordinator.reception.reading import Reading, Shown

Object = dict[str, Any]
MANY = 2048  # tokens that are written beside the event loop


class Shape(Protocol):
    """How one kind of answer is written. `prompt`: index of the prompt that an answer belongs to."""

    whole_object: str
    part_object: str

    def opening(self, prompt: int, scored: Scored | None) -> Object | None:
        """The first part of a prompt's choices, before any token; None where there is nothing to say."""

    def part(self, prompt: int, shown: Shown) -> Object:
        """A choice's next part."""

    def whole(self, prompt: int, parts: list[Shown], scored: Scored | None) -> Object:
        """A whole choice."""


@dataclass(frozen=True)
class Frame:
    """What a request asked of the reply as a whole. block_size: slots of a full block."""

    id: str
    model: str
    block_size: int
    usage: bool
    running_usage: bool
    token_ids: bool
    detail: Detail
    fingerprint: str

    @staticmethod
    def of(body: Body, name: str, model: str, block_size: int, detail: Detail, fingerprint: str) -> Frame:
        options = body.stream_options
        return Frame(
            name,
            model,
            block_size,
            usage=bool(options and options.include_usage),
            running_usage=bool(options and options.include_usage and options.continuous_usage_stats),
            token_ids=bool(body.return_token_ids),
            detail=detail,
            fingerprint=fingerprint,
        )


async def whole_reply(asking: Asking, shape: Shape, frame: Frame) -> bytes:
    """The reply to a request that does not stream, as JSON."""
    gathered: dict[tuple[int, int], list[Shown]] = {}
    async for prompt, parts in asking.scored_parts():
        for shown in parts:
            gathered.setdefault((prompt, shown.index), []).append(shown)
    return await beside(usage_of(asking)["total_tokens"] > MANY, _written, asking, gathered, shape, frame)


def _written(asking: Asking, gathered: dict[tuple[int, int], list[Shown]], shape: Shape, frame: Frame) -> bytes:
    choices: list[Object] = []
    for prompt, reading in _readings(asking):
        said = gathered.get((prompt, reading.index), [])
        made = shape.whole(prompt, said, asking.scored(prompt))
        choice = {"index": len(choices), **made, **_finish(reading.end)}
        if frame.token_ids:
            choice["token_ids"] = [token for shown in said for token in shown.tokens]
            choice["prompt_token_ids"] = list(asking.answerings[prompt].request.prompt)
        choices.append(choice)
    told = _head(frame, shape.whole_object) | {"choices": choices, "usage": usage_of(asking)}
    told |= _metrics(asking, frame)
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def streamed_reply(asking: Asking, shape: Shape, frame: Frame) -> AsyncGenerator[bytes]:
    """Events of the reply to a request that streams."""
    head = _head(frame, shape.part_object)
    quiet = {"usage": None} if frame.usage else {}
    told: set[tuple[int, int]] = set()
    choices = len(asking.answerings[0].reader.readings)

    def chunk(number: int, choice: Object) -> bytes:
        running = {"usage": usage_of(asking)} if frame.running_usage else quiet
        return event(
            head | {"choices": [{"index": number, "logprobs": None, "finish_reason": None, **choice}]} | running
        )

    opened: set[int] = set()
    try:
        async for prompt, parts in asking.scored_parts():
            out = []
            if prompt not in opened:
                opened.add(prompt)
                many = len(asking.answerings[prompt].request.prompt) > MANY
                out = await beside(many, _openings, asking, prompt, shape, frame, chunk)
            by_index = {shown.index: shown for shown in parts}
            for reading in asking.answerings[prompt].reader.readings:
                shown, key = by_index.get(reading.index), (prompt, reading.index)
                ended = reading.end is not None and key not in told
                if not ended and (shown is None or not (shown.text or shown.logprobs or frame.token_ids)):
                    continue
                choice = shape.part(prompt, shown or Shown(reading.index, reading.answered))
                if frame.token_ids:
                    choice["token_ids"] = shown.tokens if shown else []
                if ended:
                    told.add(key)
                    choice |= _finish(reading.end)
                out.append(chunk(prompt * choices + reading.index, choice))
            if out:
                yield b"".join(out)
        last = head | {"choices": [], "usage": usage_of(asking)} if frame.usage else {}
        metrics = _metrics(asking, frame)
        yield (event((last or head | {"choices": []}) | metrics) if last or metrics else b"") + DONE
    finally:
        asking.leave()


def _openings(
    asking: Asking, asked: int, shape: Shape, frame: Frame, chunk: Callable[[int, Object], bytes]
) -> list[bytes]:
    """Of all answers to a prompt, which begin alike."""
    choice = shape.opening(asked, asking.scored(asked))
    if frame.token_ids:
        ids = {"prompt_token_ids": list(asking.answerings[asked].request.prompt), "token_ids": []}
        choice = (choice or shape.part(asked, Shown(0, 0))) | ids
    if choice is None:
        return []
    return [chunk(number, choice) for number, (prompt, _) in enumerate(_readings(asking)) if prompt == asked]


def usage_of(asking: Asking) -> Object:
    """Tokens so far: every prompt once, all answers together."""
    readers = [answering.reader for answering in asking.answerings]
    prompt = sum(len(reader.request.prompt) for reader in readers)
    said = sum(reading.answered for reader in readers for reading in reader.readings)
    cached = sum(max(reading.cached_tokens for reading in reader.readings) for reader in readers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _readings(asking: Asking) -> list[tuple[int, Reading]]:
    """(prompt, answer) in the order of choices."""
    return [(index, each) for index, one in enumerate(asking.answerings) for each in one.reader.readings]


def _head(frame: Frame, kind: str) -> Object:
    return {
        "id": frame.id,
        "object": kind,
        "created": int(time.time()),
        "model": frame.model,
        "system_fingerprint": frame.fingerprint,
    }


def _finish(end: End | None) -> Object:
    assert end is not None, "a complete answer has an end"
    return {
        "finish_reason": end.reason.value,
        "stop_reason": end.text if end.text is not None else end.token_id,
    }


def _metrics(asking: Asking, frame: Frame) -> Object:
    if frame.detail == "none":
        return {}
    return {"metrics": metrics_of(asking, frame.block_size, detailed=frame.detail == "detailed")}
