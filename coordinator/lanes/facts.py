"""What workers said they are, as lanes know them. No messages and no sockets here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coordinator.planning.cost import CostCurve


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker of either role said it is."""

    name: str
    endpoint: str
    incarnation: int
    pid: int
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
    pages_total: int  # 0 when it does not say
    attention_path: str
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrafterFacts(WorkerFacts):
    block_size: int


class DrafterPort(Protocol):
    """One drafter process, told apart by who it is. Verifiers speak to it, a lane only names it to
    them."""

    @property
    def facts(self) -> DrafterFacts: ...
