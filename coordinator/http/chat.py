"""/v1/chat/completions: messages through the target's chat template, and the answer as the
assistant's turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.answers.answer import End, Reason
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.body import described_by
from coordinator.http.calls import CallReader
from coordinator.http.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from coordinator.http.reader import BEGIN, END, AnswerPart, Reader
from coordinator.http.reply import Object, added, answered
from coordinator.http.running_prompts import sampling
from coordinator.http.schema import ChatBody, form_of
from coordinator.http.template import ChatTemplate, read_messages
from coordinator.http.thoughts import BEGINS, HarmonyReader, with_budget
from coordinator.http.tools import Calling, read_calling
from coordinator.reception.input_processor import LONG_TEXT, encoded
from coordinator.reception.output_processor import OutputChunk, OutputProcessor
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import InvalidRequest, Unsupported

# Fields of the gRPC interface, as this body calls them.
_NAMES = {
    "text": "messages",
    "tokenized.input_ids": "messages",
    "sampling_params.logprobs": "top_logprobs",
}
_HERE = "CONTINUE_FINAL_MESSAGE_TAG "  # a template that trims removes the space
_TAIL = 8  # last tokens of a prompt, which show whether it begins reasoning
# arguments of templates that are fields of the body
_KEYWORDS = ("enable_thinking", "reasoning_effort")


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], dependencies=[Depends(api.guard)])
    texts = TokenTexts(api.processor.tokenizer)

    @router.post("/v1/chat/completions", openapi_extra=described_by(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        body = await api.read(request, ChatBody)
        api.check_capacity()
        chat = await read_chat(api, body)
        shape = ChatShape(texts, chat.reader)
        return await answered(
            api, request, body, [chat.prompt], chat.options, shape, chat.names, kind="chatcmpl"
        )

    return router


class AskedChat(NamedTuple):
    """A chat request, ready to run. reader: makes a reader for each answer. names: the body's names
    for fields of the gRPC interface."""

    prompt: tuple[int, ...]
    options: dict[str, Any]
    reader: Callable[[], Reader]
    names: dict[str, str]


async def read_chat(api: Api, body: ChatBody) -> AskedChat:
    """Reads a chat body into a prompt, options and readers, whatever shape the response has."""
    calling = read_calling(api, body)
    prompt = await read_prompt(api, body, calling)
    template, tokenizer = _writers(api, calling)
    field, form = form_of(body) if calling is None else (calling.field, calling.form)
    forced = form is not None and (calling is None or calling.whole)
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
    budget = body.thinking_token_budget
    inside = tail.endswith(BEGIN) and (budget is not None or not forced)
    if budget is not None and not template.marks_thoughts:
        raise Unsupported(
            "thinking_token_budget", f"the target's chat template marks no thoughts by {BEGIN}"
        )
    if budget is not None and not tail.endswith(END):
        field = "thinking_token_budget" if form is None else field
        token, special = tokenizer.id_of(END), tokenizer.special_ids
        form = with_budget(budget, form, inside=inside, token=token, special=special)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    options = sampling(body, form, max_tokens=getattr(body, limit), logprobs=_logprobs(body))
    # The marks between an answer's parts may be special tokens: then these are decoded too.
    marks = (
        *((BEGINS,) if template.has_channels else ()),
        *((BEGIN, END) if template.marks_thoughts else ()),
        *(calling.format.marks if calling is not None else ()),
    )
    if body.skip_special_tokens is None and not tokenizer.special_ids.keys().isdisjoint(marks):
        options["skip_special_tokens"] = False
    names = {**_NAMES, "constraint": field, "sampling_params.max_tokens": limit}
    return AskedChat(prompt, options, partial(_reader, calling, template, inside), names)


def _reader(calling: Calling | None, template: ChatTemplate, inside: bool) -> Reader:
    if template.has_channels:
        return HarmonyReader()
    begun = inside if template.marks_thoughts else None
    return CallReader(calling.format, inside=begun) if calling else Reader(inside=begun)


class ChatShape:
    """Makes `chat.completion` objects or chunks, with the answers' reasoning and tool calls."""

    whole_object, part_object = "chat.completion", "chat.completion.chunk"
    of_prompt: tuple[str, ...] = ("prompt_token_ids", "prompt_logprobs")  # as vLLM places them

    def __init__(self, texts: TokenTexts, make_reader: Callable[[], Reader]) -> None:
        self._texts = texts
        self._readers = defaultdict[int, Reader](make_reader)  # by answer

    @property
    def thought(self) -> int:
        return sum(reader.thought for reader in self._readers.values())

    def opening(self, prompt: int, output: OutputProcessor) -> Object | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def part(self, prompt: int, shown: OutputChunk) -> Object:
        parts = self._readers[shown.index].read(
            shown.texts, rest=shown.rest, over=shown.end is not None
        )
        return {"delta": _delta(parts), "logprobs": chat_logprobs(self._texts, shown)}

    def reason(self, index: int, end: End) -> str:
        called = end.reason is Reason.STOP and self._readers[index].called
        return "tool_calls" if called else end.reason.value

    def whole(self, made: Object) -> Object:
        message: Object = {"refusal": None, **made.pop("delta")}
        calls: dict[int, Object] = {}
        for part in message.pop("tool_calls", ()):
            added(calls.setdefault(part.pop("index"), {}), part)
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": [*calls.values()]}
        return {"message": message, "logprobs": None, **made}

    def scores(self, output: OutputProcessor) -> Object:
        return prompt_logprobs(self._texts, output)


def _writers(api: Api, calling: Calling | None) -> tuple[ChatTemplate, Tokenizer]:
    """What makes the prompt of a conversation. Raises Unsupported where there is none."""
    template, tokenizer = api.template, api.processor.tokenizer
    if template is None or tokenizer is None:
        raise Unsupported(
            "messages", "the target has no chat template; /v1/completions takes plain prompts"
        )
    return template if calling is None else template.for_tools, tokenizer


async def read_prompt(api: Api, body: ChatBody, calling: Calling | None = None) -> tuple[int, ...]:
    """The conversation as token ids."""
    template, tokenizer = _writers(api, calling)
    messages = template.fitted(read_messages(body.messages))
    arguments = dict(body.chat_template_kwargs or {})
    for name in _KEYWORDS:
        if (value := getattr(body, name)) is not None:
            if name not in template.arguments:
                raise Unsupported(name, "the target's chat template has no such argument")
            arguments[name] = value
    tools = calling.tools if calling is not None else ()
    render = partial(template.render, arguments=arguments, tools=tools)
    long = len(str((messages, arguments, tools))) > LONG_TEXT
    text = await beside(long, _rendered, render, messages, body)
    # the template writes special tokens itself
    return await encoded(tokenizer, text, "messages", add_special=False)


def _rendered(render: Callable[..., str], messages: list[Mapping[str, Any]], body: ChatBody) -> str:
    last = bool(body.continue_final_message)
    begin = not last if body.add_generation_prompt is None else body.add_generation_prompt
    if last and begin:
        raise InvalidRequest("continue_final_message", "goes without add_generation_prompt")
    if not last:
        return render(messages, add_generation_prompt=begin)
    if messages[-1].get("tool_calls"):
        raise InvalidRequest("continue_final_message", "the last message calls tools: it is whole")
    said = str(messages[-1].get("content") or "")
    marked = {**messages[-1], "content": said + _HERE}
    return _cut_behind(render([*messages[:-1], marked], add_generation_prompt=False), said)


def _cut_behind(text: str, said: str) -> str:
    """Cuts the prompt `text` behind `said`, the last message, so that the answer continues it.
    Raises InvalidRequest if the template changes the message."""
    at = text.rfind(_HERE.strip())
    if at < 0 or said.strip() not in text:
        raise InvalidRequest(
            "continue_final_message", "the chat template does not show the last message as it is"
        )
    kept = text[:at]
    # a template that trims the marker's space would have trimmed the message's end too
    return kept if text[at : at + len(_HERE)] == _HERE else kept.rstrip()


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", "only beside logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _delta(parts: Sequence[AnswerPart]) -> Object:
    """The increments of one event, merged into one `delta` object."""
    made: Object = {}
    calls: dict[int, Object] = {}
    for part in parts:
        if part.call is None:
            kind = "reasoning_content" if part.reasoning else "content"
            added(made, {kind: part.reasoning or part.text})
            continue
        call = calls.setdefault(part.call, {"index": part.call})
        if part.name:
            call |= {"id": part.id, "type": "function", "function": {"name": part.name}}
        added(call, {"function": {"arguments": part.arguments}})
    return made | ({"tool_calls": list(calls.values())} if calls else {})
