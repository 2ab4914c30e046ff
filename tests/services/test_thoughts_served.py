"""Thoughts before an answer through HTTP: told apart, bounded, and followed by the answer's own
form, on the tiny pair.

The tiny target never learnt to think: it does where a budget has it begin.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.services.http_cell import HttpCell, in_schema, of_module, target_that_calls
from tests.services.test_tools_served import PARAMETERS, TOOLS

BUDGET = 6
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["plain", "süß"]}, "good": {"type": "boolean"}},
    "required": ["kind", "good"],
    "additionalProperties": False,
}
FORM = in_schema(SCHEMA)
TURNS: Any = [{"role": "user", "content": "def f"}]


def target_that_thinks(folder: Path) -> dict[str, Any]:
    settings = target_that_calls(folder)
    tokenizer = Path(settings["target"]) / "tokenizer.json"
    text = tokenizer.read_text(encoding="utf-8").replace("<|mask|>", "</think>")
    made = json.loads(text)
    made["added_tokens"][2]["special"] = False
    tokenizer.write_text(json.dumps(made), encoding="utf-8")
    return settings


cell = of_module(target_that_thinks)


def asked(cell: HttpCell, budget: int | None, **fields: Any) -> Any:
    more = {} if budget is None else {"extra_body": {"thinking_token_budget": budget}}
    return cell.chat(**{"max_tokens": 300, "temperature": 1.0, **more, **fields})


@pytest.mark.parametrize("budget", [0, 1, BUDGET])
def test_so_many_tokens_are_thought_and_the_form_follows(budget: int, cell: HttpCell) -> None:
    for rule in ("token", "block", "coupled"):
        extra = {"thinking_token_budget": budget, "return_token_ids": True}
        extra["speculation"] = {"rule": rule}
        made = asked(cell, None, response_format=FORM, extra_body=extra).choices[0]
        jsonschema.validate(json.loads(made.message.content), SCHEMA)
        thought = getattr(made.message, "reasoning_content", "")
        at = made.token_ids.index(2)
        begun = len("<think>\n")  # at most, in tokens
        assert at <= budget + begun
        assert bool(thought) <= bool(budget)
    cell.freed()


def test_a_stream_tells_thoughts_first_and_says_the_same(cell: HttpCell) -> None:
    whole = asked(cell, BUDGET, response_format=FORM, temperature=0.0).choices[0].message
    thought, said = "", ""
    for chunk in asked(cell, BUDGET, response_format=FORM, temperature=0.0, stream=True):
        delta = chunk.choices[0].delta
        more = getattr(delta, "reasoning_content", "") or ""
        assert not (more and said)
        thought, said = thought + more, said + (delta.content or "")
    assert (thought, said) == (whole.reasoning_content, whole.content)
    assert thought


def thought_tokens(choice: Any) -> int:
    """Those between the marks, by what each token says."""
    said = [one.token for one in choice.logprobs.content]
    begun = next(count for count in range(len(said)) if "<think>" in "".join(said[:count]))
    return said.index("</think>") - begun


def test_usage_counts_the_tokens_of_thoughts(cell: HttpCell) -> None:
    fields: Any = {"response_format": FORM, "logprobs": True}
    made = asked(cell, BUDGET, n=2, **fields)
    expected = sum(map(thought_tokens, made.choices))
    assert made.usage.completion_tokens_details.reasoning_tokens == expected > 2
    assert asked(cell, None, **fields).usage.completion_tokens_details.reasoning_tokens == 0
    fields["temperature"] = 0.0
    choice = asked(cell, BUDGET, **fields).choices[0]
    *_, last = asked(cell, BUDGET, stream=True, stream_options={"include_usage": True}, **fields)
    assert last.usage.completion_tokens_details.reasoning_tokens == thought_tokens(choice)
    asks = {"thinking_token_budget": BUDGET, "temperature": 0.0}
    form = {"format": {"type": "json_schema", "name": "thing", "schema": SCHEMA}}
    body = {"input": "def f", "max_output_tokens": 300, "text": form, **asks}
    usage = cell.post("/v1/responses", body).json()["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == thought_tokens(choice)
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": TURNS, "max_tokens": 300, "output_config": form, **asks}
    usage = cell.post("/v1/messages", body).json()["usage"]
    assert usage["output_tokens_details"]["thinking_tokens"] == thought_tokens(choice)


def test_a_forced_call_may_be_thought_about(cell: HttpCell) -> None:
    made = asked(
        cell, BUDGET, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    ).choices[0]
    (call,) = made.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert made.finish_reason == "tool_calls"


def test_an_answer_without_a_form_follows_thoughts_too(cell: HttpCell) -> None:
    made = asked(cell, BUDGET, temperature=0.0, max_tokens=40).choices[0].message
    assert made.reasoning_content
    assert made.content


def test_other_interfaces_tell_of_thoughts(cell: HttpCell) -> None:
    with cell.claude() as claude:
        fields: Any = {"model": "tiny", "max_tokens": 40, "messages": TURNS}
        fields["thinking"] = {"type": "enabled", "budget_tokens": BUDGET}
        with claude.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for made in (claude.messages.create(**fields), streamed):
            assert [block.type for block in made.content] == ["thinking", "text"]
    extra = {"thinking_token_budget": BUDGET}
    said = cell.openai().responses.create(
        model="tiny", input="def f", max_output_tokens=40, extra_body=extra
    )
    assert [item.type for item in said.output] == ["reasoning", "message"]


@pytest.mark.parametrize("budget", [-1, 1 << 20])
def test_a_budget_beyond_its_bounds_is_refused(budget: int, cell: HttpCell) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(cell, budget, response_format=FORM)
    assert refused.value.param == "thinking_token_budget"
    for name, fields in (
        ("thinking_token_budget", {"thinking_token_budget": budget}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": budget}}),
    ):
        told = cell.post("/v1/messages", {"max_tokens": 4, "messages": TURNS, **fields}).json()
        assert told["error"]["message"].startswith(f"{name}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": in_schema({"uniqueItems": True})},
        {"extra_body": {"thinking_token_budget": BUDGET, "structured_outputs": {"regex": "(?=a)"}}},
    ],
)
def test_a_form_behind_thoughts_that_cannot_be_kept_is_refused_by_its_own_name(
    fields: Any, cell: HttpCell
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(cell, BUDGET, **fields)
    assert refused.value.param == list(fields.get("extra_body", fields))[-1]
