import math
from dataclasses import replace
from typing import Any

import pytest

from coordinator.requests.request import Request
from coordinator.requests.validation import Limits, parse_rule, read_request, read_resume
from dspark.errors import InvalidRequest, Unsupported
from dspark.rounds.policy import Adaptive, Fixed
from dspark.types import Rule, SamplingParams
from dspark.wire.v1 import generate_pb2 as g

LIMITS = Limits(100, 50, 40, (1,), Adaptive())


def read(
    message: g.GenerateRequest, has_tokenizer: bool = False, limits: Limits = LIMITS
) -> Request:
    prompt = tuple(message.tokenized.input_ids) or ((7, 8) if message.text else ())
    return read_request(
        message, prompt, limits, name="made-up", seed=42, has_tokenizer=has_tokenizer
    )


def refused(message: g.GenerateRequest, **options: Any) -> str:
    """The field that is named."""
    with pytest.raises(InvalidRequest) as caught:
        read(message, **options)
    assert not isinstance(caught.value, Unsupported)
    return caught.value.field


def ask(ids: tuple[int, ...] = (5, 6), **params: object) -> g.GenerateRequest:
    return g.GenerateRequest(
        tokenized=g.TokenizedInput(input_ids=ids), sampling_params=g.SamplingParams(**params)
    )


def test_what_is_absent_takes_the_default() -> None:
    assert read(ask()) == Request(
        id="made-up",
        prompt=(5, 6),
        params=SamplingParams(1.0, 1.0, 0, 42, 0, Rule.BLOCK, prompt_len=2),
        max_tokens=38,
        policy=Adaptive(),
        stop_ids=frozenset({1}),
    )


def test_what_is_given_is_taken() -> None:
    law = {"temperature": 0.5, "top_p": 0.25, "top_k": 9, "seed": 3}
    message = ask(**law, max_tokens=5, stop_token_ids=[4], ignore_eos=True, n=16)
    message.request_id = "mine"
    message.speculation.policy, message.speculation.weight = "fixed:2", 4.0
    request = read(message)
    params = SamplingParams(0.5, 0.25, 9, 3, rule=Rule.COUPLED, prompt_len=2)
    assert (request.id, request.params, request.max_tokens) == ("mine", params, 5)
    told = (request.policy, request.stop_ids, request.choices, request.weight)
    assert told == (Fixed(2), frozenset({4}), 16, 4.0)


def test_zero_is_a_temperature_and_a_seed() -> None:
    request = read(ask(temperature=0.0, seed=0))
    assert (request.params.temperature, request.params.seed) == (0.0, 0)


P = "sampling_params."


def beside(**fields: Any) -> g.GenerateRequest:
    """A request with fields beside its sampling parameters."""
    return g.GenerateRequest(tokenized=g.TokenizedInput(input_ids=[1]), **fields)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("input", g.GenerateRequest()),
        ("tokenized.input_ids", ask(())),
        ("tokenized.input_ids", ask((5, 100))),
        ("tokenized.input_ids", ask((5,) * 50)),
        ("text", g.GenerateRequest(text="hello")),
        ("request_id", beside(request_id="x" * 129)),
        ("label", beside(label="a b")),
        ("label", beside(label="x" * 33)),
        ("cache_salt", beside(cache_salt="x" * 129)),
        ("speculation.policy", beside(speculation=g.SpeculationParams(policy="fastest"))),
        ("speculation.rule", beside(speculation=g.SpeculationParams(rule=9))),
        *(
            ("speculation.weight", beside(speculation=g.SpeculationParams(weight=weight)))
            for weight in (0.0, -1.0, 1e9, math.nan)
        ),
    ],
)
def test_what_is_malformed_is_refused_by_field_name(field: str, message: g.GenerateRequest) -> None:
    assert refused(message) == field


def test_a_prompt_alone_may_fill_the_context_but_not_the_pool() -> None:
    for limits, longest in ((LIMITS, 39), (replace(LIMITS, capacity=60), 50)):
        read(ask((5,) * longest, max_tokens=0, prompt_logprobs=0), limits=limits)
        with pytest.raises(InvalidRequest, match="leave no room"):
            read(ask((5,) * (longest + 1), max_tokens=0, prompt_logprobs=0), limits=limits)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (ask((5,) * 45), "^tokenized.input_ids: .* is 40 tokens here, and 45 prompt tokens leave"),
        (ask(max_tokens=39), "2 prompt tokens and 39 more exceed .* length is 40 tokens here"),
        (ask(stop_token_ids=list(range(65))), "65 ids, at most 64 are allowed"),
        (ask(logit_bias={7: 1.0, 100: 1.0}), "token id 100 is not below the vocabulary size 100"),
        # as it was asked, not as what a float32 makes of it
        (ask(top_p=1.1), r"must be in \(0, 1\], got 1\.1$"),
        (ask(logit_bias={7: 100.1}), r"got 100\.1 for token id 7$"),
    ],
)
def test_a_refusal_says_the_limit(message: g.GenerateRequest, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        read(message)


@pytest.mark.parametrize("stop", [["x"] * 17, ["x" * 257], [""]])
def test_stop_strings_are_bounded(stop: list[str]) -> None:
    assert refused(ask(stop=stop), has_tokenizer=True) == P + "stop"


SHAPED = {
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "presence_penalty": -2.0,
    "frequency_penalty": 2.0,
    "logit_bias": {7: -100.0, 3: 1.5},
    "min_tokens": 5,
    "logprobs": 20,
}


def test_what_shapes_the_law_is_taken_as_it_is_sent() -> None:
    params = read(ask(**SHAPED, max_tokens=5, stop_token_ids=[9, 4])).params
    assert params == SamplingParams(
        seed=42,
        rule=LIMITS.rule,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias=((3, 1.5), (7, -100.0)),
        min_tokens=5,
        stop_token_ids=(1, 4, 9),
        logprobs=20,
        prompt_len=2,
    )
    assert params.shapes


def test_ids_that_end_an_answer_are_told_to_nobody_without_a_least_length() -> None:
    assert read(ask(stop_token_ids=[9])).params.stop_token_ids == ()
    assert read(ask(min_tokens=1, ignore_eos=True)).params.stop_token_ids == ()
    given = read(ask(min_tokens=1, ignore_eos=True, stop_token_ids=[9]))
    assert given.params.stop_token_ids == (9,)


@pytest.mark.parametrize(
    "params",
    [
        {"min_p": 0.0},
        {"repetition_penalty": 1.0},
        {"presence_penalty": 0.0},
        {"frequency_penalty": -0.0},
        {"n": 1},
        {"min_tokens": 0},
    ],
)
def test_neutral_values_make_a_plain_law(params: dict[str, object]) -> None:
    request = read(ask(**params))
    assert request.params == SamplingParams(seed=42, rule=LIMITS.rule, prompt_len=2)
    assert request.choices == 1


BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [*BAD, -0.1]),
        ("top_p", [*BAD, 0.0, 1.5]),
        ("max_tokens", [0, 49, 39]),
        ("stop", [["x"]]),
        ("stop_token_ids", [[100], list(range(65))]),
        ("min_p", [*BAD, -0.1, 1.1]),
        ("repetition_penalty", [*BAD, 0.0, -1.0, 101.0]),
        ("presence_penalty", [*BAD, -2.1, 2.1]),
        ("frequency_penalty", [*BAD, -2.1, 2.1]),
        ("min_tokens", [39]),
        ("n", [0, 17, 2**32 - 1]),
        ("logprobs", [-1, 21, 2**31 - 1]),
        ("prompt_logprobs", [-1, 21, 2**31 - 1]),
        (
            "logit_bias",
            [{3: math.nan}, {3: math.inf}, {3: 100.5}, {3: -101.0}, {100: 0.0}, {2**32 - 1: 1.0}],
        ),
    ],
)
def test_what_is_out_of_range_is_refused_by_field_name(name: str, values: list[object]) -> None:
    for value in values:
        assert refused(ask(**{name: value})) == P + name


def test_biases_are_bounded_in_number() -> None:
    wide = replace(LIMITS, vocab_size=4096)
    most, more = (ask(logit_bias=dict.fromkeys(range(count), 1.0)) for count in (1024, 1025))
    assert len(read(most, limits=wide).params.logit_bias) == 1024
    assert refused(more, limits=wide) == P + "logit_bias"


def test_a_least_length_needs_a_token_that_does_not_end_the_answer() -> None:
    asked = ask((1, 2), min_tokens=1, stop_token_ids=[0, 2])
    assert refused(asked, limits=replace(LIMITS, vocab_size=3)) == P + "min_tokens"


def under(rule: int, **params: object) -> g.GenerateRequest:
    message = ask(**params)
    message.speculation.rule = rule
    return message


@pytest.mark.parametrize("rule", list(Rule))
def test_a_named_rule_wins_with_a_seed_or_without(rule: Rule) -> None:
    assert read(under(rule)).params.rule is rule
    seeded = read(under(rule, seed=5))
    assert seeded.params == SamplingParams(seed=5, rule=rule, prompt_len=2)
    assert seeded.policy == LIMITS.policy


def test_a_seed_alone_asks_for_the_coupled_rule_and_nothing_for_the_deployment_s() -> None:
    assert read(ask(seed=5)).params == SamplingParams(seed=5, rule=Rule.COUPLED, prompt_len=2)
    for rule in Rule:
        limits = replace(LIMITS, rule=rule)
        assert read(ask(), limits=limits).params.rule is rule
        assert read(ask(seed=0), limits=limits).params.rule is Rule.COUPLED


def test_a_prompt_may_be_scored_alone_and_within_bounds() -> None:
    request = read(ask(max_tokens=0, prompt_logprobs=3))
    assert (request.max_tokens, request.prompt_logprobs, request.longest) == (0, 3, 3)
    message = ask(prompt_logprobs=1)
    message.request_id = "one"
    message.resume.offsets.append(0)
    with pytest.raises(InvalidRequest, match="not beside prompt_logprobs"):
        read_resume(message, 1)


@pytest.mark.parametrize(
    ("text", "rule"), [("token", Rule.TOKEN), ("Block", Rule.BLOCK), ("coupled", Rule.COUPLED)]
)
def test_rules_have_names(text: str, rule: Rule) -> None:
    assert parse_rule(text) is rule
    with pytest.raises(InvalidRequest, match=r"coordinator\.rule"):
        parse_rule(text + "?", field="coordinator.rule")


def test_every_field_of_the_sampling_parameters_is_read() -> None:
    known = {"temperature", "top_p", "top_k", "max_tokens", "stop", "stop_token_ids"}
    known |= {"skip_special_tokens", "n"}
    known |= {"prompt_logprobs", "ignore_eos", "seed", "include_stop_str_in_output", *SHAPED}
    assert {field.name for field in g.SamplingParams.DESCRIPTOR.fields} == known
