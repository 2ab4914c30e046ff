"""Workers' descriptions as the facts that lanes use, and checks whether workers fit together."""

from __future__ import annotations

from coordinator.lanes.facts import DrafterFacts, VerifierFacts, WorkerFacts
from coordinator.planning.cost import CostCurve
from dspark.client.fields import copied
from dspark.fingerprint import difference
from dspark.rounds.plan import MAX_SLOTS
from dspark.wire.v1 import draft_pb2, types_pb2, verify_pb2

MOST_CURVE = 1 << 20  # bytes; plans and statuses read all of it, and a measured one has a few KB


def verifier_facts(name: str, endpoint: str, said: verify_pb2.VerifierDescription) -> VerifierFacts:
    pages = said.load.pages_total if said.page_size else 0
    return copied(
        VerifierFacts, said, name=name, endpoint=endpoint, pages_total=pages, cost=_cost(said.cost)
    )


def drafter_facts(name: str, endpoint: str, said: draft_pb2.DrafterDescription) -> DrafterFacts:
    return copied(DrafterFacts, said, name=name, endpoint=endpoint, cost=_cost(said.cost))


def _cost(message: types_pb2.CostCurve) -> CostCurve | None:
    """None when the curve is absent, malformed or beyond MOST_CURVE."""
    if message.ByteSize() > MOST_CURVE:
        return None
    try:
        return CostCurve(
            message.tokens,
            message.contexts,
            message.seconds,
            sequence_seconds=message.sequence_seconds,
            tokens_per_sequence=message.tokens_per_sequence,
            borrowed=message.borrowed,
        )
    except ValueError:
        return None


_LEAST = {"vocab_size": 1, "context_length": 2, "block_size": 1}  # 2: a prompt token and one more


def senseless(facts: WorkerFacts) -> str | None:
    """None when the facts are possible; else a sentence that names the impossible field."""
    for name, least in _LEAST.items():
        if (value := getattr(facts, name, least)) < least:
            return f"{facts.name} says {name}: {value}, and at least {least} is wanted"
    if (slots := getattr(facts, "block_size", 1)) > MAX_SLOTS:
        return f"{facts.name} says block_size: {slots}, and at most {MAX_SLOTS} is possible"
    return None


def drafter_mismatch(verifier: VerifierFacts, drafter: DrafterFacts) -> str | None:
    """None when the drafter can draft for this verifier's sequences; else a sentence why not."""
    if not verifier.projection:
        return f"{verifier.name} projects no features, so no drafter can serve it"
    if drafter.vocab_size != verifier.vocab_size:
        return (
            f"{drafter.name} has a vocabulary of {drafter.vocab_size}, "
            f"the target on {verifier.name} one of {verifier.vocab_size}"
        )
    if drafter.hidden_size != verifier.hidden_size:
        return (
            f"{drafter.name} takes feature rows of {drafter.hidden_size} values, "
            f"{verifier.name} sends rows of {verifier.hidden_size}"
        )
    if drafter.projection != verifier.projection:
        return (
            f"{verifier.name} does not feed it: {drafter.name} "
            f"{difference(drafter.projection, verifier.projection)}"
        )
    return None


def verifier_mismatch(first: VerifierFacts, other: VerifierFacts) -> str | None:
    """None when the other verifier can continue sequences of the first; else a sentence why not."""
    if other.vocab_size != first.vocab_size:
        return (
            f"{other.name} has a vocabulary of {other.vocab_size}, {first.name} one of "
            f"{first.vocab_size}"
        )
    if other.fingerprint != first.fingerprint:
        return (
            f"{other.name} serves the target {other.fingerprint[:12]} ({other.model}), "
            f"{first.name} {first.fingerprint[:12]} ({first.model}): all verifiers of a cell serve "
            "the same one"
        )
    return None
