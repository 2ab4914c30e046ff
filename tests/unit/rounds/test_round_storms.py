"""Random schedules of everything that can happen to a `RoundLoop`, in simulated time: see
`storm`."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from rounds_cell import run_virtual
from storm import Storm

from dspark.rounds.events import Action

SEEDS = range(12)
STEPS = 1500


async def story(seed: int) -> Storm:
    storm = Storm(seed)
    await storm.run(STEPS)
    return storm


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_answers_are_whole_and_nothing_drawn_is_lost(seed: int) -> None:
    assert run_virtual(story(seed)).verifier.steps > STEPS


def test_storms_meet_everything() -> None:
    said: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for seed in range(3):
        verifier = run_virtual(story(seed)).verifier
        said += verifier.seen
        counts += verifier.counts
        assert verifier.failed
    assert {kind.__name__ for kind in get_args(Action)} == set(said)
    wanted = {"late block", "block of a sequence that left", "verdict of a dropped sequence"}
    assert not wanted - set(counts), counts
