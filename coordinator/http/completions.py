"""/v1/completions: continues prompts of text or of token ids."""

from __future__ import annotations

from codecs import IncrementalDecoder
from collections import defaultdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.answers.answer import End
from coordinator.http.api import Api
from coordinator.http.body import described_by
from coordinator.http.logprobs import (
    TokenTexts,
    completion_logprobs,
    echo_logprobs,
    prompt_logprobs,
    utf8,
)
from coordinator.http.reply import Object, answered
from coordinator.http.running_prompts import Prompt, sampling
from coordinator.http.schema import CompletionBody, form_of
from coordinator.reception.input_processor import decoded
from coordinator.reception.output_processor import OutputChunk, OutputProcessor
from dspark.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], dependencies=[Depends(api.guard)])
    texts = TokenTexts(api.processor.tokenizer)

    @router.post("/v1/completions", openapi_extra=described_by(CompletionBody))
    async def completions(request: Request) -> Response:
        """Continues each prompt."""
        body = await api.read(request, CompletionBody)
        prompts = read_prompts(body.prompt)
        field, form = form_of(body)
        scores, names = _scores(body)
        options = sampling(body, form, logprobs=body.logprobs, prompt_logprobs=scores)
        echoes = [await _echoed(api, prompt) for prompt in prompts] if body.echo else None
        skips = body.skip_special_tokens is not False
        shape = CompletionShape(texts, echoes, body.logprobs, body.prompt_logprobs, skips)
        asked = (prompts, options, shape, names | {"constraint": field})
        return await answered(api, request, body, *asked, kind="cmpl", usual=DEFAULT_MAX_TOKENS)

    return router


class CompletionShape:
    """Makes `text_completion` objects, streamed or whole. echoes: text of each prompt, if shown."""

    whole_object = part_object = "text_completion"
    of_prompt: tuple[str, ...] = ()  # there may be several prompts
    thought = 0

    def __init__(
        self,
        texts: TokenTexts,
        echoes: list[str] | None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        skip_special: bool = True,
    ) -> None:
        self._texts, self._echoes = texts, echoes
        # requested numbers of likeliest tokens
        self._logprobs, self._prompt_logprobs = logprobs, prompt_logprobs
        self._skip_special = skip_special
        # characters sent, and the decoder of their bytes, by prompt and answer
        self._said: dict[tuple[int, int], int] = {}
        self._decoders = defaultdict[tuple[int, int], IncrementalDecoder](utf8)

    def opening(self, prompt: int, output: OutputProcessor) -> Object | None:
        if self._echoes is None:
            return None
        text, told = self._echoes[prompt], None
        if self._logprobs is not None:
            told = echo_logprobs(self._texts, output, self._logprobs, len(text))
        return {"text": text, "logprobs": told}

    def part(self, prompt: int, shown: OutputChunk) -> Object:
        if not shown.logprobs:
            return {"text": shown.text, "logprobs": None}
        key = prompt, shown.index
        before = self._said.get(key, len(self._echoes[prompt]) if self._echoes else 0)
        decoder = self._decoders[key]
        sizes = self._texts.sizes(shown.tokens, decoder, skip_special=self._skip_special)
        told = completion_logprobs(self._texts, shown, sizes, before)
        self._said[key] = before + sum(sizes)
        return {"text": shown.text, "logprobs": told}

    def reason(self, index: int, end: End) -> str:
        return end.reason.value

    def whole(self, made: Object) -> Object:
        return {"text": "", "logprobs": None, **made}

    def scores(self, output: OutputProcessor) -> Object:
        top = self._prompt_logprobs
        return {} if top is None else prompt_logprobs(self._texts, output, top)


def _scores(body: CompletionBody) -> tuple[int | None, dict[str, str]]:
    """(likeliest tokens to score at each position of the prompt, None for no scores; the body's
    name for that field, if it has another)."""
    if not body.echo or (body.logprobs is None and body.max_tokens != 0):
        return body.prompt_logprobs, {}
    if body.prompt_logprobs is not None:
        return max(body.prompt_logprobs, body.logprobs or 0), {}
    return body.logprobs or 0, {"sampling_params.prompt_logprobs": "logprobs"}


def read_prompts(given: Any) -> list[Prompt]:
    """One prompt or several, each text or token ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("prompt", "the list is empty")
    if isinstance(given[0], int):
        return [given]
    return list(given)


async def _echoed(api: Api, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    tokenizer = api.processor.tokenizer
    if tokenizer is None:
        raise InvalidRequest("echo", "the target has no tokenizer, so there is no text to show")
    most = api.processor.cell.terms().limits.context_length
    return await decoded(tokenizer, prompt, "prompt", most)
