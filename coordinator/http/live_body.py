"""Bodies of the live page's requests. Values are judged where every request's are."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark.errors import InvalidRequest

MAX_CONTENT = 20_000  # characters of a message
MAX_MESSAGES = 1024
MAX_TOKENS = 1024

Rule = Literal["", "token", "block", "coupled"]
Policy = Annotated[str, Field(max_length=40)]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """From JSON; InvalidRequest names the first field that is wrong."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            field, problem = ".".join(map(str, first["loc"]))[:100], str(first["msg"])
            raise InvalidRequest(field or "body", problem[:1].lower() + problem[1:300]) from None


class Message(_Wish):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CONTENT)]


class AnswerWish(_Wish):
    """An answer to a conversation, its rounds explained. Nothing is kept of it: the page sends all of it each time."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 256
    temperature: float = 0.0
    policy: Policy = ""
    rule: Rule = ""
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    drafter: str = ""


class LoadWish(_Wish):
    """Background streams, and how they are sped up."""

    streams: Annotated[int, Field(ge=0, le=1024)]
    policy: Policy = ""
    rule: Rule = ""
