"""What a process lacks that no node can hold. Pure. Ray itself never refuses: it waits for a node that may never come.

Judged by what nodes have and what this cell holds of it, both of which are certain; what others hold may be given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deploy.reserving import GIB, Node
from deploy.topology import Replica

CLOSE = 1e-6  # of sums of shares

Amounts = dict[str, float]


def needs(replica: Replica) -> Amounts:
    """What a process asks of its node, by Ray's names; what it does not ask for is left out."""
    asked = {"GPU": replica.gpus, "CPU": replica.cpus, "memory": float(replica.memory)}
    return {kind: amount for kind, amount in asked.items() if amount > 0}


def missing(replica: Replica, of: Iterable[Replica], nodes: Sequence[Node], held: Mapping[str, str]) -> str:
    """Why no node can hold `replica`; empty while one may.

    of: every process that is there or waits, this one included. held: node id by name of those that have their place.
    """
    everybody = {each.name: each for each in of}
    able = [node for node in nodes if replica.selector.items() <= node.labels.items()]
    if not able:
        wanted = ", ".join(f"{key}={value}" for key, value in replica.selector.items())
        return f"no node labelled {wanted}: {len(nodes)} nodes there" if wanted else "no node is there"
    asked = needs(replica)
    free = [_free(node, everybody, held, asked) for node in able]
    if any(all(one.get(kind, 0.0) + CLOSE >= amount for kind, amount in asked.items()) for one in free):
        return ""
    short = [kind for kind, amount in asked.items() if not any(one.get(kind, 0.0) + CLOSE >= amount for one in free)]
    if not short:
        return f"no node with {' and '.join(shown(kind, amount) for kind, amount in asked.items())} free together"
    return "; ".join(
        f"no node with {shown(kind, asked[kind])} free: "
        f"{_bare(kind, sum(needs(each).get(kind, 0.0) for each in everybody.values()))} wanted, "
        f"{_bare(kind, sum(node.total.get(kind, 0.0) for node in able))} there"
        for kind in short
    )


def shown(kind: str, amount: float) -> str:
    """An amount for people."""
    return f"{_bare(kind, amount)} {'GiB of memory' if kind == 'memory' else kind}"


def _free(node: Node, everybody: Mapping[str, Replica], held: Mapping[str, str], asked: Mapping[str, float]) -> Amounts:
    """What is left of a node to one that asks for so much."""
    left = dict(node.total)
    there = [needs(everybody[name]) for name, where in held.items() if where == node.id and name in everybody]
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
