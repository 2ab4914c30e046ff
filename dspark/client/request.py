"""Keyword arguments to messages, and the call options every client uses.

Checks here only what the wire cannot carry, and that no number becomes another one on its way; every other judgement on
values is the server's, so that all clients hear the same sentence.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, TypeVar

from dspark.client.fields import SAMPLING, constraint_of, ids_of, text_of, weight_of
from dspark.errors import InvalidRequest
from dspark.wire.v1 import generate_pb2, types_pb2

M = TypeVar("M", bound=Callable[..., Any])

# A stream is tried again only before its first message, so no token can come twice. Whoever fails for all must not be
# asked ever more often for it: a failure costs a token, an answer brings a tenth of one, and below half of them nothing
# is tried again. A server's pushback says when.
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

RULES = {"": 0, "token": types_pb2.RULE_TOKEN, "block": types_pb2.RULE_BLOCK, "coupled": types_pb2.RULE_COUPLED}


@dataclass(frozen=True)
class Sampling:
    """Options of one request; None leaves the choice to the deployment.

    temperature: 0 is greedy. top_k: 0 and -1 keep everything. top_p: nucleus mass in (0, 1]. min_p: least probability
    kept, as a share of the likeliest one. repetition_penalty: over prompt and answer, above 1 discourages.
    presence_penalty, frequency_penalty: over the answer, above 0 discourages. logit_bias: added to the logits of ids.
    max_tokens: longest answer. min_tokens: nothing ends it before. stop, stop_token_ids: what ends it.
    include_stop_str_in_output: keep what ended it in the text. ignore_eos: do not end at the target's stop tokens.
    logprobs: tell each token's log-probability and so many likeliest ones. prompt_logprobs: the same of the prompt,
    and with max_tokens 0 of nothing else. n: answers to the same prompt.
    seed: key of the draws. policy: "off", "fixed:k", "threshold:t" or "adaptive". rule: "token", "block" or
    "coupled". weight: what a token of this answer is worth to the scheduler beside those of others.
    drafter: replica that is to draft, e.g. "draft/1"; empty takes the least loaded one.
    cache_salt: computed prefixes are shared with requests of the same salt only.
    constraint: the form of the answer, one of {"json_schema": SCHEMA}, {"json_object": True}, {"regex": TEXT},
    {"grammar": EBNF}, {"choice": [TEXT, ...]}, {"structural_tag": TAG}; schemas and tags as mappings or as JSON.
    label: acceptance is counted under it in the coordinator's metrics; letters, digits and ._- up to 32.
    request_id: its name, at most 128 characters; made up when empty.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    policy: str = ""
    rule: str = ""
    weight: float | None = None
    drafter: str = ""
    constraint: Mapping[str, Any] | None = None
    cache_salt: str = ""
    label: str = ""
    request_id: str = ""


class Options(TypedDict, total=False):
    """The same as keyword arguments, for type checkers and editors."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float]
    min_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    n: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    seed: int | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    policy: str
    rule: str
    weight: float | None
    drafter: str
    constraint: Mapping[str, Any] | None
    cache_salt: str
    label: str
    request_id: str


def spelled_out(method: M) -> M:
    """Shows every option wherever Python is asked for the signature, as `help` does."""
    signature = inspect.signature(method)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default={} if one.name == "logit_bias" else one.default,
            annotation=one.type,
        )
        for one in fields(Sampling)
    ]
    method.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return method


def write_request(prompt: str | Sequence[int], options: Sampling) -> generate_pb2.GenerateRequest:
    """The message that asks for one answer to a text or to token ids."""
    if options.rule not in RULES:
        raise InvalidRequest("rule", f"{options.rule!r} is none of token, block, coupled")
    params = generate_pb2.SamplingParams(
        **{
            name: read(f"sampling_params.{name}", value)
            for name, read in SAMPLING.items()
            if (value := getattr(options, name)) is not None
        }
    )
    request = generate_pb2.GenerateRequest(
        request_id=text_of("request_id", options.request_id) or f"cmpl-{secrets.token_hex(12)}",
        sampling_params=params,
        speculation=generate_pb2.SpeculationParams(
            policy=text_of("speculation.policy", options.policy),
            rule=RULES[options.rule],  # type: ignore[arg-type]
            weight=weight_of(options.weight),
            drafter=text_of("speculation.drafter", options.drafter),
        ),
        cache_salt=text_of("cache_salt", options.cache_salt),
        label=text_of("label", options.label),
    )
    if options.constraint is not None:
        request.constraint.CopyFrom(constraint_of("constraint", options.constraint))
    if isinstance(prompt, str):
        request.text = text_of("text", prompt)
    else:
        request.tokenized.input_ids.extend(ids_of("tokenized.input_ids", prompt))
        request.tokenized.SetInParent()
    return request
