"""Validation of requests, the same for every entry. Errors name the field.

What is known but not supported is refused by name, never ignored. Nothing is allocated for a
refused request.

A request gets the acceptance rule that it names. With a seed and no rule it gets `coupled`, which
alone repeats an answer whatever the load, the drafter or the schedule. Otherwise it gets the
deployment's rule. Draws are keyed by the request's seed, or by the one that the caller passes.

Comparisons are written so that they refuse NaN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.requests.request import Request
from dspark.errors import ConfigError, ContextExceeded, InvalidRequest, PeerError
from dspark.rounds.policy import Policy, parse_policy
from dspark.types import (
    MAX_BIAS,
    MAX_BIASED,
    MAX_LOGPROBS,
    SAMPLING_RANGES,
    Constraint,
    ConstraintKind,
    Rule,
    SamplingParams,
    scores_problem,
)
from dspark.wire.codec import read_constraint
from dspark.wire.v1 import generate_pb2, types_pb2


def check_count(field: str, count: int, most: int, what: str) -> None:
    """Raises InvalidRequest naming `field` for more than `most` of `what`."""
    if count > most:
        raise InvalidRequest(field, f"{count} {what}, at most {most} are allowed")


def check_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raises InvalidRequest naming `field` for a token id beyond the vocabulary."""
    if (largest := max(ids, default=0)) >= vocab_size:
        raise InvalidRequest(
            field, f"token id {largest} is not below the vocabulary size {vocab_size}"
        )


def parse_rule(text: str, *, field: str = "rule") -> Rule:
    """The rule called `token`, `block` or `coupled`; InvalidRequest names `field`."""
    try:
        return Rule[text.upper()]
    except KeyError:
        raise InvalidRequest(
            field, f"{text!r} is none of {', '.join(rule.name.lower() for rule in Rule)}"
        ) from None


def read_defaults(section: str, policy: str, rule: str) -> tuple[Policy, Rule]:
    """The policy and the rule that a section of the configuration names. Raises ConfigError."""
    try:
        return (
            parse_policy(policy, field=f"{section}.policy"),
            parse_rule(rule, field=f"{section}.rule"),
        )
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error


MAX_ID = 128
MAX_TEXT = 4 * 1024 * 1024  # characters
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_IDS = 64
WEIGHTS = (0.01, 100.0)  # least and most
LABEL = re.compile("[A-Za-z0-9._-]{0,32}")
DEFAULT_MAX_TOKENS = 256

MAX_CHOICES = 16

_PARAMS = "sampling_params"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the target and the deployment set for a request."""

    vocab_size: int
    context_length: int
    capacity: int  # tokens a verifier's page pool holds; 0 when unknown
    stop_token_ids: tuple[int, ...]
    policy: Policy
    rule: Rule = Rule.BLOCK

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return min(self.context_length, self.capacity or self.context_length)


def check_head(message: generate_pb2.GenerateRequest, has_tokenizer: bool) -> None:
    """Checks names, label, kind of input and rule, before the prompt. Raises InvalidRequest."""
    names = {"request_id": message.request_id, "cache_salt": message.cache_salt}
    for field, name in (names | {"speculation.drafter": message.speculation.drafter}).items():
        if len(name) > MAX_ID:
            raise InvalidRequest(field, f"{len(name)} characters, at most {MAX_ID} are allowed")
    if not LABEL.fullmatch(message.label):
        raise InvalidRequest(
            "label", f"{message.label[:40]!r} is not of letters, digits and ._- up to 32"
        )
    kind = message.WhichOneof("input")
    if kind is None:
        raise InvalidRequest("input", "give text or tokenized.input_ids")
    if kind == "text" and not has_tokenizer:
        raise InvalidRequest("text", "the target has no tokenizer; send tokenized.input_ids")
    if message.speculation.rule not in (types_pb2.RULE_UNSPECIFIED, *Rule):
        raise InvalidRequest("speculation.rule", f"{message.speculation.rule} is not a rule")


def read_request(
    message: generate_pb2.GenerateRequest,
    prompt: tuple[int, ...],
    limits: Limits,
    *,
    name: str,
    seed: int,
    tenant: str = "",
    has_tokenizer: bool = False,
) -> Request:
    """Checks a message and returns its request; InvalidRequest names the field. name, seed: for a
    message without its own. has_tokenizer: whether text can be tokenized."""
    check_head(message, has_tokenizer)
    field = "text" if message.WhichOneof("input") == "text" else "tokenized.input_ids"
    longest, vocab_size = limits.longest, limits.vocab_size
    asked = message.sampling_params
    alone = asked.HasField("max_tokens") and not asked.max_tokens
    # alone it may fill the context, not all pages: the token drawn behind it has one, unused
    most = longest - 1 + (alone and longest != limits.capacity)
    _check_prompt(prompt, field, most, longest, vocab_size)
    policy = (
        parse_policy(message.speculation.policy) if message.speculation.policy else limits.policy
    )
    rule = Rule.COUPLED if asked.HasField("seed") else limits.rule
    if message.speculation.rule != types_pb2.RULE_UNSPECIFIED:
        rule = Rule(message.speculation.rule)
    stops = _read_stops(asked, has_tokenizer)
    stop_ids = _read_stop_ids(asked, limits)
    max_tokens = _read_max_tokens(asked, len(prompt), longest)
    min_tokens = _min_tokens(asked, max_tokens, stop_ids, vocab_size)
    params = SamplingParams(
        **_numbers(asked),
        top_k=asked.top_k,
        seed=asked.seed if asked.HasField("seed") else seed,
        rule=rule,
        logit_bias=_bias(asked, vocab_size),
        min_tokens=min_tokens,
        stop_token_ids=tuple(sorted(stop_ids)) if min_tokens else (),
        logprobs=_whole(asked, "logprobs", 0, MAX_LOGPROBS),
        prompt_len=len(prompt),
        constraint=_constraint(message),
    )
    return Request(
        id=message.request_id or name,
        prompt=prompt,
        params=params,
        max_tokens=max_tokens,
        policy=policy,
        stop_ids=stop_ids,
        stops=stops,
        show_stop=asked.include_stop_str_in_output,
        skip_special=asked.skip_special_tokens if asked.HasField("skip_special_tokens") else True,
        choices=_whole(asked, "n", 1, MAX_CHOICES) or 1,
        weight=_read_weight(message.speculation),
        drafter=message.speculation.drafter,
        cache_salt=message.cache_salt,
        seeded=asked.HasField("seed"),
        tenant=tenant,
        label=message.label,
        traceparent=message.traceparent[:MAX_ID],
        prompt_logprobs=_read_scores(asked, len(prompt)),
    )


def read_resume(message: generate_pb2.GenerateRequest, choices: int) -> tuple[int, ...]:
    """How many tokens of each answer the client has; empty for a new request."""
    if not message.HasField("resume"):
        return ()
    if not message.request_id:
        raise InvalidRequest("resume", "say by request_id what is to be resumed")
    if message.sampling_params.HasField("prompt_logprobs"):
        raise InvalidRequest("resume", "not beside prompt_logprobs; ask anew")
    held = tuple(message.resume.offsets)
    if len(held) != choices:
        raise InvalidRequest("resume.offsets", f"{len(held)} offsets for {choices} answers")
    return held


def _read_weight(params: generate_pb2.SpeculationParams) -> float:
    weight = params.weight if params.HasField("weight") else 1.0
    if not WEIGHTS[0] <= weight <= WEIGHTS[1]:
        raise InvalidRequest(
            "speculation.weight", f"{weight:g} is not in [{WEIGHTS[0]:g}, {WEIGHTS[1]:g}]"
        )
    return weight


def _check_prompt(
    prompt: tuple[int, ...], field: str, most: int, longest: int, vocab_size: int
) -> None:
    if not prompt:
        raise InvalidRequest(field, "the prompt is empty")
    if len(prompt) > most:
        raise ContextExceeded(
            field,
            f"the prompt is too long: this model's maximum context length is {longest} tokens "
            f"here, and {len(prompt)} prompt tokens leave no room for an answer",
        )
    check_ids(field, prompt, vocab_size)


def _read_stops(params: generate_pb2.SamplingParams, has_tokenizer: bool) -> tuple[str, ...]:
    if not params.stop:
        return ()
    field = f"{_PARAMS}.stop"
    check_count(field, len(params.stop), MAX_STOPS, "strings")
    for stop in params.stop:
        check_count(field, len(stop), MAX_STOP_CHARACTERS, "characters in one string")
        if not stop:
            raise InvalidRequest(field, "a string is empty")
    if not has_tokenizer:
        raise InvalidRequest(field, "the target has no tokenizer, so there is no text to look at")
    return tuple(params.stop)


def _read_stop_ids(params: generate_pb2.SamplingParams, limits: Limits) -> frozenset[int]:
    given = frozenset(params.stop_token_ids)
    if given:
        field = f"{_PARAMS}.stop_token_ids"
        check_count(field, len(params.stop_token_ids), MAX_STOP_IDS, "ids")
        check_ids(field, given, limits.vocab_size)
    return given if params.ignore_eos else given | frozenset(limits.stop_token_ids)


def _read_scores(params: generate_pb2.SamplingParams, prompt_len: int) -> int | None:
    if not params.HasField("prompt_logprobs"):
        return None
    if (problem := scores_problem(prompt_len, params.prompt_logprobs)) is not None:
        raise InvalidRequest(f"{_PARAMS}.prompt_logprobs", problem)
    return params.prompt_logprobs


def _read_max_tokens(params: generate_pb2.SamplingParams, prompt_len: int, longest: int) -> int:
    field = f"{_PARAMS}.max_tokens"
    room = longest - prompt_len
    if not params.HasField("max_tokens"):
        return min(DEFAULT_MAX_TOKENS, room)
    if params.max_tokens < 1 and not params.HasField("prompt_logprobs"):
        raise InvalidRequest(field, f"must be at least 1, got {params.max_tokens}")
    if params.max_tokens > room:
        raise ContextExceeded(
            field,
            f"{prompt_len} prompt tokens and {params.max_tokens} more exceed context limit: this "
            f"model's maximum context length is {longest} tokens here",
        )
    return params.max_tokens


def _whole(params: generate_pb2.SamplingParams, name: str, least: int, most: int) -> int | None:
    """A whole number within bounds; None when the field is not set."""
    if not params.HasField(name):
        return None
    value: int = getattr(params, name)
    if not least <= value <= most:
        raise InvalidRequest(f"{_PARAMS}.{name}", f"must be in {least}..{most}, got {value}")
    return value


def _numbers(params: generate_pb2.SamplingParams) -> dict[str, Any]:
    """The fields of `SAMPLING_RANGES` that are given."""
    found = {}
    for name, (fits, range_) in SAMPLING_RANGES.items():
        if params.HasField(name):
            found[name] = getattr(params, name)
            if not fits(found[name]):
                got = np.float32(found[name])
                raise InvalidRequest(f"{_PARAMS}.{name}", f"must be {range_}, got {got!s}")
    return found


def _bias(params: generate_pb2.SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if not params.logit_bias:
        return ()
    field = f"{_PARAMS}.logit_bias"
    check_count(field, len(params.logit_bias), MAX_BIASED, "entries")
    check_ids(field, params.logit_bias, vocab_size)
    bias = sorted(params.logit_bias.items())
    for token, value in bias:
        if not abs(value) <= MAX_BIAS:
            raise InvalidRequest(
                field,
                f"must be in [{-MAX_BIAS:g}, {MAX_BIAS:g}], "
                f"got {np.float32(value)!s} for token id {token}",
            )
    return tuple(bias)


def _min_tokens(
    params: generate_pb2.SamplingParams, max_tokens: int, stop_ids: frozenset[int], vocab_size: int
) -> int:
    field = f"{_PARAMS}.min_tokens"
    if params.min_tokens > max_tokens:
        raise InvalidRequest(field, f"{params.min_tokens} is more than max_tokens, {max_tokens}")
    if params.min_tokens and len(stop_ids) >= vocab_size:
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
        raise InvalidRequest(
            "sampling_params.ignore_eos",
            "not beside a constraint: such an answer ends where its form does",
        )
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
