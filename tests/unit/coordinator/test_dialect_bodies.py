"""Bodies and answers in other words, where they are not what clients and targets usually write."""

import contextlib
import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from coordinator.answers.answer import End, Reason
from coordinator.dialects.messages import MessagesBody, MessageWriter, translated
from coordinator.dialects.responses import ResponsesBody, ResponseWriter
from coordinator.dialects.telling import _event
from coordinator.http.body import MOST_ERRORS, validated
from coordinator.http.calls import CallReader
from coordinator.http.reader import AnswerPart
from coordinator.http.schema import ChatBody, CompletionBody, form_of
from coordinator.http.system import DetokenizeBody, TokenizeBody
from coordinator.http.template import ChatTemplate
from coordinator.http.tools import FORMATS
from dspark.errors import InvalidRequest, Unsupported
from dspark.types import MAX_BIASED

USAGE = {
    "prompt_tokens": 1,
    "completion_tokens": 1,
    "total_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


@pytest.mark.parametrize(
    "written", ['{"a": NaN}', '{"a": -1e999}', '{"a": "\\ud83d"}', '{"a": ', "[" * 100_000]
)
def test_arguments_that_cannot_be_told_as_json_stay_as_they_were_written(written: str) -> None:
    writer = MessageWriter("msg_1", "tiny")
    for part in (AnswerPart(call=0, name="f", id="call_1"), AnswerPart(call=0, arguments=written)):
        list(writer.part(part))
    list(writer.end(End(Reason.STOP), USAGE, called=True))
    told = json.dumps(writer.whole, ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(told)["content"][0]["input"] == written


def test_what_is_no_number_in_json_is_null_where_an_answer_says_it_again() -> None:
    body = validated(ResponsesBody, b'{"input": "x", "metadata": {"a": NaN, "b": 1e999}}')
    told = json.dumps(ResponseWriter(body, "resp_1", "tiny").whole, allow_nan=False)
    assert json.loads(told)["metadata"] == {"a": None, "b": None}


def writers() -> tuple[ResponseWriter, MessageWriter]:
    body = validated(ResponsesBody, b'{"input": "x"}')
    return ResponseWriter(body, "resp_1", "tiny"), MessageWriter("msg_1", "tiny")


def test_an_answer_that_was_aborted_is_not_told_as_whole() -> None:
    aborted, (response, message) = End(Reason.ABORT), writers()
    for writer in (response, message):
        assert [
            *writer.begin(USAGE),
            *writer.part(AnswerPart(text="text")),
            *writer.end(aborted, USAGE, called=False),
        ]
    assert (response.whole["status"], response.whole["incomplete_details"]) == ("incomplete", None)
    assert message.whole["stop_reason"] is None


def test_a_call_that_the_target_left_open_is_none_to_run() -> None:
    reader = CallReader(FORMATS["hermes"])
    parts = reader.read(['<tool_call>\n{"name": "f", "arguments": {"a": '], over=False)
    assert not reader.called
    response, message = writers()
    for writer in (response, message):
        assert [event for part in parts for event in writer.part(part)]
        assert list(writer.end(End(Reason.STOP), USAGE, called=reader.called))
    assert message.whole["stop_reason"] == "end_turn"
    assert response.whole["output"][0]["status"] == "incomplete"


def test_labels_and_values_that_ask_for_nothing_pass() -> None:
    """As Codex and Claude Code send them."""
    labels = b'{"x-codex-installation-id": "1"}'
    assert validated(ResponsesBody, b'{"input": "x", "client_metadata": ' + labels + b"}")
    for keep, passes in (('"all"', True), ('{"type": "thinking_turns", "value": 1}', False)):
        kept = '{"type": "clear_thinking_20251015", "keep": ' + keep + "}"
        for edits in (f"[{kept}]", "[]") if passes else (f"[{kept}]",):
            asked = f'"max_tokens": 9, "messages": [], "context_management": {{"edits": {edits}}}'
            with contextlib.nullcontext() if passes else pytest.raises(Unsupported):
                assert validated(MessagesBody, f"{{{asked}}}".encode())


def test_a_budget_of_thoughts_is_for_targets_that_think() -> None:
    thinking = b'{"type": "enabled", "budget_tokens": 31999}'
    body = validated(
        MessagesBody, b'{"max_tokens": 9, "messages": [], "thinking": ' + thinking + b"}"
    )
    for source, budget in (("plain", None), ("<think></think>", 31999), ("<|channel|>", 31999)):
        assert translated(body, ChatTemplate(source)).fields["thinking_token_budget"] == budget


def test_an_event_is_two_lines_for_clients_that_split_at_any_line_end() -> None:
    told = _event({"type": "delta", "text": "a\u2028b\u2029c\u0085d"}).decode()
    named, data = told.removesuffix("\n\n").splitlines()
    assert named == "event: delta"
    assert json.loads(data.removeprefix("data: "))["text"] == "a\u2028b\u2029c\u0085d"


WRONG = [0, {}] * 500  # neither is what a list of a body holds
LISTS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (ChatBody, {"messages": WRONG}, "messages[0]"),
    (ChatBody, {"messages": [], "tools": WRONG}, "tools[0]"),
    (ChatBody, {"messages": [], "stop_token_ids": [{}] * 1000}, "stop_token_ids[0]"),
    (ChatBody, {"messages": [], "stop": WRONG}, "stop"),
    (CompletionBody, {"prompt": [{}] * 1000}, "prompt"),
    (CompletionBody, {"prompt": "a", "structured_outputs": {"choice": WRONG}}, "structured"),
    (MessagesBody, {"model": "m", "max_tokens": 1, "messages": WRONG}, "messages[0]"),
    (ResponsesBody, {"model": "m", "input": WRONG}, "input"),
    (TokenizeBody, {"messages": WRONG}, "messages[0]"),
    (DetokenizeBody, {"tokens": [{}] * 1000}, "tokens[0]"),
]


@pytest.mark.parametrize(("kind", "body", "field"), LISTS)
def test_a_list_is_refused_at_its_first_wrong_item(
    kind: type[BaseModel], body: dict[str, Any], field: str
) -> None:
    content = json.dumps(body).encode()
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(content)
    assert caught.value.error_count() < 10, "an error for each item would stop every stream"
    with pytest.raises(InvalidRequest) as told:
        validated(kind, content)
    assert told.value.field.startswith(field)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (["a", 5], "prompt[1]: input should be a valid string"),
        ([5, "a"], "prompt[1]: input should be a valid integer"),
        ([[5], [6, "a"]], "prompt[1][1]: input should be a valid integer"),
        (5, "prompt: input should be a valid string"),
    ],
)
def test_an_item_of_another_kind_than_those_before_it_is_named(prompt: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        validated(CompletionBody, json.dumps({"prompt": prompt}).encode())
    assert str(told.value) == said


def test_who_gives_no_form_is_told_all_there_are() -> None:
    body = CompletionBody.model_validate({"prompt": "a", "structured_outputs": {}})
    for name in ("json", "regex", "choice", "grammar", "json_object", "structural_tag"):
        with pytest.raises(InvalidRequest, match=rf"\b{name}\b"):
            form_of(body)


def test_names_are_told_in_short_and_not_of_an_object_of_very_many_wrong_values() -> None:
    many = f"body: {MOST_ERRORS + 1} values are wrong"
    for wrong, told in (
        ({"logit_bias": dict.fromkeys(map(str, range(MAX_BIASED)), "much")}, "logit_bias: input"),
        ({"logit_bias": dict.fromkeys(map(str, range(MOST_ERRORS + 1)), "much")}, many),
        ({"speculation": {"k" * 1000: 1}}, f"speculation.{'k' * 100}: extra"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            validated(CompletionBody, json.dumps({"prompt": "a", **wrong}).encode())
        assert str(refused.value).startswith(told)
