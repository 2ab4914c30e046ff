"""/v1/chat/completions: messages through the target's chat template, and the answer as the assistant's turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.asking import Scored, sampling
from coordinator.http.calls import CallReader, Part
from coordinator.http.forms import Form, form_of
from coordinator.http.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from coordinator.http.reply import Object, added, answered
from coordinator.http.schema import ChatBody, described_by, read_body
from coordinator.http.template import ChatTemplate, read_messages
from coordinator.http.thoughts import (
    BEGIN,
    BEGINS,
    END,
    HarmonyReader,
    PlainReader,
    Reader,
    ThoughtReader,
    part_of,
    with_budget,
)
from coordinator.http.tools import Calling, read_tools
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
_TAIL = 8  # tokens of a prompt that tell whether it has begun thoughts
_KEYWORDS = ("enable_thinking", "reasoning_effort")  # arguments of templates that have a field of their own


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    texts = TokenTexts(api.processor.tokenizer)

    @router.post("/v1/chat/completions", dependencies=[Depends(api.guard)], openapi_extra=described_by(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        body = await read_body(request, ChatBody, prompt_bytes(api.processor.cell))
        chat = await read_chat(api, body)
        shape = ChatShape(texts, chat.reader)
        return await answered(api, request, body, [chat.prompt], chat.options, shape, kind="chatcmpl", names=chat.names)

    return router


class AskedChat(NamedTuple):
    """A conversation that is to go on. reader: makes one of each answer; None where an answer is nothing but text.
    names: what fields of the gRPC interface are called in its body."""

    prompt: tuple[int, ...]
    options: dict[str, Any]
    reader: Callable[[], Reader] | None
    names: dict[str, str]


async def read_chat(api: Api, body: ChatBody) -> AskedChat:
    """What a body asks for, whatever the answer is going to look like."""
    calling = read_calling(api, body)
    prompt = await read_prompt(api, body, calling)
    names = dict(_NAMES)
    _, given = form_of(body.response_format, body.structured_outputs)
    if calling is not None and calling.form is not None:
        names["constraint"] = calling.field
    if body.max_completion_tokens is not None:
        names["sampling_params.max_tokens"] = "max_completion_tokens"
    form = calling.form if calling is not None else None
    given, reader = form or given, None
    if api.template is not None and (calling is not None or api.template.marks_thoughts or api.template.has_channels):
        assert api.processor.tokenizer is not None
        tail = api.processor.tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
        forced = given is not None and (calling is None or calling.whole)
        inside = tail.endswith(BEGIN) and (body.thinking_token_budget is not None or not forced)
        reader = partial(_reader, calling, api.template, inside)
        if body.thinking_token_budget is not None and not tail.endswith(END):
            form = _bounded(api, body.thinking_token_budget, given, inside)
            if given is None:
                names["constraint"] = "thinking_token_budget"
    elif body.thinking_token_budget is not None:
        raise Unsupported("thinking_token_budget", "the target's chat template marks no thoughts")
    options = sampling(body, max_tokens=_max_tokens(body), logprobs=_logprobs(body), form=form)
    if reader is not None and body.skip_special_tokens is None and _special_marks(api, calling):
        options["skip_special_tokens"] = False
    return AskedChat(prompt, options, reader, names)


def _reader(calling: Calling | None, template: ChatTemplate, inside: bool) -> Reader:
    if template.has_channels:
        return HarmonyReader()
    rest: Reader = CallReader(calling.format) if calling is not None else PlainReader()
    return ThoughtReader(rest, inside=inside) if template.marks_thoughts else rest


def _bounded(api: Api, budget: int, form: Form | None, inside: bool) -> Form:
    tokenizer = api.processor.tokenizer
    assert tokenizer is not None
    return with_budget(budget, form, inside=inside, token=tokenizer.id_of(END))


def _special_marks(api: Api, calling: Calling | None) -> bool:
    """Whether what parts an answer is written in tokens that are no text."""
    assert api.template is not None
    assert api.processor.tokenizer is not None
    marks = (BEGINS,) if api.template.has_channels else calling.format.marks if calling is not None else ()
    return not api.processor.tokenizer.special_ids().keys().isdisjoint(marks)


class ChatShape:
    """`chat.completion` or its chunks, with the thoughts and the calls of tools that answers hold."""

    whole_object, part_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, texts: TokenTexts, make_reader: Callable[[], Reader] | None = None) -> None:
        self._texts, self._make_reader = texts, make_reader
        self._readers: dict[int, Reader] = {}  # by answer

    @property
    def thought(self) -> int:
        return sum(reader.thought for reader in self._readers.values())

    def opening(self, prompt: int, scored: Scored | None) -> Object | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def part(self, prompt: int, shown: OutputChunk) -> Object:
        if self._make_reader is None:
            delta: Object = {"content": shown.text} if shown.text or shown.tokens else {}
        else:
            delta = _delta(self._read(shown))
        return {"delta": delta, "logprobs": chat_logprobs(self._texts, shown)}

    def reason(self, index: int, reason: str) -> str:
        reader = self._readers.get(index)
        return "tool_calls" if reason == "stop" and reader is not None and reader.calls else reason

    def whole(self, made: Object, scored: Scored | None) -> Object:
        message: Object = {"refusal": None, **made.pop("delta")}
        calls: dict[int, Object] = {}
        for part in message.pop("tool_calls", ()):
            calls[part["index"]] = added(calls.get(part["index"]), part)
        if calls:
            told = [{key: value for key, value in call.items() if key != "index"} for call in calls.values()]
            message |= {"content": message["content"] or None, "tool_calls": told}
        return {"message": message, "logprobs": None, **made, **prompt_logprobs(self._texts, scored)}

    def _read(self, shown: OutputChunk) -> list[Part]:
        assert self._make_reader is not None
        reader = self._readers.get(shown.index) or self._readers.setdefault(shown.index, self._make_reader())
        parts = [part for text in shown.texts for part in reader.push(text)]
        return parts + reader.close() if shown.ended else parts


def read_calling(api: Api, body: ChatBody) -> Calling | None:
    """What may be called, in the way of the target's template."""
    if not body.tools and body.tool_choice is None:
        return None
    if api.template is None:
        raise Unsupported("tools", "the target has no chat template")
    tokenizer = api.processor.tokenizer
    special = tokenizer.special_ids() if tokenizer is not None else {}
    field, form = form_of(body.response_format, body.structured_outputs)
    answer = None if form is None else part_of(form, field)
    asked = (body.tools, body.tool_choice, body.parallel_tool_calls)
    return read_tools(*asked, api.template, api.config.tool_format, special, answer, field)


async def read_prompt(api: Api, body: ChatBody, calling: Calling | None = None) -> tuple[int, ...]:
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
    tools = calling.tools if calling is not None else ()
    asked = (template, messages, arguments, body, tools)
    text = await beside(len(str((messages, arguments, tools))) > LONG_TEXT, _rendered, *asked)
    return await encoded(tokenizer, text, "messages", add_special=False)  # the template writes them itself


def _rendered(
    template: ChatTemplate,
    messages: list[Mapping[str, Any]],
    arguments: dict[str, Any],
    body: ChatBody,
    tools: Sequence[Mapping[str, Any]],
) -> str:
    last = bool(body.continue_final_message)
    begin = not last if body.add_generation_prompt is None else body.add_generation_prompt
    if last and begin:
        raise InvalidRequest("continue_final_message", "goes without add_generation_prompt")
    if not last:
        return template.render(messages, arguments, add_generation_prompt=begin, tools=tools)
    said = str(messages[-1].get("content") or "")
    marked = {**messages[-1], "content": said + _HERE}
    text = template.render([*messages[:-1], marked], arguments, add_generation_prompt=begin, tools=tools)
    return _cut_behind(text, said)


def _cut_behind(text: str, said: str) -> str:
    """Without what the template puts behind the last message, so that the answer goes on with it."""
    at = text.rfind(_HERE.strip())
    if not said.strip() or at < 0 or said.strip() not in text:
        raise InvalidRequest("continue_final_message", "the chat template does not show the last message as it is")
    kept = text[:at]
    return kept if text[at : at + len(_HERE)] == _HERE else kept.rstrip()  # a template that trims would have trimmed it


def _max_tokens(body: ChatBody) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "only beside logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _delta(parts: Sequence[Part]) -> Object:
    """Parts that come together, as one."""
    made: Object = {}
    calls: dict[int, Object] = {}
    for part in parts:
        if part.call is None:
            added(made, {"reasoning_content": part.reasoning} if part.reasoning else {"content": part.text})
            continue
        named = {"id": part.id, "type": "function", "function": {"name": part.name}} if part.name else {}
        call = calls.setdefault(part.call, {"index": part.call})
        added(added(call, named), {"function": {"arguments": part.arguments}})
    return made | ({"tool_calls": list(calls.values())} if calls else {})
