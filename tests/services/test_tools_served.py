"""Tools through the official client: calls that are forced, strict or free, whole and streamed, on
the tiny pair.

The tiny target goes on with texts and was never taught to call: a call comes where a form asks for
it.
"""

import json
from typing import Any

import jsonschema
import openai
import pytest

from coordinator.reception.tokenizer import Tokenizer
from tests.services.http_cell import TARGET, HttpCell, in_schema, of_module, target_that_calls

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, **{"parameters": PARAMETERS, **more}}}


UNKEPT = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
KEPT = in_schema({"type": "integer"})
FREE = [tool("f", parameters=UNKEPT)]
STRICT = [tool("f", parameters=UNKEPT, strict=True)]
TOOLS = [tool("weather", description="What it will be like."), tool("alarm")]


cell = of_module(target_that_calls)


def asked(cell: HttpCell, **fields: Any) -> Any:
    return cell.chat(**{"max_tokens": 300, "tools": TOOLS, **fields})


def check(call: Any) -> None:
    assert call.type == "function"
    assert call.id.startswith("call_")
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_a_named_tool_is_called_once_with_arguments_that_fit(cell: HttpCell) -> None:
    choice = {"type": "function", "function": {"name": "alarm"}}
    (made,) = asked(cell, tool_choice=choice, temperature=1.0).choices
    assert made.finish_reason == "tool_calls"
    assert made.message.content is None
    (call,) = made.message.tool_calls
    assert call.function.name == "alarm"
    check(call)
    cell.freed()


def test_a_call_that_is_required_comes_and_several_may(cell: HttpCell) -> None:
    for parallel in (True, False):
        fields = {"parallel_tool_calls": parallel, "temperature": 1.0, "n": 2}
        made = asked(cell, tool_choice="required", **fields)
        for choice in made.choices:
            calls = choice.message.tool_calls
            assert calls
            assert parallel or len(calls) == 1
            for call in calls[:-1] if choice.finish_reason == "length" else calls:
                # the last may be cut
                assert call.function.name in ("weather", "alarm")
                check(call)


def test_a_call_that_a_stop_string_cuts_is_none_to_run(cell: HttpCell) -> None:
    for stop, reason in (("days", "stop"), ("</tool_call>", "tool_calls")):
        (made,) = asked(cell, tool_choice="required", stop=[stop], temperature=0.0).choices
        assert (made.model_extra["stop_reason"], made.finish_reason) == (stop, reason)


def test_streamed_calls_are_those_of_the_whole_answer(cell: HttpCell) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0.0}
    (call,) = asked(cell, **fields).choices[0].message.tool_calls
    name, arguments, pieces, finish = "", "", 0, None
    for chunk in asked(cell, stream=True, **fields):
        (choice,) = chunk.choices
        said = choice.finish_reason or choice.delta.model_dump(exclude_none=True)
        assert said, "it says something"
        finish = choice.finish_reason or finish
        assert not choice.delta.content
        for delta in choice.delta.tool_calls or ():
            assert delta.index == 0
            name += delta.function.name or ""
            arguments += delta.function.arguments
            pieces += 1
    assert (name, arguments, finish) == (call.function.name, call.function.arguments, "tool_calls")
    assert pieces > 2, "letter by letter"


def test_a_free_answer_is_text_and_its_tools_are_in_the_prompt(cell: HttpCell) -> None:
    free = asked(cell, temperature=0.0, max_tokens=8)
    assert free.choices[0].message.tool_calls is None
    assert free.choices[0].finish_reason == "length"
    none = asked(cell, temperature=0.0, max_tokens=8, tool_choice="none")
    bare = asked(cell, temperature=0.0, max_tokens=8, tools=openai.omit)
    assert none.choices[0].message.content == bare.choices[0].message.content
    assert free.usage.prompt_tokens > none.usage.prompt_tokens == bare.usage.prompt_tokens


def test_an_answer_that_calls_nothing_has_its_format(cell: HttpCell) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    given = in_schema(schema)
    strict: Any = {"tools": [tool("alarm", strict=True)], "parallel_tool_calls": False}
    strict["response_format"] = given
    for choice in asked(cell, temperature=1.0, n=4, **strict).choices:
        if choice.message.tool_calls:
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            check(choice.message.tool_calls[0])
        else:
            jsonschema.validate(json.loads(choice.message.content), schema)
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    (forced,) = asked(cell, response_format=given, **once).choices
    check(forced.message.tool_calls[0])
    assert forced.finish_reason == "tool_calls"


def test_results_go_back_into_the_conversation(cell: HttpCell) -> None:
    function = {"name": "alarm", "arguments": '{"city": "x", "days": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "wake me"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    told: Any = {"tools": [tool("alarm", strict=True)], "extra_body": {"return_token_ids": True}}
    made = asked(cell, messages=messages, temperature=1.0, max_tokens=8, **told)
    tokenizer = Tokenizer.load(TARGET)
    assert tokenizer is not None
    prompt = tokenizer.decode(made.prompt_token_ids, skip_special=False)
    written = '{"name": "alarm", "arguments": {"city": "x", "days": 1}}'
    _, called, answered = prompt.partition(written)
    assert called
    assert "<tool_response>\ndone\n</tool_response>" in answered


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(
            ({"tool_choice": {"type": "function", "function": named}}, "tool_choice.function.name")
            for named in ({"name": "none"}, {}, {"name": 3})
        ),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"description": "x"}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [tool("a"), {"type": "function", "function": {"name": "b", "y": 1}}]},
            "tools[1].function.y",
        ),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name"),
        ({"tools": openai.omit, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"response_format": in_schema({"type": 1})}, "response_format"),
        ({"tool_choice": "required", "tools": FREE}, "tools"),
        ({"tool_choice": "required", "tools": FREE, "response_format": KEPT}, "tools"),
        ({"tools": STRICT}, "tools"),
        ({"tools": STRICT, "response_format": KEPT}, "response_format or tools"),
        ({"extra_body": {"structured_outputs": {"json": UNKEPT}}}, "structured_outputs"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "function", "content": "b"}]},
            "messages[1].role",
        ),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    fields: dict[str, Any], param: str, cell: HttpCell
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(cell, **fields)
    assert refused.value.param == param
