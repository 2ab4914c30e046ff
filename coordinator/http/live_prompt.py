"""A conversation as the live page's prompt: through the target's chat template, as much of it as leaves room."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.http.door import Door
from coordinator.http.messages import forget_oldest
from coordinator.reception.frontdesk import encoded

Message = dict[str, str]


async def prompt_of(door: Door, messages: Sequence[Message], max_tokens: int) -> tuple[str | tuple[int, ...], int]:
    """(prompt, how many of the oldest messages were left out so that `max_tokens` fit behind it).

    Without a chat template the newest message is the prompt, as plain text.
    """
    template, tokenizer = door.template, door.desk.tokenizer
    if template is None or tokenizer is None:
        return messages[-1]["content"], 0
    room = door.desk.limits().longest - max_tokens
    said = list(messages)
    while True:
        text = template.render(said, {}, add_generation_prompt=True)
        prompt = await encoded(tokenizer, text, "messages", add_special=False)  # the template writes them itself
        if len(prompt) <= room or not forget_oldest(said):
            return prompt, len(messages) - len(said)
