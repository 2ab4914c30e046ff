"""From a validated body to a response, with what all responses share: the fields around choices,
usage, metrics, and the order of a stream's events.

A stream is: an opening of each choice where the shape has one, parts, a finish reason with the last
part of a choice, then usage if requested, then [DONE]. Events of one round leave in one write.

`metrics`, if requested, have vLLM's names: `num_draft_tokens` counts drafted tokens that were
sent to verification, `num_proposed_draft_tokens` all that were drafted. Identities: the
acceptance histogram sums to `num_spec_steps` and weighted by its index to
`num_accepted_draft_tokens`; `mean_acceptance_length` counts the target's own token.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

from fastapi import Request
from starlette.responses import Response

from coordinator.answers.answer import End, RequestStats
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.running_prompts import Prompt, RunningPrompts
from coordinator.http.schema import Body, StreamOptions
from coordinator.http.stream import (
    DONE,
    EventStream,
    event,
    failure,
    left,
    paced_events,
    paced_whole,
    while_connected,
    written,
)
from coordinator.reception.output_processor import OutputChunk, OutputProcessor, per_token_s
from dspark.errors import InvalidRequest

Detail = Literal["none", "summary", "detailed"]
Object = dict[str, Any]
MANY = 2048  # replies of more tokens are written in a thread of their own


class ReplyShape(Protocol):
    """Makes the choices of one kind of response. prompt: index of the prompt of a choice."""

    whole_object: str
    part_object: str
    of_prompt: tuple[str, ...]  # fields of a choice that stand beside the choices

    @property
    def thought(self) -> int:
        """Reasoning tokens so far, over all answers."""

    def opening(self, prompt: int, output: OutputProcessor) -> Object | None:
        """The first part of each choice of a prompt, before any token; None for none."""

    def part(self, prompt: int, shown: OutputChunk) -> Object:
        """The next part of a choice."""

    def reason(self, index: int, end: End) -> str:
        """The finish reason of an answer whose parts are all made, in this kind's words."""

    def whole(self, made: Object) -> Object:
        """A complete choice. made: all of its parts, merged by `added`."""

    def scores(self, output: OutputProcessor) -> Object:
        """What every complete choice of a prompt tells of its log-probabilities."""


def added(known: Any, more: Any) -> Any:
    """Merges `more` into `known`: dicts by key, lists and strings by appending; else the newer one
    that is not None."""
    if isinstance(more, dict):
        known = {} if known is None else known
        for key, value in more.items():
            known[key] = added(known.get(key), value)
        return known
    if isinstance(more, list):
        known = [] if known is None else known
        known += more
        return known
    if isinstance(known, str) and isinstance(more, str):
        return known + more
    return known if more is None else more


Told = list[tuple[int, Object]]  # (index of a choice, its next part)


class Reply(NamedTuple):
    """A reply to `body` that is being made. head: the fields before the choices. block_size: slots
    of a full block."""

    asking: RunningPrompts
    shape: ReplyShape
    body: Body
    head: Object
    detail: Detail
    block_size: int

    async def _told(self) -> AsyncGenerator[tuple[bool, Told]]:
        """Yields (whether they are long, parts of choices that arrived together). The last part of
        a choice has its finish reason."""
        opened, shape, token_ids = set[int](), self.shape, self.body.return_token_ids
        async for prompt, parts in self.asking.parts():
            out, stream, many = Told(), self.asking.streams[prompt], False
            answers = stream.output.answers
            if prompt not in opened:
                opened.add(prompt)
                many = len(stream.request.prompt) > MANY
                opening = await beside(many, self._opening, prompt)
                if opening is not None:
                    out += [(prompt * len(answers) + answer.index, opening) for answer in answers]
            for shown in parts:
                choice = shape.part(prompt, shown)  # also counts tokens that have no text yet
                said = shown.text and choice.get("delta", True)  # a reader may hold text back
                if not (shown.end or token_ids or shown.logprobs or said):
                    continue
                if token_ids:
                    choice["token_ids"] = shown.tokens
                if (end := shown.end) is not None:
                    choice["finish_reason"] = shape.reason(shown.index, end)
                    choice["stop_reason"] = end.text if end.text is not None else end.token_id
                out.append((prompt * len(answers) + shown.index, choice))
            yield many, out

    def _opening(self, prompt: int) -> Object | None:
        """The opening of every choice of a prompt; None for none."""
        output = self.asking.streams[prompt].output
        choice = self.shape.opening(prompt, output)
        if not self.body.return_token_ids:
            return choice
        ids = {"prompt_token_ids": list(output.request.prompt), "token_ids": []}
        return (choice or self.shape.part(prompt, OutputChunk(0, 0))) | ids

    async def whole(self) -> bytes:
        """The JSON reply to a request that does not stream: the parts of a stream, merged by
        choice."""
        choices: dict[int, Object] = {}
        async for _, told in self._told():
            for number, more in told:
                choices[number] = added(choices.get(number), more)
        return await beside(usage_of(self.asking)["total_tokens"] > MANY, self._written, choices)

    def _written(self, made: dict[int, Object]) -> bytes:
        shape, outputs = self.shape, [stream.output for stream in self.asking.streams]
        answers = len(outputs[0].answers)
        scores = [shape.scores(output) for output in outputs]
        choices = [
            {"index": number, **shape.whole(made[number]), **scores[number // answers]}
            for number in sorted(made)
        ]
        told = self.head | {"object": shape.whole_object} | self._placed(choices)
        return written(told | {"usage": usage_of(self.asking, shape.thought)} | self._metrics())

    def _placed(self, choices: Sequence[Object]) -> Object:
        """`choices`, and beside them what they tell of the prompt that they share."""
        names = self.shape.of_prompt
        told = {name: choice.pop(name) for choice in choices for name in names if name in choice}
        return {"choices": choices, **told}

    async def streamed(self) -> AsyncGenerator[bytes]:
        """Yields the events of the reply to a request that streams."""
        asking, shape, wanted = self.asking, self.shape, self.body.stream_options or StreamOptions()
        head = self.head | {"object": shape.part_object}

        def events(told: Told) -> bytes:
            running = usage_of(asking, shape.thought) if wanted.continuous_usage_stats else None
            aside = {"usage": running} if wanted.include_usage else {}
            empty = {"logprobs": None, "finish_reason": None}
            return b"".join(
                event(head | self._placed([{"index": at, **empty, **more}]) | aside)
                for at, more in told
            )

        try:
            async for many, told in self._told():
                if told:
                    yield await beside(many, events, told)
            usage = {"usage": usage_of(asking, shape.thought)} if wanted.include_usage else {}
            last = usage | self._metrics()
            yield (event(head | {"choices": [], **last}) if last else b"") + DONE
        finally:
            asking.leave()

    def _metrics(self) -> Object:
        """The `metrics` field over all answers together; empty if not requested."""
        if self.detail == "none":
            return {}
        answers = [answer for stream in self.asking.streams for answer in stream.output.answers]
        stats = RequestStats.together([answer.stats for answer in answers])
        steps = [step for answer in answers for step in answer.steps or ()]
        by_length: dict[int, list[int]] = {}
        for drafted, accepted in steps:
            counts = by_length.setdefault(drafted, [0] * (drafted + 1))
            counts[accepted] += 1
        verified = stats.verified
        histogram = stats.acceptance_histogram
        speculative: dict[str, Any] = {
            "mean_acceptance_length": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.accepted / verified if verified else 0.0,
            "acceptance_histogram": histogram + [0] * (self.block_size + 1 - len(histogram)),
            "acceptance_histogram_by_draft_length": {
                str(length): by_length[length] for length in sorted(by_length)
            },
            "num_spec_steps": stats.rounds,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": verified,
            "num_proposed_draft_tokens": stats.drafted,
            "num_spec_tokens": self.block_size,
        }
        if self.detail == "detailed":
            speculative["per_step_accepted"] = [accepted for _, accepted in steps]
            speculative["per_step_drafted"] = [drafted for drafted, _ in steps]
        generation_s = stats.total_s() - stats.first_token_s()
        said = sum(answer.answered for answer in answers)
        told = {
            "speculative_decoding": speculative,
            "time_to_first_token_ms": 1e3 * stats.first_token_s(),
            "generation_time_ms": 1e3 * generation_s,
            "queue_time_ms": 1e3 * stats.queue_s(),
            "mean_itl_ms": 1e3 * per_token_s(answers),
            "tokens_per_second": said / stats.total_s() if stats.total_s() else 0.0,
        }
        return {"metrics": told}


def usage_of(asking: RunningPrompts, thought: int = 0) -> Object:
    """`usage` so far: every prompt once, all answers summed. thought: reasoning tokens among
    them."""
    outputs = [stream.output for stream in asking.streams]
    prompt = sum(len(output.request.prompt) for output in outputs)
    said = sum(answer.answered for output in outputs for answer in output.answers)
    cached = sum(max(answer.cached_tokens for answer in output.answers) for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


METRICS_HEADER = "x-spec-decode-metrics"


async def answered(
    api: Api,
    request: Request,
    body: Body,
    prompts: Sequence[Prompt],
    options: Mapping[str, Any],
    shape: ReplyShape,
    names: Mapping[str, str],
    *,
    kind: str,
    usual: int | None = None,
) -> Response:
    """Runs the prompts and responds in `shape`. For the parameters see `RunningPrompts.begin`."""
    terms = api.processor.cell.terms()
    model = api.check_model(body.model, terms)
    detail = _detail(request, body)
    asking = await RunningPrompts.begin(
        api, request, prompts, options, kind=kind, names=names, usual=usual, record=detail != "none"
    )
    head = {"id": asking.id, "object": "", "created": int(time.time()), "model": model}
    head["system_fingerprint"] = api.fingerprint(terms)
    reply = Reply(asking, shape, body, head, detail, terms.block_size)
    events = reply.streamed() if body.stream else None
    return await respond(api, request, asking, events, reply.whole)


async def respond(
    api: Api,
    request: Request,
    asking: RunningPrompts,
    events: AsyncGenerator[bytes] | None,
    whole: Callable[[], Coroutine[Any, Any, bytes]],
    failed: Callable[[Exception], bytes] = failure,
) -> Response:
    """The response at the deployment's pace: a stream of `events`, or `whole()` as JSON for None.
    failed: see `EventStream`."""
    longest = max(stream.request.max_tokens for stream in asking.streams)
    if events is not None:
        if api.pace is not None:
            events = paced_events(events, api.pace, longest)
        return EventStream(api, events, asking.headers, failed)
    try:
        answer = whole() if api.pace is None else paced_whole(whole(), api.pace, longest)
        body = await while_connected(left(request.receive), answer)
        return Response(body, media_type="application/json", headers=asking.headers)
    finally:
        asking.leave()


def _detail(request: Request, body: Body) -> Detail:
    """The requested detail of metrics: from the body, else from a header, for clients that cannot
    change the body."""
    asked = body.per_request_spec_decode_metrics or request.headers.get(METRICS_HEADER, "none")
    if asked not in get_args(Detail):
        raise InvalidRequest(METRICS_HEADER, "must be none, summary or detailed")
    return cast(Detail, asked)
