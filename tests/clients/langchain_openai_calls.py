"""langchain-openai."""

import json
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import LengthFinishReasonError

from tests.clients.calling import TOOL, Thing, check, run


def model(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="tiny", max_tokens=300, max_retries=0, **more
    )


def invoke(url: str) -> None:
    said = model(url, temperature=0).invoke("def f")
    assert said.content
    assert said.usage_metadata["output_tokens"] > 0


def stream(url: str) -> None:
    text = "".join(part.content for part in model(url, temperature=0).stream("def f"))
    assert text == model(url, temperature=0).invoke("def f").content


def bind_tools(url: str) -> None:
    bound = model(url).bind_tools([{"type": "function", "function": TOOL}], tool_choice="any")
    asked = [HumanMessage("def f")]
    said = bound.invoke(asked, parallel_tool_calls=False)
    (call,) = said.tool_calls
    assert call["name"] == "weather"
    check(call["args"])
    told = [*asked, said, ToolMessage("rain", tool_call_id=call["id"])]
    check(bound.invoke(told, parallel_tool_calls=False).tool_calls[0]["args"])
    streamed: Any = None
    for part in bound.stream(asked, parallel_tool_calls=False):
        streamed = part if streamed is None else streamed + part
    check(streamed.tool_calls[0]["args"])


def structured(method: str) -> Any:
    def call(url: str) -> None:
        assert isinstance(
            model(url).with_structured_output(Thing, method=method).invoke("x ="), Thing
        )

    return call


def json_mode(url: str) -> None:
    ended = 0
    for seed in range(8):
        # coupled, so that a seed repeats its answer: some of these reach no end, whoever runs them
        drawn = model(
            url,
            temperature=1,
            stop=["}"],
            seed=seed,
            extra_body={"speculation": {"rule": "coupled"}},
        )
        asked = drawn.with_structured_output(None, method="json_mode", include_raw=True)
        try:
            raw = asked.invoke("Answer with JSON.")["raw"]
        except LengthFinishReasonError as cut:
            raw = AIMessage(cut.completion.choices[0].message.content)
        assert raw.content.lstrip().startswith("{"), raw.content
        if raw.response_metadata.get("finish_reason") == "stop" and raw.content.count("{") == 1:
            json.loads(raw.content + "}")
            ended += 1
    assert ended, "an answer that ended is JSON"


def responses(url: str) -> None:
    said = model(url, use_responses_api=True, temperature=0).invoke("def f")
    assert said.text
    forced = model(url, use_responses_api=True).with_structured_output(Thing, method="json_schema")
    assert isinstance(forced.invoke("x ="), Thing)


run(
    {
        "langchain-openai `invoke`": invoke,
        "langchain-openai `stream`": stream,
        "langchain-openai `bind_tools`": bind_tools,
        "langchain-openai `with_structured_output` (`json_schema`)": structured("json_schema"),
        "langchain-openai `with_structured_output` (`function_calling`)": structured(
            "function_calling"
        ),
        "langchain-openai `with_structured_output` (`json_mode`)": json_mode,
        "langchain-openai `use_responses_api`": responses,
    }
)
