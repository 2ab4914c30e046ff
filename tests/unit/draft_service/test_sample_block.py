"""What leaves the walk is what was drawn from, and no confidence knows its own token."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine, DraftItem
from dspark.decoding.drafting import DraftNoise
from dspark.decoding.gumbel import times_of, winners
from dspark.model.calibration import BUCKETS, RULES, Calibration, SlotFit, calibration_to_json
from dspark.types import NO_Q, Block, Cursor, Rule, SamplingParams

ROWS = 30
CURSOR = Cursor(1, 1, 1, ROWS + 1)


@pytest.fixture
def engine(golden_drafter: Path) -> DraftEngine:
    engine = DraftEngine.load(DraftConfig(drafter=str(golden_drafter), context_tokens=4096))
    engine.open(Cursor(1, 1, 0, ROWS), 200)
    engine.ingest(1, 1, 0, [0] * ROWS, torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(1)))
    return engine


def blocks(engine: DraftEngine, *laws: SamplingParams) -> list[Block]:
    return [engine.draft([DraftItem(CURSOR, 7, ROWS, law)])[0] for law in laws]


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_tokens_are_those_that_the_numbers_sent_give(engine: DraftEngine, rule: Rule) -> None:
    for law in (SamplingParams(1.5, seed=seed, rule=rule) for seed in range(20)):
        (block,) = blocks(engine, law)
        ids, probs = (
            torch.from_numpy(part.astype(kind)) for part, kind in zip(block.q.arrays(), ("i8", "f4"), strict=True)
        )
        noise = DraftNoise([law], [CURSOR], len(block.token_ids), 128)
        drawn = [int(noise.pick(k, ids[k : k + 1], probs[k : k + 1])) for k in range(len(block.token_ids))]
        assert tuple(drawn) == block.token_ids
        # Rounded after drawing, they would miss a sum of 1 by more than float32 does.
        assert np.abs(probs.double().sum(-1).numpy() - 1.0).max() < 1e-5


def test_a_coupled_block_repeats_by_position_and_carries_no_q(engine: DraftEngine) -> None:
    law = SamplingParams(1.5, seed=3, rule=Rule.COUPLED)
    coupled, again, token = blocks(engine, law, law, SamplingParams(1.5, seed=3))
    assert coupled.q == NO_Q
    assert coupled.token_ids == again.token_ids
    ids, probs = (
        torch.from_numpy(part[:1].astype(kind)) for part, kind in zip(token.q.arrays(), ("i8", "f4"), strict=True)
    )
    place, lead = winners(probs, times_of([law], [CURSOR.committed_len], ids))
    assert coupled.token_ids[0] == ids[0, place] or lead < 1.0, "slot 1 races over the law that a ratio rule draws from"


def test_large_cohorts_race_over_the_entries_they_would_have_sent(
    engine: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    laws = [SamplingParams(1.5, seed=seed, rule=Rule.COUPLED) for seed in range(30)]
    whole = blocks(engine, *laws)
    monkeypatch.setattr("dspark.decoding.drafting.WHOLE", 0)
    few = blocks(engine, *laws)
    assert all(block.q == NO_Q for block in (*whole, *few))
    same = sum(a.token_ids[0] == b.token_ids[0] for a, b in zip(whole, few, strict=True))
    assert same > 15, "the noise is the same, and most of the mass is in the entries"


def test_a_confidence_knows_the_tokens_before_its_slot_and_nothing_after(engine: DraftEngine) -> None:
    made = blocks(engine, *(SamplingParams(3.0, seed=seed) for seed in range(12)))
    differed = set()
    for other in made[1:]:
        same = next(k for k in range(7) if other.token_ids[k] != made[0].token_ids[k])
        np.testing.assert_allclose(other.confidence[: same + 1], made[0].confidence[: same + 1], rtol=1e-6)
        differed.add(other.confidence[same + 1 :] != made[0].confidence[same + 1 :])
    assert True in differed, "later confidences do depend on it"


def test_every_member_of_a_cohort_is_calibrated_for_its_own_rule_and_bucket(
    golden_drafter: Path, tmp_path: Path
) -> None:
    offsets = {(rule, bucket): 0.5 * place for place, rule in enumerate(RULES) for bucket in BUCKETS}
    offsets |= {(rule, "sampled"): -1.0 - 0.5 * place for place, rule in enumerate(RULES)}
    fits = {rule: {b: SlotFit((1e9,) * 7, (offsets[rule, b],) * 7) for b in BUCKETS} for rule in RULES}
    shutil.copytree(golden_drafter, tmp_path / "drafter")
    (tmp_path / "drafter" / "calibration.json").write_text(json.dumps(calibration_to_json(Calibration(None, fits))))
    engine = DraftEngine.load(DraftConfig(drafter=str(tmp_path / "drafter"), context_tokens=4096))
    named = {Rule.TOKEN: "token", Rule.BLOCK: "block", Rule.COUPLED: "coupled"}
    laws = [SamplingParams(temperature, seed=3, rule=rule) for rule in named for temperature in (0.0, 0.9)]
    items = []
    for number, law in enumerate(laws):
        engine.open(Cursor(number, 1, 0, ROWS), 200)
        engine.ingest(number, 1, 0, [0] * ROWS, torch.randn(ROWS, 64))
        items.append(DraftItem(CURSOR._replace(sequence=number), 7, ROWS, law))
    together = engine.draft(items)
    for item, block in zip(items, together, strict=True):
        offset = offsets[named[item.law.rule], "greedy" if item.law.greedy else "sampled"]  # type: ignore[index]
        chance = 1.0 / (1.0 + math.exp(-offset))
        np.testing.assert_allclose(block.confidence, [chance] * 7, atol=1e-5)
        np.testing.assert_allclose(engine.draft([item])[0].confidence, [chance] * 7, atol=1e-5)
