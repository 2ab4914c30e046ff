"""Computes what Ray reserves for each process where the settings do not say, and what no node can
hold. Pure.

Defaults: one GPU per worker, where the cluster has GPUs, and for a verifier one per rank of its
target. One processor per thread, on nodes with room for `ROOM` threads, and proportionally less on
smaller ones, for in a lane the verifier and its drafters compute by turns. Memory for weights and
full caches (`footprint`).

A local cluster serves one cell alone, so the cell always fits: processors are divided among twice
the cell's threads, cards that are too few are shared (by one verifier each, never two), and memory
that is missing is not reserved but warned of.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.footprint import ON_CARD, ranks_of
from deploy.topology import POOLS, ProcessRole, Replica, Topology

ROOM = 8  # threads that every node has room for
FULL = 0.9  # share of a shared card that models and caches may fill
LEAST = 1e4  # Ray counts to four decimals
VERIFIER_SHARE = 0.6  # of a shared card: above a half, so that no card gets two verifiers
DRAFTERS = 4  # fewest drafters that the rest of a shared card has room for
GIB = 1 << 30
CLOSE = 1e-6  # tolerance of sums of shares


@dataclass(frozen=True)
class Node:
    """One machine of a Ray cluster. total: amount of every resource it was started with."""

    id: str
    total: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


Nodes = Sequence[Node]
Sizes = Mapping[ProcessRole, int]
Amounts = dict[ProcessRole, float]


def reserve(
    topology: Topology,
    nodes: Nodes,
    *,
    own: bool,
    most: Sizes,
    memory: Sizes,
) -> tuple[Topology, str]:
    """Returns the cell with the reservations that were not stated, and a warning about missing
    memory (empty: there is enough).

    own: whether the cluster serves this cell alone. most: largest number of processes of each role.
    memory: bytes one of them takes on a processor.
    """
    cpus = _cpus(topology, nodes, most, own=own)
    gpus = _gpus(topology, nodes, most, own=own)
    ranks = _ranks(topology)
    memory = {
        role: ON_CARD * ranks.get(role, 1) if gpus[role] else size for role, size in memory.items()
    }
    gib, warning = _memory(topology, nodes, memory, own=own)
    templates = {
        role: replace(template, cpus=cpus[role], gpus=gpus[role], memory_gib=gib[role])
        for role, template in topology.templates.items()
    }
    verifier = templates[ProcessRole.VERIFY]
    beside = _beside(gpus[ProcessRole.VERIFY], gpus[ProcessRole.DRAFT], most[ProcessRole.DRAFT])
    if beside and "gpu_memory_utilization" in verifier.settings:
        share = min(verifier.settings["gpu_memory_utilization"], round(max(FULL - beside, 0.05), 4))
        settings = {**verifier.settings, "gpu_memory_utilization": share}
        templates[ProcessRole.VERIFY] = replace(verifier, settings=settings)
    return replace(topology, templates=templates), warning


def _cpus(topology: Topology, nodes: Nodes, most: Sizes, *, own: bool) -> Amounts:
    ranks = _ranks(topology)
    threads = {
        role: float(max(template.settings.get("threads") or 1, ranks[role]))
        for role, template in topology.templates.items()
    }
    said = {role: template.cpus for role, template in topology.templates.items()}
    free, room = max((node.total.get("CPU", 0.0) for node in nodes), default=0.0), float(ROOM)
    if own:
        free -= sum((said[role] or 0.0) * most[role] for role in threads)
        room = max(
            room, 2.0 * sum(threads[role] * most[role] for role in threads if said[role] is None)
        )
    # While there is no node yet, the first one is assumed to be large.
    share = min(max(free, 0.0) / room, 1.0) if nodes and (own or free) else 1.0
    return {
        role: _down(threads[role] * share) if given is None else given
        for role, given in said.items()
    }


def _ranks(topology: Topology) -> dict[ProcessRole, int]:
    return {role: ranks_of(role, each.settings) for role, each in topology.templates.items()}


def _gpus(topology: Topology, nodes: Nodes, most: Sizes, *, own: bool) -> Amounts:
    cards = int(_total(nodes, "GPU"))
    wanting = {role for role in POOLS if _wants_card(topology.templates[role].settings, cards)}
    share = dict.fromkeys(wanting, 1.0)
    drafters = most[ProcessRole.DRAFT] if ProcessRole.DRAFT in wanting else 0
    ranks = _ranks(topology)[ProcessRole.VERIFY]  # on one node, as Ray places an actor whole
    spare = cards
    if ProcessRole.VERIFY in wanting:
        share[ProcessRole.VERIFY] = float(ranks)
        spare -= most[ProcessRole.VERIFY] * ranks
    if own and cards and spare < drafters:
        if spare > 0:
            share[ProcessRole.DRAFT] = _down(1.0 / max(math.ceil(drafters / spare), DRAFTERS))
        elif ranks == 1:  # who takes several cards takes them whole
            share[ProcessRole.VERIFY] = VERIFIER_SHARE
            share[ProcessRole.DRAFT] = _down(
                (1.0 - VERIFIER_SHARE) / max(math.ceil(drafters / cards), DRAFTERS)
            )
    return {
        role: share.get(role, 0.0) if template.gpus is None else template.gpus
        for role, template in topology.templates.items()
    }


def _beside(verifier: float, drafter: float, drafters: int) -> float:
    """The share of a verifier's card that drafters come to hold, by the reservations of both."""
    if not (0 < verifier < 1 and drafter > 0):
        return 0.0
    return drafter * min(drafters, int((1.0 - verifier) / drafter + CLOSE))


def _wants_card(settings: Mapping[str, Any], cards: int) -> bool:
    """Whether Ray reserves a card. One named by number was chosen by hand: Ray could only hide
    it."""
    device = str(settings.get("device", "auto"))
    return settings.get("engine") != "synthetic" and (
        device == "cuda" or (device == "auto" and cards > 0)
    )


def _memory(topology: Topology, nodes: Nodes, memory: Sizes, *, own: bool) -> tuple[Amounts, str]:
    wanted = {
        role: memory[role] / GIB if template.memory_gib is None else template.memory_gib
        for role, template in topology.templates.items()
    }
    total = sum(wanted[role] * topology.sizes[role] for role in wanted)
    there = _total(nodes, "memory") / GIB
    if not own or total <= there:
        return wanted, ""
    warning = (
        f"memory: with full caches the cell takes {total:.1f} GiB, {there:.1f} GiB are here "
        "(verify.kv_tokens and draft.context_tokens bound the caches)"
    )
    return {role: size * there / total for role, size in wanted.items()}, warning


def _total(nodes: Iterable[Node], kind: str) -> float:
    return sum(node.total.get(kind, 0.0) for node in nodes)


def _down(amount: float) -> float:
    return math.floor(amount * LEAST) / LEAST


def needs(replica: Replica) -> dict[str, float]:
    """What a process reserves, by Ray's names of resources; zero amounts are left out."""
    memory = float(int((replica.memory_gib or 0.0) * GIB))
    asked = {"GPU": replica.gpus, "CPU": replica.cpus, "memory": memory}
    return {kind: amount for kind, amount in asked.items() if amount}


def missing(replica: Replica, of: Iterable[Replica], nodes: Nodes, held: Mapping[str, str]) -> str:
    """Why no node can hold `replica`; empty while one may. Ray itself would wait for a node that
    may never come.

    Counts what nodes have and what this cell holds of it, both of which are certain; what other
    programs hold may be given back.

    of: every process that runs or waits, this one included. held: node id of each placed process,
    by name.
    """
    everybody = {each.name: each for each in of}
    able = [node for node in nodes if replica.selector.items() <= node.labels.items()]
    if not able:
        wanted = ", ".join(f"{key}={value}" for key, value in replica.selector.items())
        return (
            f"no node labelled {wanted}: {len(nodes)} nodes there" if wanted else "no node is there"
        )
    asked = needs(replica)
    free = [_free(node, everybody, held, asked) for node in able]
    lacks = [
        {kind for kind, amount in asked.items() if one.get(kind, 0.0) + CLOSE < amount}
        for one in free
    ]
    if not all(lacks):
        return ""
    short = [kind for kind in asked if all(kind in each for each in lacks)]
    if not short:
        return (
            "no node with "
            f"{' and '.join(shown(kind, amount) for kind, amount in asked.items())} free "
            "together"
        )
    return "; ".join(
        f"no node with {shown(kind, asked[kind])} free: "
        f"{_bare(kind, sum(needs(each).get(kind, 0.0) for each in everybody.values()))} wanted, "
        f"{_bare(kind, _total(able, kind))} there"
        for kind in short
    )


def misfit(replicas: Collection[Replica], nodes: Nodes) -> str:
    """Puts one process after the other where it fits; says of the first that fits nowhere what is
    missing. Empty: all fit."""
    held: dict[str, str] = {}
    for replica in replicas:
        fitting = [node for node in nodes if not missing(replica, replicas, [node], held)]
        if not fitting:
            return f"{replica.name} cannot be placed: {missing(replica, replicas, nodes, held)}"
        held[replica.name] = fitting[0].id
    return ""


def shown(kind: str, amount: float) -> str:
    """An amount with its unit, for people."""
    return f"{_bare(kind, amount)} {'GiB of memory' if kind == 'memory' else kind}"


def _free(
    node: Node,
    everybody: Mapping[str, Replica],
    held: Mapping[str, str],
    asked: Mapping[str, float],
) -> dict[str, float]:
    """What is left of a node for a process that asks for so much: of GPUs, whole cards or the
    largest share of one."""
    left = dict(node.total)
    there = [
        needs(everybody[name])
        for name, where in held.items()
        if where == node.id and name in everybody
    ]
    for kind in left:
        left[kind] -= sum(taken.get(kind, 0.0) for taken in there)
    if "GPU" in left:
        cards = _cards(int(node.total["GPU"]), [taken.get("GPU", 0.0) for taken in there])
        whole = float(sum(card + CLOSE >= 1 for card in cards))
        left["GPU"] = whole if asked.get("GPU", 0.0) >= 1 else max(cards, default=0.0)
    return left


def _cards(count: int, taken: Iterable[float]) -> list[float]:
    """What is left of each card; a share never spans two."""
    left = [1.0] * count
    for share in sorted(taken, reverse=True):
        while share > CLOSE and left:
            fitting = [at for at, free in enumerate(left) if free + CLOSE >= min(share, 1.0)]
            if not fitting:
                break
            left[min(fitting, key=left.__getitem__)] -= min(share, 1.0)
            share -= 1.0
    return left


def _bare(kind: str, amount: float) -> str:
    return f"{amount / GIB:.1f}" if kind == "memory" else f"{amount:g}"
