"""Keyword arguments to messages, and the call options every client uses.

Checks here only what the wire cannot carry; every judgement on values is the server's, so that all clients hear the
same sentence.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark.errors import InvalidRequest
from dspark.wire.v1 import generate_pb2, types_pb2

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


_SCALARS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "n",
    "seed",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


@dataclass(frozen=True)
class Sampling:
    """Options of one request; None leaves the choice to the deployment.

    temperature: 0 is greedy. top_k: 0 keeps everything. top_p: nucleus mass in (0, 1]. min_p: least probability kept,
    as a share of the likeliest one. repetition_penalty: over prompt and answer, above 1 discourages. presence_penalty,
    frequency_penalty: over the answer, above 0 discourages. logit_bias: added to the logits of ids.
    max_tokens: longest answer. min_tokens: nothing ends it before. stop, stop_token_ids: what ends it.
    include_stop_str_in_output: keep what ended it in the text. ignore_eos: do not end at the target's stop tokens.
    logprobs: tell each token's log-probability and so many likeliest ones. n: answers to the same prompt.
    seed: key of the draws. policy: "off", "fixed:k", "threshold:t", "greedy" or "async". rule: "token", "block" or
    "coupled". weight: what a token of this answer is worth to the scheduler beside those of others.
    drafter: replica that is to draft, e.g. "draft/1"; empty takes the least loaded one.
    cache_salt: computed prefixes are shared with requests of the same salt only.
    label: acceptance is counted under it in the coordinator's metrics; letters, digits and ._- up to 32.
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
    n: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    policy: str = ""
    rule: str = ""
    weight: float | None = None
    drafter: str = ""
    cache_salt: str = ""
    label: str = ""
    request_id: str = field(default="")


def write_request(prompt: str | Sequence[int], options: Sampling) -> generate_pb2.GenerateRequest:
    """The message that asks for one answer to a text or to token ids."""
    if options.rule not in RULES:
        raise InvalidRequest("rule", f"{options.rule!r} is none of token, block, coupled")
    given: dict[str, Any] = {name: value for name in _SCALARS if (value := getattr(options, name)) is not None}
    if options.logit_bias:
        given["logit_bias"] = dict(options.logit_bias)
    for name, value in given.items():
        try:
            generate_pb2.SamplingParams(**{name: value})
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"sampling_params.{name}", str(error)) from error
    try:
        params = generate_pb2.SamplingParams(
            stop=[options.stop] if isinstance(options.stop, str) else list(options.stop),
            stop_token_ids=list(options.stop_token_ids),
            **given,
        )
        request = generate_pb2.GenerateRequest(
            request_id=options.request_id or f"cmpl-{secrets.token_hex(12)}",
            sampling_params=params,
            speculation=generate_pb2.SpeculationParams(
                policy=options.policy,
                rule=RULES[options.rule],  # type: ignore[arg-type]
                weight=options.weight,
                drafter=options.drafter,
            ),
            cache_salt=options.cache_salt,
            label=options.label,
        )
        if isinstance(prompt, str):
            request.text = prompt
        else:
            try:
                request.tokenized.input_ids.extend(int(token) for token in prompt)
            except (TypeError, ValueError) as error:
                raise InvalidRequest("tokenized.input_ids", str(error)) from error
            request.tokenized.SetInParent()
    except (TypeError, ValueError) as error:
        raise InvalidRequest("request", str(error)) from error
    return request
