"""Desired replicas. Pure: configuration in, names and settings out. Knows nothing of Ray, processes or time."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.config import ClusterConfig


class Role(enum.StrEnum):
    """The rooms that run as processes; the values are the words of `dspark serve`."""

    COORDINATOR = "coordinator"
    VERIFY = "verify"
    DRAFT = "draft"


@dataclass(frozen=True)
class Replica:
    """One process that should exist.

    name: for people, stable over restarts. settings: fields of the room's configuration. gpus: what Ray reserves.
    """

    name: str
    role: Role
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpus: float = 0.0


@dataclass(frozen=True)
class Topology:
    """All processes of a cell."""

    replicas: tuple[Replica, ...]

    def named(self, name: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.name == name), None)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(replica.name for replica in self.replicas)

    @property
    def coordinator(self) -> Replica:
        return next(replica for replica in self.replicas if replica.role is Role.COORDINATOR)


def desired(config: ClusterConfig, settings: Mapping[Role, Mapping[str, Any]]) -> Topology:
    """The processes `config` asks for; `settings` holds the resolved configuration of each room."""
    counts = {Role.COORDINATOR: 1, Role.VERIFY: config.verifiers, Role.DRAFT: config.drafters}
    gpus = {Role.COORDINATOR: 0.0, Role.VERIFY: config.verifier_gpus, Role.DRAFT: config.drafter_gpus}
    return Topology(
        tuple(
            Replica(f"{role}/{index}", role, dict(settings.get(role, {})), gpus[role])
            for role in Role
            for index in range(counts[role])
        )
    )
