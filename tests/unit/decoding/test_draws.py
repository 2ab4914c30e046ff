"""What the monitor is told of drafts: on average nothing while tokens come from their q, and
something when not."""

from typing import Any

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import DrawsWatch, PackedCase, judge
from dspark.types import PLACES, Cursor, Draws, Rule, SamplingParams, SparseQ

VOCAB, SLOTS = 12, 3


def pair(rng: Any, entries: int) -> tuple[Any, Any, Any]:
    """(logits of the target [SLOTS + 1, V], ids and probs of q [SLOTS, entries])."""
    logits = torch.from_numpy(rng.normal(0.0, 1.5, (SLOTS + 1, VOCAB)))
    ids = np.stack([rng.permutation(VOCAB)[:entries] for _ in range(SLOTS)]).astype(np.uint32)
    probs = rng.dirichlet(np.full(entries, 0.6), SLOTS).astype(np.float32)
    return logits, ids, probs


def drawn(rng: Any, ids: Any, probs: Any) -> list[int]:
    exact = probs.astype(np.float64)
    return [
        int(rng.choice(row, p=weights / weights.sum()))
        for row, weights in zip(ids, exact, strict=True)
    ]


def watched(rule: Rule, blocks: int, *, lie: bool = False, seed: int = 0) -> Draws:
    """Sums over so many blocks; a lie draws from q to the power 0.8."""
    rng = np.random.default_rng(seed)
    watch = DrawsWatch(seed)
    pairs = [pair(rng, 5) for _ in range(8)]
    for start in range(0, blocks, 64):
        cases, rows = [], []
        for number in range(start, start + 64):
            logits, ids, probs = pairs[number % len(pairs)]
            drafts = drawn(rng, ids, probs**0.8 if lie else probs)
            q = SparseQ.of(ids, probs)
            params = SamplingParams(temperature=1.0, rule=rule, seed=(seed << 20) + number)
            cases.append(
                PackedCase(Cursor(number, 0, 1, 9), params, len(rows) * (SLOTS + 1), drafts, q)
            )
            rows.append(logits)
        judge(torch.cat(rows), cases, watch=watch)
    (sums,) = watch.sums(dict.fromkeys(range(blocks + 64), "d"))
    return sums


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_honest_drafts_tell_nothing(rule: Rule) -> None:
    sums = watched(rule, 3_200)
    assert (sums.blocks, sums.slots, sum(sums.places)) == (3_200, 3_200 * SLOTS, 3_200 * SLOTS)
    assert abs(sums.drift) < 4 * sums.variance**0.5
    assert abs(sums.luck) < 4 * sums.luck_variance**0.5
    expected = sums.slots / PLACES
    chi = sum((count - expected) ** 2 / expected for count in sums.places)
    assert chi < PLACES - 1 + 5 * (2 * (PLACES - 1)) ** 0.5


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_variances_are_those_of_what_they_speak_of(rule: Rule) -> None:
    sums = [watched(rule, 64, seed=seed) for seed in range(150)]
    for told, meant in (("drift", "variance"), ("luck", "luck_variance")):
        spread = float(np.var([getattr(each, told) for each in sums]))
        assert spread == pytest.approx(
            float(np.mean([getattr(each, meant) for each in sums])), rel=0.35
        )


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_drafts_of_another_temperature_move_places_and_drift(rule: Rule) -> None:
    sums = watched(rule, 3_200, lie=True)
    expected = sums.slots / PLACES
    chi = sum((count - expected) ** 2 / expected for count in sums.places)
    assert chi > PLACES - 1 + 10 * (2 * (PLACES - 1)) ** 0.5
    assert abs(sums.luck) < 4 * sums.luck_variance**0.5  # the coins are honest all the same


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_labels_are_the_chances_of_what_happens(rule: Rule) -> None:
    rng = np.random.default_rng(3)
    logits, ids, probs = pair(rng, 5)
    reached = np.zeros(SLOTS)
    kept = np.zeros(SLOTS)
    told = np.zeros((SLOTS, 2))
    rounds = 2_000
    for start in range(0, rounds, 100):
        watch = DrawsWatch(start)
        cases = []
        for number in range(start, start + 100):
            params = SamplingParams(temperature=1.0, rule=rule, seed=number)
            drafts = drawn(rng, ids, probs)
            cases.append(
                PackedCase(Cursor(number, 0, 1, 9), params, 0, drafts, SparseQ.of(ids, probs))
            )
        for accepted, _ in judge(logits, cases, watch=watch):
            reached += np.arange(SLOTS) <= accepted
            kept += np.arange(SLOTS) < accepted
        told += sum(watch.labels().values())
    assert told[:, 0] == pytest.approx(reached, abs=4 * rounds**0.5)
    assert told[:, 1] == pytest.approx(kept, abs=4 * rounds**0.5)


def test_sequences_of_all_kinds_keep_their_own_labels_and_versions() -> None:
    rng = np.random.default_rng(5)
    watch = DrawsWatch(0)
    cases, rows = [], []
    kinds = [
        (Rule.BLOCK, 1.0, 3),
        (Rule.BLOCK, 1.0, 0),
        (Rule.TOKEN, 1.0, 2),
        (Rule.BLOCK, 0.0, 3),
        (Rule.BLOCK, 1.0, 1),
    ]
    for number, (rule, temperature, length) in enumerate(kinds):
        logits, ids, probs = pair(rng, 4)
        drafts = drawn(rng, ids, probs)[:length]
        q = SparseQ.of(ids[:length], probs[:length])
        params = SamplingParams(temperature=temperature, rule=rule, seed=7)
        cases.append(PackedCase(Cursor(number, 0, 1, 9), params, sum(map(len, rows)), drafts, q))
        rows.append(logits[: length + 1])
    judge(torch.cat(rows), cases, watch=watch)
    labels = watch.labels()
    assert {number: len(each) for number, each in labels.items()} == {0: 3, 2: 2, 4: 1}
    assert all(each[0, 0] == 1.0 for each in labels.values())
    sums = {
        each.drafter_version: each.slots
        for each in watch.sums({0: "a", 1: "a", 2: "b", 3: "a", 4: "b"})
    }
    assert sums == {"a": 3, "b": 3}
    assert watch.sums({}) == []
