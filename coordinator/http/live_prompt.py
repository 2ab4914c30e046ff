"""A conversation as the live page's prompt: through the target's chat template, as much of it as leaves room."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.beside import beside
from coordinator.http.door import Door
from coordinator.http.messages import Turn, newest_that_fit
from coordinator.reception.frontdesk import LONG_TEXT, encoded_now


async def prompt_of(door: Door, messages: Sequence[Turn], max_tokens: int) -> tuple[str | tuple[int, ...], int]:
    """(prompt, how many of the oldest messages were left out so that `max_tokens` fit behind it).

    Without a chat template the newest message is the prompt, as plain text.
    """
    template, tokenizer = door.template, door.desk.tokenizer
    if template is None or tokenizer is None:
        return messages[-1]["content"], 0

    def encode(said: list[Turn]) -> tuple[int, ...]:
        text = template.render(said, {}, add_generation_prompt=True)
        return encoded_now(tokenizer, text, "messages", add_special=False)  # the template writes them itself

    room = door.desk.limits().longest - max_tokens
    long = sum(len(message["content"]) for message in messages) > LONG_TEXT
    return await beside(long, newest_that_fit, messages, room, encode)
