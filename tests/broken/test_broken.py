"""The short form of `make broken`: every line is there to break, and some builds are caught, in
this process."""

from __future__ import annotations

import pytest
from faults.promises import PROMISES

from tests.broken.__main__ import caught
from tests.broken.planting import BUILDS, plant, planted
from tests.mutation.bugs import Bug

QUICK = (
    "another tenant's page",
    "another prefix's page",
    "a repeated batch shown twice",
    "a first token shown before the log has it",
)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_a_build_can_be_planted_and_taken_out_again(build: Bug) -> None:
    function, sound = plant(build)
    assert function.__code__ is not sound
    function.__code__ = sound
    with planted(build):
        assert function.__code__ is not sound
    assert function.__code__ is sound
    assert build.by[1] in PROMISES


@pytest.mark.parametrize("name", QUICK)
def test_a_broken_build_is_caught(name: str) -> None:
    assert caught(next(build for build in BUILDS if build.name == name))


def test_names_are_told_apart() -> None:
    assert len({build.name for build in BUILDS}) == len(BUILDS) >= 14
