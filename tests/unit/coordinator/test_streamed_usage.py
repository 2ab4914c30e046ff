"""What is counted as thoughts: tokens, whether or not they show text at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from coordinator.answers.answer import End, Reason
from coordinator.http.chat import ChatShape
from coordinator.http.reader import Reader
from coordinator.http.reply import Reply
from coordinator.http.schema import ChatBody, StreamOptions
from coordinator.reception.output_processor import OutputChunk

# a character of three tokens is shown with the last
TEXTS = ["<think>", "so", "", "", "🙂", "</think>", "yes"]
BODY = ChatBody(messages=[], stream=True, stream_options=StreamOptions(include_usage=True))


class Asking:
    """One answer, a token at a time."""

    id = "chatcmpl-1"

    def __init__(self) -> None:
        answer = SimpleNamespace(index=0, answered=0, cached_tokens=0, end=None)
        request = SimpleNamespace(prompt=(1,), prompt_logprobs=None)
        output = SimpleNamespace(answers=[answer], request=request)
        self.streams: list[Any] = [SimpleNamespace(output=output, request=request)]

    async def parts(self) -> AsyncIterator[tuple[int, list[OutputChunk]]]:
        (answer,) = self.streams[0].output.answers
        for place, text in enumerate(TEXTS):
            answer.answered, ended = place + 1, place == len(TEXTS) - 1
            answer.end = End(Reason.LENGTH) if ended else None
            yield 0, [OutputChunk(0, place, [place], [text], end=answer.end)]

    def leave(self) -> None:
        pass


async def events() -> list[Any]:
    shape = ChatShape(None, lambda: Reader(inside=False))
    said = [part async for part in Reply(Asking(), shape, BODY, {}, "none", 7).streamed()]
    told = b"".join(said).decode().split("\n\n")
    return [
        json.loads(each.removeprefix("data: "))
        for each in told
        if each and not each.endswith("[DONE]")
    ]


def test_tokens_that_show_no_text_yet_are_counted_and_not_told() -> None:
    told = asyncio.run(events())
    assert told[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
    deltas = [choice["delta"] for each in told for choice in each["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "so🙂"
    assert "".join(delta.get("content", "") for delta in deltas) == "yes"
    assert all(delta for delta in deltas[:-1]), "nothing is told without anything to tell"
