"""litellm."""

import json
from typing import Any

import litellm

from tests.clients.calling import TOOL, Thing, check, run

USER = [{"role": "user", "content": "def f"}]
TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}


def ask(url: str, **more: Any) -> Any:
    given = {
        "model": "openai/tiny",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": USER,
        "max_tokens": 300,
    }
    return litellm.completion(**{**given, **more})


def completion(url: str) -> None:
    whole = ask(url, temperature=0).choices[0].message.content
    parts = ask(url, temperature=0, stream=True)
    assert whole == "".join(part.choices[0].delta.content or "" for part in parts)


def tools(url: str) -> None:
    (call,) = ask(url, parallel_tool_calls=False, **TOOLS).choices[0].message.tool_calls
    check(json.loads(call.function.arguments))
    parts = list(ask(url, parallel_tool_calls=False, stream=True, **TOOLS))
    (call,) = litellm.stream_chunk_builder(parts).choices[0].message.tool_calls
    check(json.loads(call.function.arguments))


def response_format(url: str) -> None:
    Thing.model_validate_json(ask(url, response_format=Thing).choices[0].message.content)


def messages(url: str) -> None:
    whole = ask(url, model="anthropic/tiny", api_base=url, temperature=0)
    assert whole.choices[0].message.content == ask(url, temperature=0).choices[0].message.content
    (call,) = (
        ask(url, model="anthropic/tiny", api_base=url, parallel_tool_calls=False, **TOOLS)
        .choices[0]
        .message.tool_calls
    )
    check(json.loads(call.function.arguments))


def responses(url: str) -> None:
    made = litellm.responses(
        model="openai/tiny",
        api_base=f"{url}/v1",
        api_key="none",
        input="def f",
        max_output_tokens=8,
    )
    assert made.output[0].content[0].text


run(
    {
        "litellm `completion`": completion,
        "litellm `completion` (`tools`)": tools,
        "litellm `completion` (`response_format`)": response_format,
        "litellm `completion` of `anthropic/`": messages,
        "litellm `responses`": responses,
    }
)
