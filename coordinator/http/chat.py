"""/v1/chat/completions: messages through the target's chat template, and the answer as the assistant's turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.beside import beside
from coordinator.http.api import Api
from coordinator.http.asking import Scored, sampling
from coordinator.http.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from coordinator.http.reply import Object, answered
from coordinator.http.schema import ChatBody, described_by, read_body
from coordinator.http.template import ChatTemplate, read_messages
from coordinator.reception.input_processor import LONG_TEXT, encoded, prompt_bytes
from coordinator.reception.output_processor import OutputChunk
from dspark.errors import InvalidRequest, Unsupported
from dspark.runtime.security import current_caller

# Fields of the gRPC interface, as this body calls them.
_NAMES = {
    "text": "messages",
    "tokenized.input_ids": "messages",
    "sampling_params.logprobs": "top_logprobs",
}
_HERE = "CONTINUE_FINAL_MESSAGE_TAG "  # the space tells whether the template trims
_KEYWORDS = ("enable_thinking", "reasoning_effort")  # arguments of templates that have a field of their own


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    texts = TokenTexts(api.processor.tokenizer)

    @router.post("/v1/chat/completions", dependencies=[Depends(api.guard)], openapi_extra=described_by(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        body = await read_body(request, ChatBody, prompt_bytes(api.processor.cell))
        prompt = await read_prompt(api, body)
        names = dict(_NAMES)
        if body.max_completion_tokens is not None:
            names["sampling_params.max_tokens"] = "max_completion_tokens"
        options = sampling(body, max_tokens=_max_tokens(api, body, prompt), logprobs=_logprobs(body))
        return await answered(api, request, body, [prompt], options, ChatShape(texts), kind="chatcmpl", names=names)

    return router


class ChatShape:
    """`chat.completion` or its chunks."""

    whole_object, part_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def opening(self, prompt: int, scored: Scored | None) -> Object | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def part(self, prompt: int, shown: OutputChunk) -> Object:
        delta = {"content": shown.text} if shown.text or shown.tokens else {}
        return {"delta": delta, "logprobs": chat_logprobs(self._texts, shown)}

    def whole(self, prompt: int, parts: list[OutputChunk], scored: Scored | None) -> Object:
        told = [chat_logprobs(self._texts, shown) for shown in parts if shown.logprobs]
        content = [one for each in told if each is not None for one in each["content"]]
        text = "".join(shown.text for shown in parts)
        return {
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": {"content": content, "refusal": None} if told else None,
            **prompt_logprobs(self._texts, scored),
        }


async def read_prompt(api: Api, body: ChatBody) -> tuple[int, ...]:
    """The conversation as token ids."""
    template, tokenizer = api.template, api.processor.tokenizer
    if template is None or tokenizer is None:
        raise Unsupported("messages", "the target has no chat template; /v1/completions takes plain prompts")
    api.processor.cell.check_capacity(current_caller().tenant)  # before anything is done for a request that has no room
    messages = template.fitted(read_messages(body.messages))
    arguments = dict(body.chat_template_kwargs or {})
    for name in _KEYWORDS:
        if (value := getattr(body, name)) is not None:
            if name not in template.arguments:
                raise Unsupported(name, "the target's chat template has no such argument")
            arguments[name] = value
    asked = (template, messages, arguments, body)
    text = await beside(len(str((messages, arguments))) > LONG_TEXT, _rendered, *asked)
    return await encoded(tokenizer, text, "messages", add_special=False)  # the template writes them itself


def _rendered(
    template: ChatTemplate, messages: list[Mapping[str, Any]], arguments: dict[str, Any], body: ChatBody
) -> str:
    last = bool(body.continue_final_message)
    begin = not last if body.add_generation_prompt is None else body.add_generation_prompt
    if last and begin:
        raise InvalidRequest("continue_final_message", "goes without add_generation_prompt")
    if not last:
        return template.render(messages, arguments, add_generation_prompt=begin)
    said = str(messages[-1].get("content") or "")
    marked = {**messages[-1], "content": said + _HERE}
    text = template.render([*messages[:-1], marked], arguments, add_generation_prompt=begin)
    return _cut_behind(text, said)


def _cut_behind(text: str, said: str) -> str:
    """Without what the template puts behind the last message, so that the answer goes on with it."""
    at = text.rfind(_HERE.strip())
    if not said.strip() or at < 0 or said.strip() not in text:
        raise InvalidRequest("continue_final_message", "the chat template does not show the last message as it is")
    kept = text[:at]
    return kept if text[at : at + len(_HERE)] == _HERE else kept.rstrip()  # a template that trims would have trimmed it


def _max_tokens(api: Api, body: ChatBody, prompt: tuple[int, ...]) -> int:
    """Without a limit: the deployment's default, as far as the context leaves so much."""
    for given in (body.max_completion_tokens, body.max_tokens):
        if given is not None:
            return given
    return max(min(api.default_max_tokens, api.processor.limits().longest - len(prompt)), 1)


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "only beside logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
