"""/v1/completions: text or token ids go on."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.http.answer import answered
from coordinator.http.asking import Prompt, sampling
from coordinator.http.body import read_body
from coordinator.http.describe import described_by
from coordinator.http.door import Door
from coordinator.http.reply import Object
from coordinator.http.schema import CompletionBody
from coordinator.http.tokens import TokenTexts, completion_logprobs
from coordinator.reception.frontdesk import prompt_bytes
from coordinator.reception.reading import Shown
from dspark.errors import InvalidRequest, Unsupported

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this kind of request


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    texts = TokenTexts(door.desk.tokenizer)

    @router.post("/v1/completions", dependencies=[Depends(door.guard)], openapi_extra=described_by(CompletionBody))
    async def completions(request: Request) -> Response:
        """Goes on with each prompt."""
        body = await read_body(request, CompletionBody, prompt_bytes(door.desk.cell))
        if body.echo and body.logprobs is not None:
            raise Unsupported("echo", "is not supported beside logprobs: those of a prompt are not computed")
        prompts = read_prompts(body.prompt)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        options = sampling(body, max_tokens=max_tokens, logprobs=body.logprobs)
        shape = CompletionShape(texts, [_echoed(door, prompt) for prompt in prompts] if body.echo else None)
        return await answered(door, request, body, prompts, options, shape, kind="cmpl")

    return router


class CompletionShape:
    """`text_completion`, streamed or whole."""

    whole_object = part_object = "text_completion"

    def __init__(self, texts: TokenTexts, echoes: list[str] | None) -> None:
        self._texts, self._echoes = texts, echoes
        self._said: dict[tuple[int, int], int] = {}  # characters told, by prompt and answer

    def opening(self, prompt: int) -> Object | None:
        return {"text": self._echoes[prompt]} if self._echoes is not None else None

    def part(self, prompt: int, shown: Shown) -> Object:
        before = self._told((prompt, shown.index), shown)
        return {"text": shown.text, "logprobs": completion_logprobs(self._texts, [shown], before)}

    def whole(self, prompt: int, parts: list[Shown]) -> Object:
        text = "".join(shown.text for shown in parts)
        echo = self._echoes[prompt] if self._echoes is not None else ""
        return {"text": echo + text, "logprobs": completion_logprobs(self._texts, parts, 0)}

    def _told(self, key: tuple[int, int], shown: Shown) -> int:
        before = self._said.get(key, 0)
        if shown.logprobs:
            self._said[key] = before + sum(len(self._texts.text_of(token)) for token in shown.tokens)
        return before


def read_prompts(given: Any) -> list[Prompt]:
    """One prompt or several, each text or token ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("text", "the list is empty")
    if isinstance(given[0], int):
        return [given]
    return list(given)


def _echoed(door: Door, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    tokenizer = door.desk.tokenizer
    if tokenizer is None:
        raise InvalidRequest("echo", "the target has no tokenizer, so there is no text to show")
    if any(not 0 <= token < tokenizer.vocab_size for token in prompt):
        raise InvalidRequest("text", f"a token id is not below the vocabulary size {tokenizer.vocab_size}")
    return tokenizer.decode(prompt, skip_special=False)
