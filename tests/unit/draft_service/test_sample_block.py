"""What leaves the walk is what was drawn from, and no confidence knows its own token."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draft_service.engine import DraftEngine
from draft_service.sample_block import SampledBlock, sample_block
from dspark.decoding import moving
from dspark.decoding.drafting import coupled
from dspark.decoding.gumbel import checked_argmax, exponentials_of
from dspark.decoding.sampling import draft_uniforms, draw_sparse
from dspark.model.calibration import (
    BUCKETS,
    IDENTITY,
    RULES,
    Calibration,
    SlotFit,
    calibration_to_json,
)
from dspark.model.family import Anchors, ContextTokens, Entries
from dspark.types import NO_Q, Block, Cursor, Rule, SamplingParams
from tests.draft_steps import draft_engine, fill, item
from tests.unit.model.golden import DATA, altered
from tests.unit.model.tiny import FAMILIES, family_drafter

ROWS = 30
CURSOR = Cursor(1, 1, 1, ROWS + 1)


HEADLESS = "a sequential head without a confidence head"
WITHOUT: dict[str, Any] = {"enable_confidence_head": False, "confidence_head_with_markov": False}


def _behead(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("confidence_head.")]:
        del tensors[name]


@pytest.fixture(params=["dspark_vanilla"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> DraftEngine:
    folder = DATA / request.param
    if request.param == HEADLESS:
        folder = altered(tmp_path / "headless", WITHOUT, _behead, of=DATA / "dspark_vanilla")
    engine = draft_engine(folder)
    assert fill(engine, 1, [0] * ROWS) == CURSOR
    return engine


def blocks(engine: DraftEngine, *all_params: SamplingParams) -> list[Block]:
    return [engine.draft([item(CURSOR, params)])[0] for params in all_params]


def test_a_coupled_block_repeats_by_position_and_carries_no_q(engine: DraftEngine) -> None:
    params = SamplingParams(1.5, seed=3, rule=Rule.COUPLED)
    coupled, again, token = blocks(engine, params, params, SamplingParams(1.5, seed=3))
    assert coupled.q == NO_Q
    assert coupled.token_ids == again.token_ids
    ids, probs = (
        torch.from_numpy(part[:1].astype(kind))
        for part, kind in zip(token.q.arrays(), ("i8", "f4"), strict=True)
    )
    place, _ = checked_argmax(probs, exponentials_of([params], [CURSOR.committed_len], ids))
    assert coupled.token_ids[0] == ids[0, place], "slot 1 races over the law that a ratio rule has"


@pytest.mark.parametrize("engine", ["dspark_vanilla", "eagle3", HEADLESS], indirect=True)
def test_a_confidence_knows_the_tokens_before_its_slot_and_none_after(engine: DraftEngine) -> None:
    made = blocks(engine, *(SamplingParams(3.0, seed=seed) for seed in range(12)))
    differed = []
    for other in made[1:]:
        same = next(k for k in range(7) if other.token_ids[k] != made[0].token_ids[k])
        np.testing.assert_allclose(
            other.confidence[: same + 1], made[0].confidence[: same + 1], rtol=1e-6
        )
        differed.append(other.confidence[same + 1 :] != made[0].confidence[same + 1 :])
    assert any(differed), "later confidences do depend on it"


def test_every_member_of_a_cohort_is_calibrated_for_its_own_rule_and_bucket(
    golden_drafter: Path, tmp_path: Path
) -> None:
    offsets = {
        (rule, bucket): 0.5 * place for place, rule in enumerate(RULES) for bucket in BUCKETS
    }
    offsets |= {(rule, "sampled"): -1.0 - 0.5 * place for place, rule in enumerate(RULES)}
    fits = {
        rule: {b: SlotFit((1e9,) * 7, (offsets[rule, b],) * 7) for b in BUCKETS} for rule in RULES
    }
    altered(tmp_path / "drafter", of=golden_drafter)
    (tmp_path / "drafter" / "calibration.json").write_text(
        json.dumps(calibration_to_json(Calibration(None, fits)))
    )
    engine = draft_engine(tmp_path / "drafter")
    named = {Rule.TOKEN: "token", Rule.BLOCK: "block", Rule.COUPLED: "coupled"}
    all_params = [
        SamplingParams(temperature, seed=3, rule=rule)
        for rule in named
        for temperature in (0.0, 0.9)
    ]
    items = [
        item(fill(engine, number, [0] * ROWS), params) for number, params in enumerate(all_params)
    ]
    for params, one, block in zip(all_params, items, engine.draft(items), strict=True):
        offset = offsets[named[params.rule], "greedy" if params.greedy else "sampled"]  # type: ignore[index]
        chance = 1.0 / (1.0 + math.exp(-offset))
        np.testing.assert_allclose(block.confidence, [chance] * 7, atol=1e-5)
        np.testing.assert_allclose(engine.draft([one])[0].confidence, [chance] * 7, atol=1e-5)


ALL = [
    SamplingParams(temperature=0.0),
    SamplingParams(1.5, seed=1),
    SamplingParams(0.8, seed=2, top_k=5, rule=Rule.BLOCK),
    SamplingParams(1.2, seed=3, top_p=0.7, min_p=0.02),
    SamplingParams(1.5, seed=4, rule=Rule.COUPLED),
]


def cohort(engine: DraftEngine, all_params: list[SamplingParams]) -> SampledBlock:
    """Of sequences of one context."""
    items = [item(CURSOR, params) for params in all_params]
    proposal, anchors = engine.propose(items, 7)
    told = {"slots": 7, "entries": 16}
    return sample_block(
        proposal, engine._calibration, anchors, all_params, [CURSOR] * len(all_params), **told
    )


def mask_of(*allowed: int, size: int = 16) -> bytes:
    bits = np.zeros(8 * size, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("params", ALL)
@pytest.mark.parametrize(
    ("mask", "allowed"),
    [
        (mask_of(3, 40, 127), {3, 40, 127}),
        (mask_of(5, size=4), {5}),
        (mask_of(7, 300, size=64), {7}),
    ],
    ids=["whole", "short", "long"],
)
def test_a_first_slot_is_drawn_from_what_its_form_lets_come_and_that_is_sent(
    engine: DraftEngine, params: SamplingParams, mask: bytes, allowed: set[int]
) -> None:
    """Its neighbours draw as they do without it."""
    asked = item(CURSOR, params)
    free, _ = engine.draft([asked, asked])
    beside, found = engine.draft([asked, asked._replace(mask=mask)])
    assert beside == free
    assert found.token_ids[0] in allowed
    assert len(found.token_ids) == len(free.token_ids)
    assert not set(found.token_ids[1:]) <= allowed
    if params.rule is Rule.COUPLED:
        return
    ids, probs = found.q.arrays()
    sent = dict(zip(ids[0].tolist(), probs[0].tolist(), strict=True))
    assert {token for token, share in sent.items() if share > 0.0} <= allowed
    if params == ALL[1]:
        logits = (
            engine.propose([asked], 7)[0].step(torch.tensor([7]))[0].double() / params.temperature
        )
        chances = torch.softmax(logits[sorted(allowed)], dim=-1).tolist()
        assert [sent[token] for token in sorted(allowed)] == pytest.approx(chances, rel=1e-5)


def test_a_form_that_leaves_nothing_of_a_vocabulary_is_let_be(engine: DraftEngine) -> None:
    for params in ALL:
        asked = item(CURSOR, params)
        assert engine.draft([asked._replace(mask=mask_of())]) == engine.draft([asked])


def test_tokens_are_those_that_the_numbers_sent_give(engine: DraftEngine) -> None:
    """Drawn without a look at them."""
    for seed in range(20):
        all_params = [replace(params, seed=seed) for params in ALL]
        found = cohort(engine, all_params)
        coins = draft_uniforms(all_params, [CURSOR] * len(ALL), 7)
        ids, probs = torch.from_numpy(found.q_ids.astype("i8")), torch.from_numpy(found.q_probs)
        # Rounded after drawing, they would miss a sum of 1 by more than float32 does.
        assert (probs.double().sum(-1) - 1.0).abs().max() < 1e-5
        for row, params in enumerate(all_params):
            if not coupled(params):
                said = [
                    draw_sparse(ids[[row], k], probs[[row], k], coins[[row], k]) for k in range(7)
                ]
                assert torch.cat(said).tolist() == found.token_ids[row].tolist()


def test_numbers_that_are_none_are_found_at_the_end(engine: DraftEngine) -> None:
    with torch.no_grad():
        engine.drafter.lm_head.weight[5] = torch.nan
    engine.drafter.serve()
    for all_params in (ALL[1:4], ALL[4:]):
        with pytest.raises(FloatingPointError):
            cohort(engine, all_params)


@pytest.mark.parametrize("family", [each for each in FAMILIES if each[1] != "deepseek_v4"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_block_is_waited_for_once(
    family: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors that hold no numbers: whoever looked at one would fail. Mixtures of DeepSeek-V4
    do."""
    fetched = []
    monkeypatch.setattr(moving, "fetched", lambda flat: fetched.append(1) or np.ones(flat.shape))
    for all_params in (ALL, ALL[:1] * 5):
        all_params = all_params[-count:] if count > 1 else all_params[:1]
        drafter = family_drafter(*family).to("meta")
        of, lengths = drafter.config, torch.full((count,), 9, device="meta")
        heads = (of.num_key_value_heads, of.head_dim)
        pool = torch.empty(of.num_hidden_layers, count, 12, *heads, device="meta")
        anchors = torch.zeros(count, dtype=torch.int64, device="meta")
        rows = pool.new_empty(1, 4, drafter.config.hidden_size)
        drafter.ingest(ContextTokens(rows, anchors[:1].expand(1, 4), lengths[:1].expand(1, 4)))
        last = pool.new_empty(count, drafter.config.hidden_size)
        at = Anchors(anchors, lengths, Entries(pool, pool, lengths), last)
        proposal = drafter.propose(at, 4)
        told = {"slots": 4, "entries": 8}
        fetched.clear()
        masks = [mask_of(3), *[b""] * (count - 1)]
        sample_block(proposal, IDENTITY, anchors, all_params, [CURSOR] * count, masks=masks, **told)
        assert fetched == [1]
