"""Codecs of single values; `cohorts.py` has those of a cohort, `tensors.py` those of rows. Without
torch.

Reading validates: a malformed field raises PeerError with the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from dspark.errors import PeerError
from dspark.runtime.cost_store import Curve
from dspark.types import (
    MAX_BIAS,
    MAX_BIASED,
    MAX_CONSTRAINT,
    MAX_FORM,
    MAX_LOGPROBS,
    SAMPLING_RANGES,
    Constraint,
    ConstraintKind,
    Refusal,
    RefusalReason,
    Rule,
    SamplingParams,
    ScoredPrompt,
    ScoredToken,
)
from dspark.wire.v1 import types_pb2

MAX_ENDS = 1024  # ids that may not come before min_tokens


# numbers of `SamplingParams` that the message holds as they are
_NUMBERS = (*SAMPLING_RANGES, "top_k", "seed", "choice", "min_tokens", "prompt_len")


def write_sampling(params: SamplingParams) -> types_pb2.SequenceSampling:
    numbers: dict[str, Any] = {name: getattr(params, name) for name in _NUMBERS}
    if params.repetition_penalty == 1.0:  # is absent then
        del numbers["repetition_penalty"]
    return types_pb2.SequenceSampling(
        **numbers,
        stop_token_ids=params.stop_token_ids,
        logprobs=params.logprobs,
        rule=cast("types_pb2.Rule", int(params.rule)),
        logit_bias=dict(params.logit_bias),
        constraint=None if params.constraint is None else write_constraint(params.constraint),
    )


def write_constraint(constraint: Constraint) -> types_pb2.Constraint:
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return types_pb2.Constraint(json_object=True)
        case ConstraintKind.CHOICE:
            return types_pb2.Constraint(choice=types_pb2.Choices(value=json.loads(constraint.text)))
        case kind:
            message = types_pb2.Constraint()
            setattr(message, kind.name.lower(), constraint.text)
            return message


def read_constraint(message: types_pb2.Constraint) -> Constraint | None:
    """The constraint of a message, checked but not compiled; None where the message is empty."""
    name = message.WhichOneof("form")
    if name is None:
        return None
    kind, text = ConstraintKind[name.upper()], ""
    if kind is ConstraintKind.CHOICE:
        values = message.choice.value[:]
        if not values or len(set(values)) < len(values):
            raise PeerError("constraint.choice: give at least one value, and each of them once")
        text = json.dumps(values)
    elif kind is ConstraintKind.JSON_OBJECT:
        if not message.json_object:
            return None
    elif not (text := getattr(message, name)):
        raise PeerError(f"constraint.{name}: is empty")
    if len(text) > MAX_CONSTRAINT:
        raise PeerError(
            f"constraint.{name}: {len(text)} characters, at most {MAX_CONSTRAINT} are allowed"
        )
    if (size := len(text.encode())) > MAX_FORM:
        raise PeerError(f"constraint.{name}: {size} bytes, at most {MAX_FORM} are allowed")
    return Constraint(kind, text)


def read_sampling(message: types_pb2.SequenceSampling) -> SamplingParams:
    numbers: dict[str, Any] = {name: getattr(message, name) for name in _NUMBERS}
    if not message.HasField("repetition_penalty"):
        numbers["repetition_penalty"] = 1.0
    for name, (fits, range_) in SAMPLING_RANGES.items():
        if not fits(numbers[name]):
            raise PeerError(f"sampling.{name}: must be {range_}")
    try:
        rule = Rule(message.rule)
    except ValueError:
        raise PeerError(f"sampling.rule: {message.rule} is not a rule") from None
    bias = tuple(sorted(message.logit_bias.items()))
    if len(bias) > MAX_BIASED or not all(abs(value) <= MAX_BIAS for _, value in bias):
        raise PeerError(
            f"sampling.logit_bias: must be at most {MAX_BIASED} in [{-MAX_BIAS:g}, {MAX_BIAS:g}]"
        )
    if len(message.stop_token_ids) > MAX_ENDS:
        raise PeerError(
            f"sampling.stop_token_ids: {len(message.stop_token_ids)} are over the limit of "
            f"{MAX_ENDS}"
        )
    if message.logprobs > MAX_LOGPROBS:
        raise PeerError(
            f"sampling.logprobs: {message.logprobs} are over the limit of {MAX_LOGPROBS}"
        )
    return SamplingParams(
        **numbers,
        rule=rule,
        logit_bias=bias,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        constraint=read_constraint(message.constraint),
    )


def write_logprobs(told: Sequence[ScoredToken]) -> list[types_pb2.TokenLogprobs]:
    return [
        types_pb2.TokenLogprobs(
            logprob=one.logprob, top_ids=one.top_ids, top_logprobs=one.top_logprobs
        )
        for one in told
    ]


def read_logprobs(messages: Iterable[types_pb2.TokenLogprobs]) -> tuple[ScoredToken, ...]:
    return tuple(
        ScoredToken(one.logprob, tuple(one.top_ids), tuple(one.top_logprobs)) for one in messages
    )


def write_prompt_logprobs(told: ScoredPrompt) -> types_pb2.PromptLogprobs:
    return types_pb2.PromptLogprobs(
        logprobs=told.logprobs.tolist(),  # a third of the time that numbers of an array take
        ranks=told.ranks.tolist(),
        top=told.top_ids.shape[1],
        top_ids=told.top_ids.ravel().tolist(),
        top_logprobs=told.top_logprobs.ravel().tolist(),
    )


def read_prompt_logprobs(message: types_pb2.PromptLogprobs) -> ScoredPrompt:
    """Reads logprobs of a prompt; raises PeerError when columns have wrong lengths."""
    rows, top = len(message.logprobs), message.top
    if [len(each) for each in (message.ranks, message.top_ids, message.top_logprobs)] != [
        rows,
        rows * top,
        rows * top,
    ]:
        raise PeerError(
            f"prompt_logprobs: columns do not fit {rows} tokens and {top} likeliest ones"
        )
    return ScoredPrompt(
        np.array(message.logprobs, np.float32),
        np.array(message.ranks, np.uint32),
        np.array(message.top_ids, np.uint32).reshape(rows, top),
        np.array(message.top_logprobs, np.float32).reshape(rows, top),
    )


def write_refusal(refusal: Refusal) -> types_pb2.Refusal:
    return types_pb2.Refusal(
        reason=types_pb2.Refusal.Reason.Name(int(refusal.reason)),
        message=refusal.message,
    )


def read_refusal(message: types_pb2.Refusal) -> Refusal:
    """Reads a refusal; an unknown reason becomes INTERNAL."""
    try:
        reason = RefusalReason(message.reason)
    except ValueError:
        reason = RefusalReason.INTERNAL
    return Refusal(reason, message.message)


def write_cost(curve: Curve) -> types_pb2.CostCurve:
    return types_pb2.CostCurve(
        tokens=curve.tokens.tolist(),
        contexts=curve.contexts.tolist(),
        seconds=curve.seconds.ravel().tolist(),
        source=curve.source,
        sequence_seconds=curve.sequence_seconds,
        tokens_per_sequence=curve.tokens_per_sequence,
        borrowed=curve.borrowed,
    )
