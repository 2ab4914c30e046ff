"""Makes request messages of keyword arguments; holds the call options of every client.

Checks only what the wire cannot carry, and that no number changes when it is converted. The server
checks all other values, so that every client gets the same error message.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from dspark.client.fields import SAMPLING, SPECULATION, constraint_of, ids_of, text_of, words
from dspark.errors import InvalidRequest
from dspark.wire.v1 import generate_pb2, types_pb2

M = TypeVar("M", bound=Callable[..., Any])

# A stream is retried only before its first message, so no token is received twice. A server that
# always fails must not be called ever more often: a failure costs a retry token, a success adds a
# tenth of one, and below half of them nothing is retried. A server's pushback sets the delay.
SERVICE_CONFIG: dict[str, object] = {
    "retryThrottling": {"maxTokens": 4, "tokenRatio": 0.1},
    "methodConfig": [
        {
            "name": [{"service": "dspark.wire.v1.Generation"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}

RULES = {"": 0} | {word: number for number, word in words(types_pb2.Rule.DESCRIPTOR).items()}


class Options(TypedDict, total=False):
    """Options of one request; for those left out or None the deployment's defaults hold.

    temperature: 0 is greedy. top_k: 0 and -1 keep everything. top_p: nucleus mass in (0, 1]. min_p:
    least probability kept, as a share of the likeliest one. repetition_penalty: over prompt and
    answer, above 1 discourages. presence_penalty, frequency_penalty: over the answer, above 0
    discourages. logit_bias: added to logits, by id. max_tokens: longest answer. min_tokens:
    shortest answer. stop, stop_token_ids: what ends it. include_stop_str_in_output: keep what ended
    it in the text. skip_special_tokens: leave special tokens out of the text. ignore_eos: do not
    end at the target's stop tokens. logprobs: report each token's log-probability and so many
    likeliest ones. prompt_logprobs: the same for the prompt, and with max_tokens 0 nothing else. n:
    answers to the same prompt. seed: key of the draws. policy: "off", "fixed:k", "threshold:t" or
    "adaptive". rule: "token", "block" or "coupled". weight: worth of this answer's tokens, relative
    to others. drafter: replica that drafts, e.g. "draft/1"; empty takes the least loaded one.
    cache_salt: cached prefixes are shared with requests of the same salt only. constraint: the form
    of the answer, one of {"json_schema": SCHEMA}, {"json_object": True}, {"regex": TEXT},
    {"grammar": EBNF}, {"choice": [TEXT, ...]}, {"structural_tag": TAG}; schemas and tags as
    mappings or as JSON. label: acceptance is counted under it in the coordinator's metrics;
    letters, digits and ._- up to 32. request_id: at most 128 characters; generated when empty.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    min_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    n: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    seed: int | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    policy: str | None
    rule: str | None
    weight: float | None
    drafter: str | None
    constraint: Mapping[str, Any] | None
    cache_salt: str | None
    label: str | None
    request_id: str | None


def spelled_out(method: M) -> M:
    """Decorator that puts every option into the method's signature, as `help` shows it."""
    signature = inspect.signature(method)
    own = [
        one
        for one in signature.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__
        )
        for name, hint in Options.__annotations__.items()
    ]
    method.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return method


def write_request(
    prompt: str | Sequence[int], options: Mapping[str, Any]
) -> generate_pb2.GenerateRequest:
    """The message of a request. options: see `Options`. Raises InvalidRequest and TypeError."""
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := options.keys() - Options.__annotations__:
        raise TypeError(f"{min(unknown)!r} is no option of a request")
    rule = given.get("rule", "")
    if not isinstance(rule, str) or rule not in RULES:
        raise InvalidRequest("rule", f"{rule!r} is none of token, block, coupled")
    drawn = {
        name: read(f"sampling_params.{name}", given[name])
        for name, read in SAMPLING.items()
        if name in given
    }
    sped = {
        name: read(f"speculation.{name}", given[name])
        for name, read in SPECULATION.items()
        if name in given
    }
    request = generate_pb2.GenerateRequest(
        request_id=text_of("request_id", given.get("request_id", ""))
        or f"cmpl-{secrets.token_hex(12)}",
        sampling_params=generate_pb2.SamplingParams(**drawn),
        speculation=generate_pb2.SpeculationParams(rule=RULES[rule], **sped),  # type: ignore[arg-type]
        cache_salt=text_of("cache_salt", given.get("cache_salt", "")),
        label=text_of("label", given.get("label", "")),
    )
    if "constraint" in given:
        request.constraint.CopyFrom(constraint_of("constraint", given["constraint"]))
    if isinstance(prompt, str):
        request.text = text_of("text", prompt)
    else:
        request.tokenized.input_ids.extend(ids_of("tokenized.input_ids", prompt))
        request.tokenized.SetInParent()
    return request
