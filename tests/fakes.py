"""A target made of arithmetic, whose answers can be worked out by hand, and a client that reads
them.

The toy target says, after token t at position p, the token (3 t + p) mod 97; so after the prompt 5
6 (positions 0, 1) come 3*6+1 = 19, 3*19+2 = 59, 3*59+3 = 83, ... `rounds_cell` puts it behind real
rounds.
"""

from collections.abc import Sequence
from typing import Any

VOCAB = 97


def after(token: int, position: int) -> int:
    """What the toy target says after `token` at `position`."""
    return (3 * token + position) % VOCAB


def answer_of(prompt: Sequence[int], tokens: int) -> list[int]:
    """Plain decoding with the toy target."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(after(ids[-1], len(ids) - 1))
    return ids[len(prompt) :]


async def read(state: Any) -> list[int]:
    """The tokens a client got; raises the error that ended the answer."""
    tokens: list[int] = []
    while (waiting := await state.sink.take()) is not None:
        for piece, _ in waiting:
            tokens += piece.tokens
    return tokens
