"""Which acceptance rule a request runs under. Pure.

Named rules win. A request that brings a seed and names none wants its answer again, which the coupled rule alone
promises whatever the load, the drafter or the schedule. Everything else runs under the deployment's rule.
"""

from __future__ import annotations

from dspark.errors import InvalidRequest
from dspark.types import Rule
from dspark.wire.v1 import generate_pb2, types_pb2


def parse_rule(text: str, *, field: str = "rule") -> Rule:
    """`token`, `block` or `coupled`."""
    try:
        return Rule[text.upper()]
    except KeyError:
        raise InvalidRequest(field, f"{text!r} is none of {', '.join(rule.name.lower() for rule in Rule)}") from None


def check_rule(message: generate_pb2.GenerateRequest) -> None:
    """Refuses a number that names no rule."""
    if message.speculation.rule not in (types_pb2.RULE_UNSPECIFIED, *Rule):
        raise InvalidRequest("speculation.rule", f"{message.speculation.rule} is not a rule")


def choose_rule(message: generate_pb2.GenerateRequest, default: Rule) -> Rule:
    """The rule of a request that `check_rule` passed."""
    if message.speculation.rule != types_pb2.RULE_UNSPECIFIED:
        return Rule(message.speculation.rule)
    return Rule.COUPLED if message.sampling_params.HasField("seed") else default
