import numpy as np
import pytest

from coordinator.planning.cost import CostCurve


def test_lookup_interpolates_in_both_directions_and_goes_on_beyond_the_grid() -> None:
    curve = CostCurve([1, 3], [100, 200], [1.0, 2.0, 3.0, 6.0])
    assert curve.measured(2, 100) == pytest.approx(2.0)
    assert curve.measured(2, 150) == pytest.approx(3.0)
    assert curve.measured(5, 100) == pytest.approx(5.0)
    assert curve.measured(2, 9000) == pytest.approx(4.0)


def test_one_context_and_one_point_are_enough() -> None:
    assert CostCurve([4], [128], [0.5]).measured(9, 1) == 0.5


@pytest.mark.parametrize(
    "grid",
    [
        ([], [1], []),
        ([1, 2], [1], [1.0]),
        ([2, 1], [1], [1.0, 1.0]),
        ([1], [1], [0.0]),
        ([1], [1], [float("nan")]),
    ],
)
def test_a_malformed_grid_is_refused(grid) -> None:
    with pytest.raises(ValueError, match="must"):
        CostCurve(*grid)


def test_the_stairs_are_what_was_measured_and_never_fall() -> None:
    curve = CostCurve([1, 2, 3, 4], [10], [1.0, 3.0, 2.0, 4.0])
    assert curve.stairs(np.array([1.0, 2.0, 3.0, 4.0]), 10) == pytest.approx([1.0, 2.5, 2.5, 4.0])


TOKENS, CONTEXTS, PER = (1, 8, 16, 64, 128), (100, 1000), 8


def _step(tokens: float, context: float, sequences: float) -> float:
    """A device whose step is all three: itself, 0.3 ms a token, and the attention of each
    sequence."""
    return 4e-3 + 3e-4 * tokens + 4e-6 * context * sequences


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("tokens", "sequences"), [(16, 16), (64, 16), (128, 16), (64, 64), (8, 1)])
def test_a_step_is_priced_by_its_sequences_and_not_by_its_tokens_alone(
    tokens: int, sequences: int, context: int
) -> None:
    measured = [_step(t, c, -(-t // PER)) for t in TOKENS for c in CONTEXTS]
    each = [4e-6 * c for c in CONTEXTS]
    curve = CostCurve(TOKENS, CONTEXTS, measured, sequence_seconds=each, tokens_per_sequence=PER)
    true = _step(tokens, context, sequences)
    assert curve.measured(tokens, context, sequences) == pytest.approx(true, rel=0.02)
    (told,) = curve.stairs(np.array([float(tokens)]), context, sequences)
    assert told == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize("given", [[], [1e-3], [float("nan"), 0.0]])
def test_what_sequences_cost_is_left_out_where_it_is_not_known(given: list[float]) -> None:
    curve = CostCurve(
        [1, 8], [10, 20], [1.0, 1.0, 2.0, 2.0], sequence_seconds=given, tokens_per_sequence=8
    )
    assert curve.measured(8, 10, 8) == curve.measured(8, 10)
