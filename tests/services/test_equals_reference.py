"""Invariant 7: the distributed system equals the one-page loop.

Real coordinator, verifier and drafter talk over loopback. What the verifier was asked to judge is
recorded; the recorded (anchor, prefix) choices, replayed by the reference loop over plain forwards
of the target, must lead to the tokens the clients saw. At temperature 0 and under `coupled` they
must be those of the target alone: each the likeliest of its row, or the winner of its race, behind
the tokens before it, where the target knows no near-tie.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults import oracle
from tests.faults.pair import DRAFTER, TARGET, prompt
from tests.faults.tape import Tape
from tests.services.cell import Cell
from tests.waiting import until

POLICIES = ("fixed:3", "adaptive", "threshold:0.4", "off", "fixed:5")
LAWS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "truncated": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "repetition": {"repetition_penalty": 1.6},
    "presence and frequency": {"presence_penalty": 1.5, "frequency_penalty": 0.75},
    "negative": {"frequency_penalty": -2.0, "temperature": 0.7},
    "min_p": {"min_p": 0.2, "temperature": 1.5},
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.25, "logit_bias": {4: 1.5, 90: -100.0}},
    "everything": {
        "temperature": 0.9,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "logit_bias": {4: 2.0, 90: -100.0},
    },
}


def rows_of(process: Any, direction: str) -> tuple[float, float]:
    """Feature rows that a worker counted, and their bytes."""
    value = process.metrics.value
    return (
        value("feature_rows_total", direction=direction),
        value("bytes_total", direction=direction, kind="features"),
    )


@pytest.mark.parametrize(
    ("rule", "settings"),
    [("token", {"window": 0}), ("block", {"cohorts": 2}), ("coupled", {"cohorts": 1})],
)
async def test_answers_of_every_law_follow_from_what_was_recorded(
    rule: str, settings: dict[str, int]
) -> None:
    tape = Tape()
    async with Cell(TARGET, DRAFTER) as cell:
        client = cell.client(await cell.whole(**settings))
        (verifier,), (drafter,) = cell.verifiers, cell.drafters
        tape.verifier(verifier.engine)

        async def ask(number: int, **law: Any) -> tuple[list[int], dict[str, Any], tuple[int, ...]]:
            asked = {"temperature": 1.0, "rule": rule, "seed": 1000 + number, **law}
            await asyncio.sleep(0.01 * number)
            given, policy = prompt(number, 4 + 3 * number), POLICIES[number % len(POLICIES)]
            answer = await client.complete(
                given, timeout=60, ignore_eos=True, max_tokens=32, policy=policy, **asked
            )
            assert answer.end.speculation.rule == rule
            return given, asked, answer.token_ids

        told = await asyncio.gather(
            *(ask(number, **law) for number, law in enumerate([*LAWS.values()] * 2))
        )
        await cell.freed()
        await until(lambda: rows_of(drafter, "received") == rows_of(verifier, "sent"))
        assert all(rows_of(drafter, "received"))
        assert verifier.metrics.value("verify_batch_tokens_count") > 0
    for given, asked, answer in told:
        assert tape.problem(given, answer) == "", asked
        (taken,) = [one for one in tape.taken if one.given == tuple(given)]
        assert taken.params == oracle.params_of(asked, len(given))
    assert tape.problems == []
    sampled = [taken for taken in tape.taken if not taken.params.greedy]
    assert any(made.accepted for taken in sampled for made in taken.rounds.values())


async def test_rows_in_float8_change_no_greedy_answer_and_still_serve_the_drafter(
    cell: Cell, golden_target: Path
) -> None:
    given = random.Random(5).choices(range(2, 120), k=20)
    await cell.verifier(feature_dtype="float8_e4m3")
    await cell.drafter()
    client = cell.client(await cell.coordinator())
    completion = await client.complete(
        given, timeout=60.0, ignore_eos=True, max_tokens=40, temperature=0.0, policy="fixed:7"
    )
    assert [list(completion.token_ids)] == oracle.plain_greedy(golden_target, [given], 40)
    assert completion.end.speculation.draft_tokens > 0
