"""Any server with an OpenAI-style completions endpoint, streamed as server-sent events.

Tokens per message are counted by the best that the server sends: the ids (`return_token_ids`), else
running usage counts, else the total at the end, spread over its messages; `counted_by` says which.
Messages are not counted as tokens: with speculation one message holds several.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from dspark.client import Options
from dspark.errors import DsparkError, Unavailable
from dspark.loadgen import prometheus
from dspark.loadgen.answer import UNKNOWN, StreamPiece
from dspark.loadgen.http_stream import post_lines
from dspark.loadgen.prompts import Question

COUNTERS = {  # name here -> sample of vLLM's metrics
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}


class OpenAiEndpoint:
    """Streams answers of `/completions` to prompts of text or token ids. url: up to and including
    /v1, and a query if it takes one. model: its name on the server."""

    def __init__(
        self, url: str, model: str, options: Options, *, api_key: str | None = None
    ) -> None:
        self.name = f"openai {model}"
        self.counted_by = ""
        self._model, self._options = model, options
        self._base, mark, query = url.partition("?")
        self._base, self._query = self._base.rstrip("/"), mark + query
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
        counted, unknown, done = 0, False, False
        url = f"{self._base}/completions{self._query}"
        async for line in post_lines(url, self._body(question, number), self._headers):
            if not line.startswith(b"data:"):
                continue
            data, size = line[5:].strip(), len(line) + 2
            if data == b"[DONE]":
                done = True
                break
            message = _object(data, self._base)
            if "error" in message:
                raise Unavailable(f"{self._base} failed: {message['error']}")
            choices = message.get("choices") or []
            done = done or (bool(choices) and choices[0].get("finish_reason") is not None)
            tokens, ids, how = _count(message, counted)
            spread = 0
            if how:
                self.counted_by, counted = how, counted + tokens
            elif choices and choices[0].get("text"):
                tokens, unknown = UNKNOWN, True
            elif (
                unknown
                and not counted
                and (total := (message.get("usage") or {}).get("completion_tokens"))
            ):
                self.counted_by, spread = "total", int(total)
            yield StreamPiece(tokens, size, ids, spread=spread)
        if not done:
            raise Unavailable(f"{self._base} ended the answer without saying why")

    def _body(self, question: Question, number: int) -> dict[str, Any]:
        options = question.options(self._options, number)
        prompt = question.prompt if isinstance(question.prompt, str) else list(question.prompt)
        return {
            "model": self._model,
            "prompt": prompt,
            **{name: value for name, value in options.items() if value is not None},
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
        }

    async def counters(self) -> dict[str, float]:
        """vLLM's totals of speculation, from /metrics beside /v1."""
        try:
            samples = await prometheus.scrape(self._base.removesuffix("/v1") + "/metrics")
        except DsparkError:
            return {}
        names = {sample.split("{", 1)[0] for sample in samples}
        return {
            key: prometheus.total(samples, name) for key, name in COUNTERS.items() if name in names
        }

    async def close(self) -> None:
        """Does nothing: no connection is kept between requests."""


def _object(data: bytes, base: str) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except ValueError:
        raise Unavailable(f"{base} sent an event that is not JSON: {data[:80]!r}") from None
    if not isinstance(message, dict):
        raise Unavailable(f"{base} sent an event that is no object: {data[:80]!r}")
    return message


def _count(message: dict[str, Any], before: int) -> tuple[int, tuple[int, ...], str]:
    """Returns (new tokens, their ids if they are sent, how they were counted: empty if not)."""
    choices = message.get("choices") or []
    if choices and isinstance(ids := choices[0].get("token_ids"), list):
        return len(ids), tuple(ids), "ids"
    total = (message.get("usage") or {}).get("completion_tokens")
    if choices and isinstance(total, int):
        return max(0, total - before), (), "usage"
    return 0, (), ""
