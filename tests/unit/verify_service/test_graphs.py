"""Recordings of a card, where there is none: what is asked of it, held against the library's rule
for shared memory."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from verify_service import graphs as graphs_module
from verify_service.graphs import Graphs
from verify_service.plan import Segment

PAGE = 16


class _Graph:
    """What `torch.cuda.CUDAGraph` is asked for."""

    pool = 0

    def replay(self) -> None:
        pass


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pools by recording. As the allocator has it, a pool that was used and has no recording left
    is refused."""
    living, used, names = WeakSet[_Graph](), list[int](), itertools.count(1)

    @contextlib.contextmanager
    def graph(
        recording: _Graph, pool: int, stream: object, *, capture_error_mode: str
    ) -> Iterator[None]:
        if pool in used and all(one.pool != pool for one in living):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        recording.pool = pool
        living.add(recording)
        used.append(pool)
        yield

    def stream(*_: Any) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    for name, made in {
        "CUDAGraph": _Graph,
        "Stream": stream,
        "current_stream": stream,
        "stream": lambda other: contextlib.nullcontext(),
        "graph_pool_handle": lambda: next(names),
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    return used


ONE, TWO, FOUR = ([Segment(0, 0, [5] * count, range(count))] for count in (1, 2, 4))


def zeros(plan: Any) -> tuple[Tensor, None]:
    """The passes that are recorded."""
    return torch.zeros(plan.slots.shape[0], 3), None


def recordings(forward: Callable[[Any], tuple[Tensor, None]] = zeros) -> Graphs:
    return Graphs(forward, lambda *_: None, PAGE, 8, torch.device("cpu"))  # type: ignore[arg-type]


def test_recordings_that_were_let_go_leave_their_memory_too(card: list[int]) -> None:
    """The self-test records, and lets go of all; then come those that are served."""
    made = recordings()
    for _ in range(2):
        for segments in (ONE, TWO):
            assert made.run(segments) is not None
        made.forget()
    assert card == [1, 1, 2, 2], "those that live together share memory"


def test_a_shape_that_cannot_be_recorded_leaves_the_others_theirs(card: list[int]) -> None:
    """As one that finds no memory; where the very first is refused, no other is tried."""
    asked = list[int]()

    def forward(plan: Any) -> tuple[Tensor, None]:
        asked.append(tokens := plan.slots.shape[0])
        if tokens == 2:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return zeros(plan)

    for order, refused in (
        ((ONE, TWO, TWO, ONE), [False, True, True, False]),
        ((TWO, ONE, TWO), [True, True, True]),
    ):
        asked.clear()
        made = recordings(forward)
        assert [made.run(segments) is None for segments in order] == refused
        assert asked.count(2) == 1
    assert asked == [2]


def test_the_recordings_in_use_stay_and_a_rare_shape_takes_no_place(
    card: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 2)
    made = recordings()
    for segments in (ONE, TWO, ONE):
        assert made.run(segments) is not None
    for asked in range(1, graphs_module.ASKED):
        assert made.run(FOUR) is None, asked
    recorded = len(card)
    assert made.run(FOUR) is not None
    assert made.run(ONE) is not None, "the one that was used last has stayed"
    assert len(card) == recorded + 1
