"""Anthropic's Messages and OpenAI's Responses by their clients, held to chat, on the tiny pair."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import jsonschema
import openai
import pydantic
import pytest

from tests.services.http_cell import HttpCell, of_module, target_that_calls
from tests.services.test_tools_served import PARAMETERS

USER: Any = {"role": "user", "content": "def f"}
WEATHER: Any = {"name": "weather", "description": "Of a city."}
FUNCTION: Any = {"type": "function", **WEATHER, "parameters": PARAMETERS}
TOOL: Any = {**WEATHER, "input_schema": PARAMETERS}
USE: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": 3}
CALL: Any = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": 3}
ONCE: Any = {"type": "any", "disable_parallel_tool_use": True}
GREEDY: Any = {"extra_body": {"temperature": 0.0}}  # the newest client has no word for it
CALLING: Any = {"model": "tiny", "messages": [USER], "tools": [TOOL], **GREEDY}


UNKEPT: Any = {"type": "json_schema", "schema": {"type": "no"}}
IMAGE: Any = {"type": "image", "source": {}}


def said(role: str, *parts: Any) -> dict[str, Any]:
    """A turn of such parts."""
    return {"role": role, "content": parts}


class Thing(pydantic.BaseModel):
    kind: Literal["plain", "süß"]
    good: bool


cell = of_module(target_that_calls)


@pytest.fixture
def claude(cell: HttpCell) -> Iterator[anthropic.Anthropic]:
    with cell.claude() as made:
        yield made


@pytest.fixture
def client(cell: HttpCell) -> Iterator[openai.OpenAI]:
    with cell.openai() as made:
        yield made


def chat(cell: HttpCell, *messages: Any, **fields: Any) -> Any:
    return cell.chat(messages=messages, **{"temperature": 0.0, **fields})


def read(made: anthropic.types.Message) -> int:
    """Tokens of its prompt."""
    return made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)


def test_a_message_says_what_a_chat_says(claude: anthropic.Anthropic, cell: HttpCell) -> None:
    fields: Any = {"model": "tiny", "max_tokens": 24, **GREEDY}
    said = chat(cell, {"role": "system", "content": "Be brief."}, USER, max_tokens=24)
    made = claude.messages.create(
        messages=[USER], system=[{"type": "text", "text": "Be brief."}], **fields
    )
    assert made._request_id == made.id
    (block,) = made.content
    assert (block.type, block.text) == ("text", said.choices[0].message.content)
    assert (made.role, made.model, made.stop_reason) == ("assistant", "tiny", "max_tokens")
    assert read(made) == said.usage.prompt_tokens
    assert made.usage.output_tokens == said.usage.completion_tokens
    brief: Any = {"messages": [USER], "system": "Be brief."}
    counted = claude.messages.count_tokens(model="tiny", **brief)
    assert counted.input_tokens == said.usage.prompt_tokens

    cell.coordinator.cell.admission.draining = True
    try:
        again = claude.messages.count_tokens(model="tiny", **brief)
        with pytest.raises(anthropic.APIStatusError, match="draining"):
            claude.messages.create(messages=[USER], **fields)
    finally:
        cell.coordinator.cell.admission.draining = False
    assert again == counted, "which generates nothing and needs no room"

    with claude.messages.stream(**brief, **fields) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == block.text
    assert [each.text for each in whole.content] == [block.text]
    assert whole.usage.output_tokens == made.usage.output_tokens
    *_, last, _ = claude.messages.create(**brief, **fields, stream=True)
    for told in (made, last.delta):
        assert {"stop_reason", "stop_sequence", "stop_details"} <= told.model_fields_set

    stop = block.text[8:11]
    stopped = claude.messages.create(**brief, stop_sequences=[stop], **fields)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == block.text[: block.text.index(stop)]
    cell.freed()


def test_a_message_goes_on_with_the_assistant_s_turn(
    claude: anthropic.Anthropic, cell: HttpCell
) -> None:
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    for begun in ("return x", ""):
        turns: Any = [USER, {"role": "assistant", "content": begun}]
        said = chat(cell, *turns, max_tokens=8, extra_body=extra)
        made = claude.messages.create(model="tiny", max_tokens=8, messages=turns, **GREEDY)
        assert made.content[0].text == said.choices[0].message.content
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "so: ", "tool_calls": [call]}
    with pytest.raises(openai.BadRequestError, match="continue_final_message: the last message"):
        chat(cell, USER, calling, extra_body=extra)


def test_messages_call_tools_and_take_their_results(claude: anthropic.Anthropic) -> None:
    fields: Any = {**CALLING, "max_tokens": 300}
    made = claude.messages.create(tool_choice=ONCE, **fields)
    (block,) = made.content
    assert (block.type, block.name, made.stop_reason) == ("tool_use", "weather", "tool_use")
    jsonschema.validate(block.input, PARAMETERS)
    with claude.messages.stream(tool_choice=ONCE, **fields) as stream:
        pieces = [event for event in stream if event.type == "input_json"]
        whole = stream.get_final_message()
    assert len(pieces) > 2, "letter by letter"
    assert whole.content[0].input == block.input
    named = claude.messages.create(tool_choice={"type": "tool", "name": "weather"}, **fields)
    assert named.content[0].input == block.input

    rain, go_on = ({"type": "text", "text": text} for text in ("rain", "Go on."))
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": [rain]}
    turns = [USER, made.to_param(), {"role": "user", "content": [result, go_on]}]
    after = claude.messages.create(**{**fields, "messages": turns, "max_tokens": 4})
    assert read(after) > made.usage.input_tokens


def test_a_call_that_was_cut_goes_back_as_it_was_told(
    claude: anthropic.Anthropic, cell: HttpCell
) -> None:
    short: Any = {**CALLING, "tool_choice": {"type": "tool", "name": "weather"}}
    whole = claude.messages.create(max_tokens=300, **short).usage.output_tokens
    made = claude.messages.create(max_tokens=whole - 20, **short)
    (block,) = made.content
    assert made.stop_reason == "max_tokens"
    assert isinstance(block.input, str), "it is no JSON yet"
    told: Any = {"content": "This is no JSON."}
    wrong: Any = {"type": "tool_result", "tool_use_id": block.id, "is_error": True, **told}
    turns = [USER, made.to_param(), {"role": "user", "content": [wrong]}]
    after = claude.messages.create(**{**short, "messages": turns, "max_tokens": 4})
    function: Any = {"name": "weather", "arguments": block.input}
    said: Any = {"id": block.id, "type": "function", "function": function}
    turns = [USER, {"role": "assistant", "tool_calls": [said]}]
    turns.append({"role": "tool", "tool_call_id": block.id, **told})
    tool = {"type": "function", "function": {**WEATHER, "parameters": PARAMETERS}}
    again = chat(cell, *turns, tools=[tool], max_tokens=4)
    assert again.usage.prompt_tokens == read(after)


def test_a_message_in_a_form(claude: anthropic.Anthropic) -> None:
    made = claude.messages.parse(model="tiny", max_tokens=200, messages=[USER], output_format=Thing)
    assert isinstance(made.parsed_output, Thing)


def test_anthropic_s_own_loop_over_tools_goes_on_without_a_thread(
    claude: anthropic.Anthropic,
) -> None:
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(city: Literal["here", "there"]) -> str:
        """Of a city.

        Args:
            city: Which one.
        """
        asked.append(city)
        return "rain"

    fields: Any = {"model": "tiny", "max_tokens": 200, "messages": [USER], "tools": [weather]}
    runner = claude.beta.messages.tool_runner(**fields, tool_choice=ONCE, max_iterations=2)
    assert [message.stop_reason for message in runner] == ["tool_use", "tool_use"]
    assert asked


def test_an_unknown_model_is_not_found_in_anthropic_s_words(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        claude.messages.create(model="claude", max_tokens=4, messages=[USER])


@pytest.mark.parametrize("size", ["prompt", "answer"])
@pytest.mark.parametrize("route", ["chat/completions", "completions", "responses", "messages"])
def test_what_exceeds_the_context_is_told_in_words_that_clients_know(
    cell: HttpCell, route: str, size: str
) -> None:
    said = "def f" if size == "answer" else "def f" * 3000
    asked = {"completions": "prompt", "responses": "input"}.get(route, "messages")
    most = "max_output_tokens" if route == "responses" else "max_tokens"
    body = {asked: [{**USER, "content": said}] if asked == "messages" else said, most: 100_000}
    answer = cell.post(f"/v1/{route}", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert re.search(r"this model's maximum context length is \d+ tokens", error["message"])
    known = "the prompt is too long" if size == "prompt" else "exceed context limit"
    assert known in error["message"]
    if route != "messages":
        assert error["code"] == "context_length_exceeded"


def test_a_response_says_what_a_chat_says(client: openai.OpenAI, cell: HttpCell) -> None:
    said = chat(cell, {"role": "system", "content": "Be brief."}, USER, max_tokens=24)
    fields: Any = {"model": "tiny", "max_output_tokens": 24, "temperature": 0.0}
    fields["instructions"] = "Be brief."
    made = client.responses.create(input="def f", **fields)
    assert made.output_text == said.choices[0].message.content
    assert (made.status, getattr(made, "store", False)) == ("incomplete", False)
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.usage.input_tokens == said.usage.prompt_tokens
    assert made.usage.output_tokens == said.usage.completion_tokens
    kinds, text, numbers = [], "", []
    with client.responses.stream(input=[USER], **fields) as stream:
        for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
            if event.type == "response.incomplete":
                assert event.response.output_text == made.output_text
    assert text == made.output_text
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.incomplete"
    assert numbers == list(range(len(numbers)))
    cell.freed()


def test_responses_call_tools_and_take_their_results(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "max_output_tokens": 300, "temperature": 0.0}
    fields["tools"] = [FUNCTION]
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    made = client.responses.create(input="def f", **once, **fields)
    (call,) = made.output
    assert (call.type, call.name, made.status) == ("function_call", "weather", "completed")
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    with client.responses.stream(input="def f", **once, **fields) as stream:
        events = list(stream)
    arguments = "response.function_call_arguments.delta"
    pieces = [event.delta for event in events if event.type == arguments]
    assert len(pieces) > 2, "letter by letter"
    assert "".join(pieces) == call.arguments
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = client.responses.create(
        input=[USER, *made.output, output], **{**fields, "max_output_tokens": 4}
    )
    assert after.usage.input_tokens > made.usage.input_tokens


def test_a_response_in_a_form(client: openai.OpenAI) -> None:
    made = client.responses.parse(
        model="tiny", input="x =", text_format=Thing, max_output_tokens=200
    )
    assert isinstance(made.output_parsed, Thing)


MESSAGES: list[tuple[Any, str]] = [
    ({"messages": [said("user", IMAGE)]}, "messages[0].content[0].type"),
    ({"system": [{"text": "x"}]}, "system[0]: must"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role"),
    ({"messages": [said("assistant", USE)]}, "messages[0].content[0].input"),
    ({"messages": [said("assistant", {**USE, "input": {}})]}, "messages: the last message"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"container": "x"}, "container: is not supported: nothing is kept"),
    ({"thread": {"type": "create"}}, "thread: is not supported: nothing is kept"),
    ({"mcp_servers": [{}]}, "mcp_servers: is not supported"),
    ({"what": 1}, "what: is not a field"),
    ({"temperature": -1.0}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"output_config": {"format": UNKEPT}}, "output_config.format"),
]
RESPONSES: list[tuple[Any, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [said("user", {"type": "input_image"})]}, "input[0].content[0].type"),
    ({"input": [said("user", {"text": "x"})]}, "input[0].content[0]"),
    ({"input": []}, "input"),
    ({"input": [USER, CALL, USER]}, "input[1].arguments"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"n": 2}, "n"),
    ({"text": 1}, "text"),
    ({"label": "x"}, "label"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"text": {"format": {**UNKEPT, "name": "x"}}}, "text.format"),
]


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        *(("messages", *row) for row in MESSAGES),
        *(("responses", *row) for row in RESPONSES),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_an_interface_has_not_is_refused_by_name(
    path: str, fields: dict[str, Any], named: str, stream: bool, cell: HttpCell
) -> None:
    usual = {"max_tokens": 4, "messages": [USER]} if path == "messages" else {"input": "x"}
    told = cell.refused(f"/v1/{path}", {**usual, "stream": stream, **fields})
    assert told.startswith(named if ": " in named else f"{named}: ")
    cell.freed()
