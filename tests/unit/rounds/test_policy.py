import pytest

from dspark.errors import InvalidRequest
from dspark.rounds.policy import Adaptive, Fixed, Off, Policy, Threshold, parse_policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("off", Off()),
        ("adaptive", Adaptive()),
        ("fixed:3", Fixed(3)),
        ("threshold:0.25", Threshold(0.25)),
    ],
)
def test_every_policy_reads_back_what_it_prints(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy
    assert str(policy) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "off:1",
        "adaptive:2",
        "greedy:2",
        "fixed",
        "fixed:0",
        "fixed:65",
        "fixed:1.5",
        "fixed:²",
        "threshold:nan",
        "threshold:2",
    ],
)
def test_a_malformed_policy_is_refused_by_field_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^speculation\.policy: ") as refused:
        parse_policy(text)
    assert refused.value.field == "speculation.policy"


@pytest.mark.parametrize("former", ["greedy", "async"])
def test_a_former_name_is_refused_with_the_new_one(former: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{former} is called adaptive now"):
        parse_policy(former)
