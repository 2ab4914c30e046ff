"""What nobody mentions for too long is freed, and nothing else."""

import asyncio
import time

import pytest

from dspark.runtime.leases import Leases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_sequence_that_is_mentioned_lives_on(clock: list[float]) -> None:
    leases = Leases(10.0)
    for number in range(3):
        leases.open(number, epoch=0)
    for clock[0] in (6.0, 12.0):
        leases.mention([0, 99])
    assert leases.overdue() == [(1, 0), (2, 0)]
    assert leases.overdue() == []
    clock[0] = 23.0
    assert leases.overdue() == [(0, 0)]


def test_at_work_none_runs_out_and_ended_ones_are_forgotten(clock: list[float]) -> None:
    leases = Leases(10.0)
    leases.open(1, epoch=2, at_work=True)
    leases.mention([1])
    leases.open(2, epoch=2)
    leases.end(2, epoch=1)  # of a life before
    clock[0] = 50.0
    assert leases.overdue() == [(2, 2)]
    leases.open(1, epoch=2)
    leases.end(1, epoch=3)
    clock[0] = 100.0
    assert leases.overdue() == []


async def test_what_could_not_be_freed_is_tried_again_unless_it_was_mentioned(clock: list[float]) -> None:
    leases = Leases(0.0)
    leases.open(1, epoch=0)
    leases.open(2, epoch=0)
    asked: list[list[tuple[int, int]]] = []
    tried = asyncio.Event()

    async def free(late: list[tuple[int, int]]) -> None:
        asked.append(late)
        tried.set()
        if len(asked) == 1:
            raise RuntimeError("a bug")
        raise asyncio.CancelledError

    clock[0] = 1.0
    watching = asyncio.create_task(leases.watch(free))
    await tried.wait()
    leases.mention([2])
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert asked == [[(1, 0), (2, 0)], [(1, 0)]]
