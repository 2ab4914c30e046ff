"""From a request body to running answers: one gRPC message per prompt, and one stream of their
output."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import Request

from coordinator.http.api import Api
from coordinator.http.errors import ID_HEADER, NAMED, id_headers, param_of
from coordinator.http.schema import Body, Form
from coordinator.reception.output_processor import OutputChunk
from coordinator.reception.response_stream import ResponseStream
from coordinator.requests.validation import check_count
from dspark.client.request import Options, write_request
from dspark.errors import InvalidRequest, naming
from dspark.numerals import shown as as_shown

MAX_PROMPTS = 256
_KEY = re.compile("0|[1-9][0-9]{0,9}")  # decimal, one spelling for each id
GIVEN = 64  # characters of a client's request id that ours keeps

# Fields with the name of an option of the gRPC interface; `sampling` converts those that differ in
# form.
_PLAIN = Options.__annotations__.keys() & Body.model_fields.keys()

Prompt = str | Sequence[int]


def sampling(body: Body, form: Form | None, **more: int | None) -> dict[str, Any]:
    """The fields of a body as options of the gRPC interface. form: the answer's constraint. more:
    options in the place of the body's own."""
    return {
        **{name: getattr(body, name) for name in _PLAIN},
        **(body.speculation.model_dump() if body.speculation else {}),
        "seed": _seed(body.seed),
        "stop": body.stop or None,
        "logit_bias": _biases(body.logit_bias or {}),
        "constraint": form,
        **more,
    }


def _seed(given: int | None) -> int | None:
    """An OpenAI seed as an unsigned 64-bit integer: 2^64 is added to a negative one."""
    if given is None or 0 <= given < 2**64:
        return given
    if not -(2**63) <= given < 0:
        raise InvalidRequest("seed", f"must be in -2^63..2^64-1, got {as_shown(given)}")
    return given + 2**64


def _biases(given: dict[str, float]) -> dict[int, float]:
    """`logit_bias` by token id; the keys of a JSON object are strings."""
    for token in given:
        if not _KEY.fullmatch(token):
            raise InvalidRequest("logit_bias", f"keys are token ids, and {as_shown(token)} is none")
    return {int(token): bias for token, bias in given.items()}


def new_id(kind: str, given: str | None) -> str:
    """A unique id for a response and its request in logs. given: the client's own id, which may
    repeat: clients that retry, and proxies that forward an id, send it twice."""
    if given:
        return f"{kind}-{given[:GIVEN]}-{secrets.token_hex(4)}"
    return f"{kind}-{secrets.token_hex(12)}"


class RunningPrompts:
    """The running prompts of one HTTP request, with the response's id and headers. Its owner always
    calls `leave`, which frees what has not ended."""

    def __init__(self, kind: str, given: str | None, names: Mapping[str, str]) -> None:
        self.id = new_id(kind, given)
        self.headers = id_headers(given or self.id)
        self.streams: list[ResponseStream] = []
        self._names = names

    @staticmethod
    async def begin(
        api: Api,
        request: Request,
        prompts: Sequence[Prompt],
        options: Mapping[str, Any],
        *,
        kind: str,
        names: Mapping[str, str],
        usual: int | None = None,
        record: bool = False,
    ) -> RunningPrompts:
        """Submits all prompts, or none. kind: first word of the id. names: the body's names for
        fields of the gRPC interface. usual: default `max_tokens`, None for the deployment's.
        record: answers keep (verified, accepted) of each round as `steps`."""
        check_count("prompt", len(prompts), MAX_PROMPTS, "prompts")
        asking = RunningPrompts(kind, request.headers.get(ID_HEADER), names)
        request.scope[NAMED] = asking.headers
        try:
            with naming(asking._name):
                for index, prompt in enumerate(prompts):
                    message = write_request(prompt, options)
                    message.request_id = asking.id if len(prompts) == 1 else f"{asking.id}-{index}"
                    message.traceparent = request.headers.get("traceparent", "")
                    begun = await api.processor.accept(
                        message, usual=usual or api.config.default_max_tokens
                    )
                    asking.streams.append(begun)
                    for answer in begun.output.answers if record else ():
                        answer.steps = []
        except BaseException:
            asking.leave()
            raise
        return asking

    async def parts(self) -> AsyncIterator[tuple[int, list[OutputChunk]]]:
        """Yields (prompt index, its new parts) until all prompts end; raises their first error."""
        if len(self.streams) == 1:
            only = self.streams[0]
            while not only.done:
                yield 0, await self._next(only)
            return
        waiting = {
            asyncio.create_task(self._next(stream)): index
            for index, stream in enumerate(self.streams)
        }
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = waiting[task]
                    yield index, task.result()
                    del waiting[task]
                    if not self.streams[index].done:
                        waiting[asyncio.create_task(self._next(self.streams[index]))] = index
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _next(self, stream: ResponseStream) -> list[OutputChunk]:
        """New parts, held back until requested `prompt_logprobs` have arrived, or all answers have
        ended without them."""
        wanted = stream.request.prompt_logprobs is not None
        with naming(self._name):  # the verifier may refuse a constraint
            shown = await stream.parts()
            while wanted and stream.output.prompt_logprobs is None and not stream.done:
                shown += await stream.parts()
        return shown

    def _name(self, field: str) -> str:
        """The body's name for a field of the gRPC interface."""
        named = self._names.get(field) or self._names.get(field.partition(".")[0])
        return named or param_of(field)

    def leave(self) -> None:
        """Releases every stream, and frees requests that have not ended."""
        for stream in self.streams:
            stream.leave()
