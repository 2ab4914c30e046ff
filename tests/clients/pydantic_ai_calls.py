"""pydantic-ai."""

from typing import Any

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.calling import Thing, run


def agent(url: str, output: Any, kind: Any = OpenAIChatModel) -> Agent:
    model = kind("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    return Agent(model, output_type=output, model_settings={"max_tokens": 300})


def text(url: str) -> None:
    assert agent(url, str).run_sync("def f").output


def tool_output(url: str) -> None:
    assert isinstance(agent(url, ToolOutput(Thing)).run_sync("def f").output, Thing)


def native_output(url: str) -> None:
    assert isinstance(agent(url, NativeOutput(Thing)).run_sync("def f").output, Thing)


def responses(url: str) -> None:
    assert isinstance(
        agent(url, NativeOutput(Thing), OpenAIResponsesModel).run_sync("def f").output, Thing
    )


run(
    {
        "pydantic-ai `Agent`": text,
        "pydantic-ai `Agent` (`ToolOutput`)": tool_output,
        "pydantic-ai `Agent` (`NativeOutput`)": native_output,
        "pydantic-ai `OpenAIResponsesModel`": responses,
    }
)
