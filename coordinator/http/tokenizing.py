"""/tokenize and /detokenize, as vLLM has them: what a prompt or a conversation is in token ids, and back."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from coordinator.beside import beside
from coordinator.http.body import read_body
from coordinator.http.chat import read_prompt
from coordinator.http.describe import described_by
from coordinator.http.door import Door
from coordinator.http.schema import AtFirst, ChatBody, validated
from coordinator.reception.frontdesk import LONG_IDS, decoded, encoded, prompt_bytes
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import InvalidRequest, Unsupported


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str | None = None

    @classmethod
    def read(cls, content: bytes) -> Self:
        """From JSON; InvalidRequest names the field."""
        return validated(cls, content)


class TokenizeBody(_Body):
    """A prompt, or messages with what a chat takes for its template."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(_Body):
    tokens: Annotated[list[int], AtFirst()]


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["vLLM"])

    def tokenizer_for(model: str | None) -> Tokenizer:
        door.check_model(model, door.desk.cell.terms())
        if door.desk.tokenizer is None:
            raise Unsupported("prompt", "the target has no tokenizer")
        return door.desk.tokenizer

    async def ids_of(body: TokenizeBody, tokenizer: Tokenizer) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("prompt", "give either a prompt or messages")
        if body.prompt is not None:
            return await encoded(tokenizer, body.prompt, "prompt", add_special=body.add_special_tokens is not False)
        if body.add_special_tokens:
            raise Unsupported("add_special_tokens", "beside messages, whose template writes them itself")
        chat = ChatBody(
            messages=body.messages or [],
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return await read_prompt(door, chat)

    @router.post("/tokenize", dependencies=[Depends(door.guard)], openapi_extra=described_by(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await read_body(request, TokenizeBody, prompt_bytes(door.desk.cell))
        tokenizer = tokenizer_for(body.model)
        ids = await ids_of(body, tokenizer)
        told = {"count": len(ids), "max_model_len": door.desk.limits().longest, "tokens": ids}
        return await beside(len(ids) > LONG_IDS, _with_names, told, tokenizer if body.return_token_strs else None)

    @router.post("/detokenize", dependencies=[Depends(door.guard)], openapi_extra=described_by(DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, str]:
        """The text of token ids."""
        body = await read_body(request, DetokenizeBody, prompt_bytes(door.desk.cell))
        tokenizer = tokenizer_for(body.model)
        return {"prompt": await decoded(tokenizer, body.tokens, "tokens", door.desk.limits().context_length)}

    return router


def _with_names(told: dict[str, Any], tokenizer: Tokenizer | None) -> Response:
    """`told` and what the vocabulary calls its tokens, where a tokenizer is given."""
    names = None if tokenizer is None else [tokenizer.name_of(token) for token in told["tokens"]]
    return JSONResponse({**told, "token_strs": names})
