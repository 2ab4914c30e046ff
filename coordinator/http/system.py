"""Routes beside generation: models, health, metrics and version; /tokenize and /detokenize as in
vLLM."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

import dspark
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.body import described_by
from coordinator.http.chat import read_prompt
from coordinator.http.errors import UnknownModel
from coordinator.http.schema import BodyPart, ChatBody, Listed, PromptFields
from coordinator.http.tools import read_calling
from coordinator.reception.input_processor import LONG_IDS, decoded, encoded
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import DsparkError, InvalidRequest, Unsupported


def routes(api: Api) -> APIRouter:
    router = APIRouter()
    began = int(time.time())

    def card() -> dict[str, Any]:
        terms = api.processor.cell.terms()
        return {
            "id": api.model(terms),
            "object": "model",
            "created": began,
            "owned_by": "dspark",
            "root": terms.model,
            "max_model_len": terms.limits.longest,
            "drafter": terms.drafter or None,
            "block_size": terms.block_size,
            "policy": str(terms.limits.policy),
            "rule": terms.limits.rule.name.lower(),
        }

    @router.get("/v1/models", dependencies=[Depends(api.guard)], tags=["OpenAI"])
    async def models() -> dict[str, Any]:
        """Lists the served target."""
        return {"object": "list", "data": [card()]}

    @router.get("/v1/models/{name:path}", dependencies=[Depends(api.guard)], tags=["OpenAI"])
    async def model(name: str) -> dict[str, Any]:
        """The served target, by its name."""
        found = card()
        if name not in (found["id"], found["root"]):
            raise UnknownModel(f"the model {name[:200]!r} is not served here; {found['id']!r} is")
        return found

    @router.get("/health", tags=["operation"])
    async def health() -> Response:
        """200 while there are workers whose first requests have run, 503 without and while
        draining. A full queue is healthy."""
        try:
            ready = api.processor.cell.terms().ready
        except DsparkError:
            return Response(status_code=503)
        return Response(status_code=200 if ready and not api.processor.cell.draining else 503)

    @router.get("/metrics", dependencies=[Depends(api.operator_guard)], tags=["operation"])
    async def metrics() -> Response:
        """This process's metrics, for Prometheus."""
        page = generate_latest(api.processor.metrics.exposed)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    @router.get("/version", tags=["operation"])
    async def version() -> dict[str, str]:
        return {"version": dspark.__version__}

    return router


class TokenizeBody(PromptFields):
    """A prompt, or messages with the chat template's options."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BodyPart):
    model: str | None = None
    tokens: Listed[int]


def tokenizing_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["vLLM"], dependencies=[Depends(api.guard)])

    def tokenizer_for(model: str | None) -> Tokenizer:
        api.check_model(model, api.processor.cell.terms())
        if api.processor.tokenizer is None:
            raise Unsupported("prompt", "the target has no tokenizer")
        return api.processor.tokenizer

    async def ids_of(body: TokenizeBody, tokenizer: Tokenizer) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("prompt", "give either a prompt or messages")
        given = ((name, getattr(body, name)) for name in PromptFields.model_fields)
        options = {name: value for name, value in given if value is not None}
        if body.prompt is not None:
            if options:
                raise Unsupported(min(options), "beside a prompt; it goes with messages")
            return await encoded(
                tokenizer, body.prompt, "prompt", add_special=body.add_special_tokens is not False
            )
        if body.add_special_tokens:
            raise Unsupported(
                "add_special_tokens", "beside messages, whose template writes them itself"
            )
        chat = ChatBody(messages=body.messages or [], **options)
        return await read_prompt(api, chat, read_calling(api, chat))

    @router.post("/tokenize", openapi_extra=described_by(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await api.read(request, TokenizeBody)
        tokenizer = tokenizer_for(body.model)
        ids = await ids_of(body, tokenizer)
        longest = api.processor.cell.terms().limits.longest
        told = {"count": len(ids), "max_model_len": longest, "tokens": ids}
        namer = tokenizer if body.return_token_strs else None
        return await beside(len(ids) > LONG_IDS, _with_names, told, namer)

    @router.post("/detokenize", openapi_extra=described_by(DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, str]:
        """The text of token ids."""
        body = await api.read(request, DetokenizeBody)
        tokenizer = tokenizer_for(body.model)
        most = api.processor.cell.terms().limits.context_length
        return {"prompt": await decoded(tokenizer, body.tokens, "tokens", most)}

    return router


def _with_names(told: dict[str, Any], tokenizer: Tokenizer | None) -> Response:
    """`told` with `token_strs`: the vocabulary's names of its tokens, null without a tokenizer."""
    names = None if tokenizer is None else [tokenizer.name_of(token) for token in told["tokens"]]
    return JSONResponse({**told, "token_strs": names})
