"""No cost curve is nonsense, whatever was measured."""

import itertools
import math

import numpy as np
import pytest

from coordinator.planning.cost import CostCurve
from dspark.runtime.cost_store import Curve, curve_of

SIZES, CONTEXTS = (1, 2, 3, 5, 8, 16, 48, 128, 512), (64, 128, 512, 1024, 8192)
ASKED = np.array([0.5, 1.0, 1.5, 2.0, 7.0, 8.0, 9.0, 16.0, 17.0, 64.0, 128.0, 500.0, 2000.0])
BETWEEN = (1.0, 64.0, 100.0, 128.0, 700.0, 1024.0, 5000.0, 20000.0)
ROUNDING = 1e-9


def _measured(draw: np.random.Generator) -> dict[tuple[int, int], list[float]]:
    """A device's times by (tokens, context), some of them, with noise of any size and what no clock
    says."""
    base = 10.0 ** draw.uniform(-5, -1)
    token = 10.0 ** draw.uniform(-7, -3)
    context = 10.0 ** draw.uniform(-9, -5)
    noise, kept = draw.choice([0.0, 0.05, 0.5, 2.0]), draw.uniform(0.05, 1.0)
    samples: dict[tuple[int, int], list[float]] = {}
    for size, length in itertools.product(SIZES, CONTEXTS):
        if draw.random() < kept:
            true = base + token * size + context * length * math.ceil(size / 8)
            samples[size, length] = (
                true * np.exp(noise * draw.standard_normal(draw.integers(1, 4)))
            ).tolist()
            if draw.random() < 0.02:
                samples[size, length].append(float(draw.choice([math.nan, math.inf, -1.0, 0.0])))
    return samples or {(8, 128): [1e-3]}


def _curve(grid: Curve, draw: np.random.Generator) -> CostCurve:
    more = (
        (10.0 ** draw.uniform(-7, -2, len(grid.contexts))).tolist() if draw.random() < 0.5 else ()
    )
    return CostCurve(
        grid.tokens.tolist(),
        grid.contexts.tolist(),
        grid.seconds.ravel().tolist(),
        sequence_seconds=more,
        tokens_per_sequence=8 if more else 0,
        borrowed=grid.borrowed,
    )


def _never_falls(values: np.ndarray, axis: int) -> bool:
    return bool((np.diff(values, axis=axis) >= -ROUNDING * np.abs(values).max()).all())


def _check(curve: CostCurve, draw: np.random.Generator) -> None:
    contexts = sorted(draw.choice(BETWEEN, 3, replace=False).tolist())
    sequences = sorted(draw.integers(1, 80, 2).tolist())
    # [sequences, contexts, tokens]
    stairs = np.array([[curve.stairs(ASKED, c, s) for c in contexts] for s in sequences])
    measured = np.array(
        [[[curve.measured(t, c, s) for t in ASKED[::3]] for c in contexts] for s in sequences]
    )
    for told in (stairs, measured):
        assert np.isfinite(told).all()
        assert (told > 0).all()
        assert all(_never_falls(told, axis) for axis in range(3))
    _, _, told = curve.grid()
    assert min(told) > 0
    assert all(map(math.isfinite, told))


@pytest.mark.parametrize("sets", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_sparse_and_noisy_measurements_make_sound_curves(sets: int) -> None:
    draw = np.random.default_rng(20)
    for _ in range(sets):
        samples = _measured(draw)
        grid = curve_of(samples)
        if grid is None:
            continue
        assert (grid.seconds > 0).all()
        assert _never_falls(grid.seconds, 0)
        assert _never_falls(grid.seconds, 1)
        _check(_curve(grid, draw), draw)


def test_a_point_that_was_not_measured_takes_a_neighbours_value_and_is_marked() -> None:
    grid = curve_of(
        {(1, 128): [2.0], (8, 128): [3.0, 5.0, 4.0], (8, 1024): [9.0], (64, 1024): [math.nan]}
    )
    assert (grid.tokens.tolist(), grid.contexts.tolist()) == ([1, 8], [128, 1024])
    assert grid.seconds.tolist() == [[2.0, 2.0], [4.0, 9.0]]
    assert grid.borrowed == (1,)


def test_what_is_borrowed_bends_nothing_that_was_measured() -> None:
    grid = curve_of({(1, 128): [1.0], (8, 1024): [5.0], (64, 128): [3.0]})
    assert grid.seconds.tolist() == [[1.0, 1.0], [1.0, 5.0], [3.0, 5.0]]
    assert grid.borrowed == (1, 2, 5)


def test_nothing_measured_is_no_curve() -> None:
    assert curve_of({}) is None
    assert curve_of({(1, 128): [math.nan, -1.0, 0.0, math.inf]}) is None


def test_noise_moves_a_point_half_way() -> None:
    """A stall at the smallest step does not lift the whole curve to itself."""
    grid = curve_of({(1, 128): [0.050], (2, 128): [0.010], (4, 128): [0.011], (8, 128): [0.060]})
    assert grid.seconds[:, 0] == pytest.approx([0.030, 0.030, 0.0305, 0.060])
