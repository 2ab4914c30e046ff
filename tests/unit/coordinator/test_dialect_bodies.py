"""Bodies and answers in other words, where they are not what clients and targets usually write."""

from __future__ import annotations

import json

import pytest

from coordinator.answers.answer import End, Reason
from coordinator.dialects.messages import MessageWriter
from coordinator.dialects.responses import ResponsesBody, ResponseWriter
from coordinator.http.calls import Part
from coordinator.http.schema import validated

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
    for part in (Part(call=0, name="f", id="call_1"), Part(call=0, arguments=written)):
        list(writer.part(part))
    list(writer.end(End(Reason.STOP), USAGE))
    told = json.dumps(writer.whole, ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(told)["content"][0]["input"] == written


def test_what_is_no_number_in_json_is_null_where_an_answer_says_it_again() -> None:
    body = validated(ResponsesBody, b'{"input": "x", "metadata": {"a": NaN, "b": 1e999}}')
    told = json.dumps(ResponseWriter(body, "resp_1", "tiny").whole, allow_nan=False)
    assert json.loads(told)["metadata"] == {"a": None, "b": None}
