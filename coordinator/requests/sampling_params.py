"""The sampling fields of a request, checked one by one, as the sampling parameters of its answers. Errors name the
field.

Comparisons are written so that they refuse NaN. Draws are keyed by the request's seed, or by one drawn here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from typing import Any

from dspark.errors import InvalidRequest, PeerError
from dspark.types import (
    MAX_BIAS,
    MAX_BIASED,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION,
    Constraint,
    ConstraintKind,
    Rule,
    SamplingParams,
)
from dspark.wire.codec import read_constraint
from dspark.wire.v1 import generate_pb2

MAX_CHOICES = 16

_PARAMS = "sampling_params"

_PENALTY = (0.0, lambda p: abs(p) <= MAX_PENALTY, f"in [{-MAX_PENALTY:g}, {MAX_PENALTY:g}]")
_NUMBERS: dict[str, tuple[float, Callable[[float], bool], str]] = {  # default, what fits, and how errors say it
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "temperature": (1.0, lambda t: math.isfinite(t) and t >= 0, "finite and not negative"),
    "top_p": (1.0, lambda p: 0 < p <= 1, "in (0, 1]"),
    "min_p": (0.0, lambda p: 0 <= p <= 1, "in [0, 1]"),
    "repetition_penalty": (1.0, lambda p: 0 < p <= MAX_REPETITION, f"in (0, {MAX_REPETITION:g}]"),
}


def read_sampling_params(
    message: generate_pb2.GenerateRequest,
    rule: Rule,
    seed: int,
    *,
    prompt_len: int,
    max_tokens: int,
    stop_ids: Collection[int],
    vocab_size: int,
) -> SamplingParams:
    """Those of the first answer; the others differ in `choice` alone."""
    params = message.sampling_params
    min_tokens = _min_tokens(params, max_tokens, stop_ids, vocab_size)
    return SamplingParams(
        **_numbers(params),
        top_k=params.top_k,
        seed=params.seed if params.HasField("seed") else seed,
        rule=rule,
        logit_bias=_bias(params, vocab_size),
        min_tokens=min_tokens,
        stop_token_ids=tuple(sorted(stop_ids)) if min_tokens else (),
        logprobs=_logprobs(params),
        prompt_len=prompt_len,
        constraint=_constraint(message),
    )


def read_choices(params: generate_pb2.SamplingParams) -> int:
    """How many answers are wanted."""
    if not params.HasField("n"):
        return 1
    if not 1 <= params.n <= MAX_CHOICES:
        raise InvalidRequest(f"{_PARAMS}.n", f"must be in 1..{MAX_CHOICES}, got {params.n}")
    return params.n


def _numbers(params: generate_pb2.SamplingParams) -> dict[str, Any]:
    """Every field of `_NUMBERS`."""
    found = {}
    for name, (default, fits, range_) in _NUMBERS.items():
        found[name] = default
        if params.HasField(name):
            found[name] = getattr(params, name)
            if not fits(found[name]):
                raise InvalidRequest(f"{_PARAMS}.{name}", f"must be {range_}, got {found[name]}")
    return found


def _bias(params: generate_pb2.SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    field = f"{_PARAMS}.logit_bias"
    if len(params.logit_bias) > MAX_BIASED:
        raise InvalidRequest(field, f"{len(params.logit_bias)} entries, at most {MAX_BIASED} are allowed")
    bias = sorted(params.logit_bias.items())
    if bias and bias[-1][0] >= vocab_size:
        raise InvalidRequest(field, f"token id {bias[-1][0]} is not below the vocabulary size {vocab_size}")
    for token, value in bias:
        if not abs(value) <= MAX_BIAS:
            raise InvalidRequest(field, f"must be in [{-MAX_BIAS:g}, {MAX_BIAS:g}], got {value} for token id {token}")
    return tuple(bias)


def _min_tokens(
    params: generate_pb2.SamplingParams, max_tokens: int, stop_ids: Collection[int], vocab_size: int
) -> int:
    field = f"{_PARAMS}.min_tokens"
    if params.min_tokens > max_tokens:
        raise InvalidRequest(field, f"{params.min_tokens} is more than max_tokens, {max_tokens}")
    if params.min_tokens and len(set(stop_ids)) >= vocab_size:
        raise InvalidRequest(field, "every token of the vocabulary ends the answer")
    return params.min_tokens


def _constraint(message: generate_pb2.GenerateRequest) -> Constraint | None:
    try:
        constraint = read_constraint(message.constraint)
    except PeerError as error:
        raise InvalidRequest(*str(error).split(": ", 1)) from None
    if constraint is None:
        return None
    if message.sampling_params.ignore_eos:
        raise InvalidRequest("ignore_eos", "not beside a constraint: such an answer ends where its form does")
    if constraint.kind in (ConstraintKind.JSON_SCHEMA, ConstraintKind.STRUCTURAL_TAG):
        _check_json(f"constraint.{constraint.kind.name.lower()}", constraint.text)
    return constraint


def _check_json(field: str, text: str) -> None:
    try:
        made = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"is not JSON: {error}") from None
    if not isinstance(made, dict | bool):
        raise InvalidRequest(field, "is not an object")


def _logprobs(params: generate_pb2.SamplingParams) -> int | None:
    if not params.HasField("logprobs"):
        return None
    if not 0 <= params.logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(f"{_PARAMS}.logprobs", f"must be in 0..{MAX_LOGPROBS}, got {params.logprobs}")
    return params.logprobs
