"""Small pools and few sequences are measured as far as they go, or not at all; they never stop a
start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draft_service import profiler as draft_profiler
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from dspark.types import Cursor
from tests.engine_steps import item, judged, take_in
from verify_service import profiler as verify_profiler
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine

PLENTY_S = 30.0  # every point fits, and all sweeps together take far less


@pytest.mark.parametrize(
    ("bounds", "largest"),
    [
        ({"max_sequences": 4}, 32),
        ({"page_size": 1024, "kv_tokens": 8192}, 32),
        ({"kv_tokens": 64}, None),
        ({"max_sequences": 1}, verify_profiler.PER_SEQUENCE),
        ({"max_sequences": 2, "attention": "stateful"}, 2 * verify_profiler.PER_SEQUENCE),
    ],
)
def test_a_verifier_of_any_size_can_be_measured(
    golden_target: Path, bounds: dict[str, Any], largest: int | None
) -> None:
    """largest: tokens of the largest step, None where the pool has no room for any."""
    engine = VerifyEngine.load(
        VerifyConfig(target=str(golden_target), cost_max_tokens=32, **bounds)
    )
    curve = verify_profiler.measure(engine, budget_s=PLENTY_S)
    assert (None if curve is None else curve.tokens[-1]) == largest
    assert engine.held.sequences == 0
    if curve is not None:
        assert (curve.seconds > 0).all()
        several = bounds.get("max_sequences") != 1  # whose cost of a sequence by itself is told
        assert curve.tokens_per_sequence == several * verify_profiler.PER_SEQUENCE
        assert len(curve.sequence_seconds) == several * len(curve.contexts)


@pytest.mark.parametrize(
    ("bounds", "largest"),
    [({"max_sequences": 4}, 4), ({"max_sequences": 1}, 1), ({"context_tokens": 64}, None)],
)
def test_a_drafter_of_any_size_can_be_measured(
    golden_drafter: Path, bounds: dict[str, int], largest: int | None
) -> None:
    """largest: sequences of the largest pass, None where the pool has no room for any."""
    engine = DraftEngine.load(DraftConfig(drafter=str(golden_drafter), **bounds))
    curve = draft_profiler.measure(engine, budget_s=PLENTY_S)
    assert (None if curve is None else curve.tokens[-1]) == largest
    assert curve is None or (curve.seconds > 0).all()
    assert engine.held.sequences == 0


def test_rounds_pay_for_the_projection_of_what_they_commit_where_rows_are_kept(
    golden_target: Path, golden_drafter: Path
) -> None:
    engine = VerifyEngine.load(VerifyConfig(target=str(golden_target), drafter=str(golden_drafter)))
    calls: list[int] = []
    projection = engine._kv_cache.store._projection
    project = projection.project
    projection.project = lambda taps: (calls.append(len(taps)), project(taps))[1]
    for sequence, keep in ((1, False), (2, True)):
        text = [5, 6, 7, take_in(engine, sequence, [5, 6, 7], longest=20, keep=keep)]
        (verdict,) = judged(engine, item(sequence, 1, text))
        text.append(verdict.tokens[-1])
        (verdict,) = judged(engine, item(sequence, 2, text, [9]))
        assert calls == ([3, 1, 1 + verdict.accepted] if keep else [])
    calls.clear()
    engine.features(Cursor(2, 1, 3, 5), 0)
    assert calls == [], "rows are kept as they are read"


def test_what_a_sequence_costs_is_what_spreading_the_tokens_cost_more() -> None:
    tokens, seconds = np.array([1, 2, 16]), np.array([1.0, 1.4, 5.0])  # 2 tokens: of one sequence
    assert verify_profiler._sequence_seconds(tokens, seconds, 1.9, 2) == pytest.approx(0.5)
    assert verify_profiler._sequence_seconds(tokens, seconds, 1.3, 2) == 0.0
    assert verify_profiler._sequence_seconds(tokens, seconds, 1.9, 1) == 0.0


def test_sizes_that_a_long_context_leaves_no_time_for_are_borrowed(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {32: [1, 2, 8, 16], 64: [1, 8]}
    monkeypatch.setattr(verify_profiler, "CONTEXTS", tuple(sizes))
    monkeypatch.setattr(
        verify_profiler, "_affordable", lambda engine, tokens, context, share: sizes[context]
    )
    monkeypatch.setattr(
        verify_profiler,
        "_step",
        lambda engine, tokens, context, count: 1e-3 * tokens + 1e-6 * context,
    )
    engine = VerifyEngine.load(VerifyConfig(target=str(golden_target), cost_max_tokens=32))
    curve = verify_profiler.measure(engine, budget_s=0.0)
    assert (curve.tokens.tolist(), curve.contexts.tolist()) == ([1, 2, 8, 16], [32, 64])
    assert curve.borrowed == (3, 7)
    assert curve.seconds[3, 1] == curve.seconds[3, 0]


@pytest.mark.parametrize(
    ("affordable", "sizes"), [(2, [1, 8]), (4, [1, 8, 32, 100]), (7, [1, 2, 4, 8, 16, 32, 100])]
)
def test_a_curve_that_is_short_of_time_loses_points_and_not_its_reach(
    monkeypatch: pytest.MonkeyPatch, affordable: int, sizes: list[int]
) -> None:
    clock = [0.0]

    def step(*_: object) -> float:
        clock[0] += 1.0
        return 1.0

    monkeypatch.setattr(verify_profiler, "_step", step)
    monkeypatch.setattr(verify_profiler.time, "perf_counter", lambda: clock[0])
    tokens = [count for count in verify_profiler.TOKENS if count < 100] + [100]
    kept = verify_profiler._affordable(None, tokens, 128, 3.0 * (affordable - 0.5))  # type: ignore[arg-type]
    assert kept == sizes


def test_a_curve_that_the_pool_cut_short_is_not_that_of_a_larger_one(
    golden_target: Path, golden_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifiers = [
        VerifyEngine.load(VerifyConfig(target=str(golden_target), kv_tokens=tokens))
        for tokens in (1024, 4096)
    ]
    drafters = [
        DraftEngine.load(DraftConfig(drafter=str(golden_drafter), context_tokens=tokens))
        for tokens in (1024, 4096)
    ]
    for profiler, engines in ((verify_profiler, verifiers), (draft_profiler, drafters)):
        monkeypatch.setattr(profiler, "stored_or_measured", lambda key, _: key)
        small, large = map(profiler.cost_curve, engines)
        assert small != large
