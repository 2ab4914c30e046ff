"""How much of a round belongs to an answer.

Pure. The verifier and the coordinator both cut a round where the answer ends, and must agree, so
there is one function.
"""

from __future__ import annotations

from collections.abc import Sequence


def kept(tokens: Sequence[int], room: int, stop_ids: frozenset[int]) -> tuple[int, bool]:
    """How many of these leading tokens an answer with `room` tokens left may commit, and whether
    they end it.

    A stop token inside an accepted prefix ends the answer there; what was accepted behind it was
    never said.
    """
    if len(tokens) < room and (not stop_ids or stop_ids.isdisjoint(tokens)):  # nearly always
        return len(tokens), False
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return index + 1, True
    return min(len(tokens), room), len(tokens) >= room
