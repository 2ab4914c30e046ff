"""What workers say of themselves, as lanes know them."""

from __future__ import annotations

from coordinator.lanes.facts import DrafterFacts, VerifierFacts
from coordinator.planning.cost import CostCurve
from dspark.wire import codec
from dspark.wire.v1 import draft_pb2, types_pb2, verify_pb2


def verifier_facts(name: str, endpoint: str, said: verify_pb2.VerifierDescription) -> VerifierFacts:
    return VerifierFacts(
        name=name,
        endpoint=endpoint,
        incarnation=said.incarnation,
        pid=said.pid,
        model=said.model,
        fingerprint=said.fingerprint,
        vocab_size=said.vocab_size,
        context_length=said.context_length,
        hidden_size=said.hidden_size,
        projection=said.projection,
        page_size=said.page_size,
        pages_total=said.load.pages_total if said.page_size else 0,
        attention_path=said.attention_path,
        stop_token_ids=tuple(said.stop_token_ids),
        cost=_cost(said.cost),
    )


def drafter_facts(name: str, endpoint: str, said: draft_pb2.DrafterDescription) -> DrafterFacts:
    return DrafterFacts(
        name=name,
        endpoint=endpoint,
        incarnation=said.incarnation,
        pid=said.pid,
        model=said.model,
        fingerprint=said.fingerprint,
        vocab_size=said.vocab_size,
        hidden_size=said.hidden_size,
        projection=said.projection,
        block_size=said.block_size,
        context_length=said.context_length,
        cost=_cost(said.cost),
    )


def _cost(message: types_pb2.CostCurve) -> CostCurve | None:
    grid = codec.read_cost(message)
    if grid is None:
        return None
    tokens, contexts, seconds = grid
    return CostCurve(
        tokens.tolist(),
        contexts.tolist(),
        seconds.ravel().tolist(),
        sequence_seconds=message.sequence_seconds,
        tokens_per_sequence=message.tokens_per_sequence,
        borrowed=message.borrowed,
    )
