"""The one check every request passes, whichever way it came in. Errors name the field.

What is understood and not built is refused by name, never ignored. Nothing is allocated for a refused request.

The acceptance rule that is named wins. A request that brings a seed and names none wants its answer again, which the
coupled rule alone promises whatever the load, the drafter or the schedule. Everything else runs under the deployment's
rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coordinator.requests.request import Request
from coordinator.requests.sampling_params import read_choices, read_sampling_params
from dspark.errors import InvalidRequest
from dspark.rounds.policy import Policy, parse_policy
from dspark.types import Rule, scores_problem
from dspark.wire.v1 import generate_pb2, types_pb2


def parse_rule(text: str, *, field: str = "rule") -> Rule:
    """`token`, `block` or `coupled`."""
    try:
        return Rule[text.upper()]
    except KeyError:
        raise InvalidRequest(field, f"{text!r} is none of {', '.join(rule.name.lower() for rule in Rule)}") from None


MAX_ID = 128
MAX_TEXT = 4 * 1024 * 1024  # characters
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_IDS = 64
WEIGHTS = (0.01, 100.0)  # least and most
LABEL = re.compile("[A-Za-z0-9._-]{0,32}")
DEFAULT_MAX_TOKENS = 256

_PARAMS = "sampling_params"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the target and the deployment allow."""

    vocab_size: int
    context_length: int
    capacity: int  # tokens a verifier's page pool holds; 0 when unknown
    stop_token_ids: tuple[int, ...]
    has_tokenizer: bool
    policy: Policy
    rule: Rule = Rule.BLOCK

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return min(self.context_length, self.capacity or self.context_length)


def check_head(message: generate_pb2.GenerateRequest, has_tokenizer: bool) -> None:
    """Everything that can be refused before the prompt is looked at."""
    names = {"request_id": message.request_id, "cache_salt": message.cache_salt}
    for field, name in (names | {"speculation.drafter": message.speculation.drafter}).items():
        if len(name) > MAX_ID:
            raise InvalidRequest(field, f"{len(name)} characters, at most {MAX_ID} are allowed")
    if not LABEL.fullmatch(message.label):
        raise InvalidRequest("label", f"{message.label[:40]!r} is not of letters, digits and ._- up to 32")
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
) -> Request:
    """A request that can be served, or an error that names the field. name, seed: of one that brings none."""
    check_head(message, limits.has_tokenizer)
    field = "text" if message.WhichOneof("input") == "text" else "tokenized.input_ids"
    _check_prompt(prompt, field, limits)
    asked = message.sampling_params
    policy = parse_policy(message.speculation.policy) if message.speculation.policy else limits.policy
    rule = Rule.COUPLED if asked.HasField("seed") else limits.rule
    if message.speculation.rule != types_pb2.RULE_UNSPECIFIED:
        rule = Rule(message.speculation.rule)
    stops = _read_stops(asked, limits.has_tokenizer)
    stop_ids = _read_stop_ids(asked, limits)
    max_tokens = _read_max_tokens(asked, len(prompt), limits)
    params = read_sampling_params(
        message,
        rule,
        seed,
        prompt_len=len(prompt),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        vocab_size=limits.vocab_size,
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
        choices=read_choices(asked),
        weight=_read_weight(message.speculation),
        drafter=message.speculation.drafter,
        cache_salt=message.cache_salt,
        seeded=asked.HasField("seed"),
        label=message.label,
        traceparent=message.traceparent[:MAX_ID],
        prompt_logprobs=_read_scores(asked, len(prompt)),
    )


def read_resume(message: generate_pb2.GenerateRequest, choices: int) -> tuple[int, ...]:
    """Tokens of each answer that the client holds; empty for a new request."""
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
        raise InvalidRequest("speculation.weight", f"{weight:g} is not in [{WEIGHTS[0]:g}, {WEIGHTS[1]:g}]")
    return weight


def _check_prompt(prompt: tuple[int, ...], field: str, limits: Limits) -> None:
    if not prompt:
        raise InvalidRequest(field, "the prompt is empty")
    if len(prompt) >= limits.context_length:
        raise InvalidRequest(
            field, f"{len(prompt)} tokens leave no room for an answer in a context of {limits.context_length}"
        )
    if limits.capacity and len(prompt) >= limits.capacity:
        raise InvalidRequest(field, f"{len(prompt)} tokens can never fit into {limits.capacity} cache slots")
    if max(prompt) >= limits.vocab_size:
        raise InvalidRequest(field, f"token id {max(prompt)} is not below the vocabulary size {limits.vocab_size}")


def _read_stops(params: generate_pb2.SamplingParams, has_tokenizer: bool) -> tuple[str, ...]:
    field = f"{_PARAMS}.stop"
    if len(params.stop) > MAX_STOPS:
        raise InvalidRequest(field, f"{len(params.stop)} strings, at most {MAX_STOPS} are allowed")
    for stop in params.stop:
        if len(stop) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(field, f"a string is longer than {MAX_STOP_CHARACTERS} characters")
        if not stop:
            raise InvalidRequest(field, "a string is empty")
    if params.stop and not has_tokenizer:
        raise InvalidRequest(field, "the target has no tokenizer, so there is no text to look at")
    return tuple(params.stop)


def _read_stop_ids(params: generate_pb2.SamplingParams, limits: Limits) -> frozenset[int]:
    field = f"{_PARAMS}.stop_token_ids"
    if len(params.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidRequest(field, f"{len(params.stop_token_ids)} ids, at most {MAX_STOP_IDS} are allowed")
    given = frozenset(params.stop_token_ids)
    if given and max(given) >= limits.vocab_size:
        raise InvalidRequest(field, f"token id {max(given)} is not below the vocabulary size {limits.vocab_size}")
    return given if params.ignore_eos else given | frozenset(limits.stop_token_ids)


def _read_scores(params: generate_pb2.SamplingParams, prompt_len: int) -> int | None:
    if not params.HasField("prompt_logprobs"):
        return None
    if (problem := scores_problem(prompt_len, params.prompt_logprobs)) is not None:
        raise InvalidRequest(f"{_PARAMS}.prompt_logprobs", problem)
    return params.prompt_logprobs


def _read_max_tokens(params: generate_pb2.SamplingParams, prompt_len: int, limits: Limits) -> int:
    field = f"{_PARAMS}.max_tokens"
    room = limits.context_length - prompt_len
    if not params.HasField("max_tokens"):
        return min(DEFAULT_MAX_TOKENS, limits.longest - prompt_len)
    if params.max_tokens < 1 and not params.HasField("prompt_logprobs"):
        raise InvalidRequest(field, f"must be at least 1, got {params.max_tokens}")
    if params.max_tokens > room:
        raise InvalidRequest(
            field,
            f"{prompt_len} prompt tokens and {params.max_tokens} more exceed the context of {limits.context_length}",
        )
    if limits.capacity and prompt_len + params.max_tokens > limits.capacity:
        raise InvalidRequest(
            field, f"{prompt_len} prompt tokens and {params.max_tokens} more never fit into {limits.capacity} slots"
        )
    return params.max_tokens
