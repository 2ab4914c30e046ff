"""Cuts the tokens of a round where its answer ends.

Pure. The verifier and the coordinator both make this cut and must agree, so there is one function.
"""

from __future__ import annotations

from collections.abc import Sequence


def kept(tokens: Sequence[int], room: int, stop_ids: frozenset[int]) -> tuple[int, bool]:
    """How many of these leading tokens an answer with `room` tokens left may commit, and whether
    they end it.

    A stop token inside an accepted prefix ends the answer there; tokens accepted behind it are
    dropped.
    """
    if len(tokens) < room and (not stop_ids or stop_ids.isdisjoint(tokens)):  # the common case
        return len(tokens), False
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return index + 1, True
    return min(len(tokens), room), len(tokens) >= room
