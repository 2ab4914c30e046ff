"""What workers announced about themselves, as plain data for lanes. No messages, no sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.planning.cost import CostCurve


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a verifier or drafter process announced about itself."""

    name: str
    endpoint: str
    incarnation: int
    model: str
    fingerprint: str
    vocab_size: int
    context_length: int
    hidden_size: int
    projection: str
    cost: CostCurve | None


@dataclass(frozen=True, slots=True)
class VerifierFacts(WorkerFacts):
    page_size: int  # tokens
    pages_total: int  # 0 where it announces none
    attention_path: str
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrafterFacts(WorkerFacts):
    block_size: int


class DrafterPort(Protocol):
    """One drafter process, compared by identity. A lane only names it to verifiers, which
    connect."""

    @property
    def facts(self) -> DrafterFacts: ...
