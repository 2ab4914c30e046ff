"""Desired replicas. Pure: configuration in, names and settings out. Uses no Ray, process or
clock."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from deploy.config import MOST, NO_DRAFTER, ClusterConfig
from dspark.errors import ConfigError
from dspark.runtime.process import parse_cpus, threads_for


class ProcessRole(enum.StrEnum):
    """The rooms that run as processes; the values are the words of `dspark serve`."""

    COORDINATOR = "coordinator"
    VERIFY = "verify"
    DRAFT = "draft"
    FRONTEND = "frontend"


POOLS = (ProcessRole.VERIFY, ProcessRole.DRAFT)
WORKERS = tuple(f"{role}/" for role in POOLS)  # how names of workers begin


@dataclass(frozen=True)
class Replica:
    """One process that should exist.

    name: for people, stable over restarts. settings: fields of the room's configuration. gpus,
    cpus, memory_gib: what Ray reserves; None until it is known. selector: labels its node must
    have.
    """

    name: str
    role: ProcessRole
    settings: Mapping[str, Any] = field(default_factory=dict)
    gpus: float | None = None
    cpus: float | None = None
    memory_gib: float | None = None
    selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Topology:
    """All processes of a cell. templates: a replica of each role, without its name. sizes: number
    of replicas of each role."""

    templates: Mapping[ProcessRole, Replica]
    sizes: Mapping[ProcessRole, int]

    @cached_property
    def replicas(self) -> Mapping[str, Replica]:
        """By name, the coordinator first."""
        names = {
            f"{role}/{index}": role for role in ProcessRole for index in range(self.sizes[role])
        }
        return {name: replace(self.templates[role], name=name) for name, role in names.items()}

    @property
    def names(self) -> Set[str]:
        return self.replicas.keys()

    @property
    def coordinator(self) -> Replica:
        return self.replicas[f"{ProcessRole.COORDINATOR}/0"]


def sizes_of(config: ClusterConfig) -> dict[ProcessRole, int]:
    """How many processes of each role there are at first."""
    return {
        ProcessRole.COORDINATOR: 1,
        ProcessRole.VERIFY: config.verifiers,
        ProcessRole.DRAFT: config.drafters,
        ProcessRole.FRONTEND: config.frontends,
    }


def desired(config: ClusterConfig, settings: Mapping[ProcessRole, Mapping[str, Any]]) -> Topology:
    """The processes that `config` asks for, with the reservations that it states (`reserving` adds
    the others). settings: resolved configuration of each room."""
    stated: dict[ProcessRole, dict[str, Any]] = {
        ProcessRole.COORDINATOR: {
            "cpus": config.coordinator_cpus,
            "selector": _labels(config.coordinator_selector),
        },
        ProcessRole.FRONTEND: {"cpus": config.coordinator_cpus},
        ProcessRole.VERIFY: {
            "gpus": config.verifier_gpus,
            "cpus": config.verifier_cpus,
            "memory_gib": config.verifier_memory_gib,
            "selector": _labels(config.verifier_selector),
        },
        ProcessRole.DRAFT: {
            "gpus": config.drafter_gpus,
            "cpus": config.drafter_cpus,
            "memory_gib": config.drafter_memory_gib,
            "selector": _labels(config.drafter_selector),
        },
    }
    templates = {
        role: Replica(str(role), role, dict(settings.get(role, {})), **stated[role])
        for role in ProcessRole
    }
    return Topology(templates, sizes_of(config))


def resized(topology: Topology, verifiers: int, drafters: int) -> Topology:
    """The same cell with pools of other sizes; replicas that stay keep their names, those with the
    highest numbers leave first. Raises ConfigError."""
    for pool, size, least in (("verify", verifiers, 1), ("draft", drafters, 0)):
        if not least <= size <= MOST:
            raise ConfigError(f"scale: {pool}={size} is not in {least}..{MOST}")
    if drafters and topology.templates[ProcessRole.DRAFT].settings.get("drafter") == NO_DRAFTER:
        raise ConfigError(
            f"scale: the cell was started without a drafter, {drafters} of them would have no "
            "weights"
        )
    pools = {ProcessRole.VERIFY: verifiers, ProcessRole.DRAFT: drafters}
    return replace(topology, sizes={**topology.sizes, **pools})


def _labels(selector: str | None) -> dict[str, str]:
    label, _, value = (selector or "").partition("=")
    return {label: value} if label else {}


def threads_of(role: ProcessRole, settings: Mapping[str, Any], alike: int) -> int:
    """Number of threads of one of `alike` workers on a machine, by its settings."""
    if settings.get("engine") == "synthetic":  # it only waits
        return 1
    cpus = settings.get("cpus")
    processors = len(parse_cpus(cpus, f"{role}.cpus")) if cpus else 0
    return int(settings.get("threads") or 0) or threads_for(
        verifies=role is ProcessRole.VERIFY, alike=alike, processors=processors
    )
