"""The joint choice of rows and lengths, against a search over all of them."""

from itertools import product

import numpy as np
import pytest

from coordinator.scheduling.choice import Drafts, Field, best_rows
from dspark.rounds.schedule import Floats


def field(gain: list[list[float]], *, worth: float | None = None, own: int = 0) -> Field:
    """Rows that bring `gain` by slot; every slot is verified."""
    grid = np.array(gain)
    count = len(grid) + own
    return Field(
        free=np.ones(len(grid), np.bool_),
        brought=np.cumsum(grid, axis=1),
        used=np.cumsum(np.ones_like(grid), axis=1),
        worth=count if worth is None else worth,
        tokens=float(count),
        own=own,
        able=count,
    )


def linear_step(tokens: Floats) -> Floats:
    seconds: Floats = 0.010 + 0.0005 * tokens
    return seconds


def searched(each: Field, drafts: Drafts) -> float:
    """The best rate over every set of rows and every length."""
    rows, lengths = each.brought.shape
    best = 0.0
    for picks in product((False, True), repeat=rows):
        at = np.array(picks)
        if not at.any():
            continue
        for k in range(lengths):
            share = np.full(lengths, at.sum() / each.able)
            seconds = linear_step(np.array([each.tokens + each.used[at, k].sum()]))[0] + drafts.seconds(share)[k]
            best = max(best, float((each.worth + each.brought[at, k].sum()) / seconds))
    return best


@pytest.mark.parametrize("fixed_s", [0.0, 0.002, 0.006])
@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_the_best_of_all(seed: int, fixed_s: float) -> None:
    survival = np.sort(np.random.default_rng(seed).uniform(0, 1, (6, 4)))[:, ::-1]
    each = field(survival.tolist())
    drafts = Drafts(fixed_s + 0.0005 * np.arange(1.0, 5.0), 0.002 * np.arange(1.0, 5.0))
    row_s = each.slope(linear_step) * each.used + drafts.each / each.able
    plain = each.worth / float(linear_step(np.array([each.tokens]))[0])
    options = best_rows(each, plain, row_s, lambda tokens, share: linear_step(tokens) + drafts.seconds(share))
    best = searched(each, drafts)
    if best > plain:
        assert float(options.rates.max()) == pytest.approx(best, rel=0.01)
    else:
        assert float(options.rates.max()) <= plain


def test_a_few_good_rows_among_poor_ones_carry_the_cost_that_all_share() -> None:
    good, poor = [0.9, 0.9, 0.8, 0.8], [0.05, 0.0, 0.0, 0.0]
    each = field([good] * 3 + [poor] * 13)
    drafts = Drafts(np.full(4, 0.001), np.full(4, 0.004))
    row_s = each.slope(linear_step) * each.used + drafts.each / each.able
    plain = each.worth / float(linear_step(np.array([each.tokens]))[0])
    options = best_rows(each, plain, row_s, lambda tokens, share: linear_step(tokens) + drafts.seconds(share))
    best = int(options.rates.argmax())
    assert options.rates[best] > plain
    assert options.chosen[:, best].tolist() == [True] * 3 + [False] * 13


def test_where_no_row_pays_the_rates_say_how_far_off_that_is() -> None:
    def of(chance: float) -> float:
        each = field([[chance, 0.0]] * 4)
        drafts = Drafts(np.full(2, 0.004), np.full(2, 0.004))
        row_s = each.slope(linear_step) * each.used + drafts.each / each.able
        plain = each.worth / float(linear_step(np.array([each.tokens]))[0])
        options = best_rows(each, plain, row_s, lambda tokens, share: linear_step(tokens) + drafts.seconds(share))
        assert not options.pays
        return float(options.rates.max()) / plain

    assert 0.0 < of(0.0) < of(0.05) < 1.0


def test_a_draft_of_which_half_is_hidden_has_no_negative_part() -> None:
    drafts = Drafts.of(lambda share, slots: 0.001 * slots if share == 1.0 else 0.003, [1, 2, 4])
    assert (drafts.first >= 0).all()
    assert (drafts.each >= 0).all()
    assert drafts.seconds(np.ones(3)) == pytest.approx([0.001, 0.002, 0.004])
    assert drafts.seconds(np.zeros(3)).tolist() == [0.0] * 3


def test_rows_that_insist_count_among_those_that_are_drafted_for() -> None:
    each = field([[0.9, 0.8]] * 4, own=4)
    shares: list[float] = []

    def round_s(tokens: Floats, share: Floats) -> Floats:
        shares.extend(share.tolist())
        return linear_step(tokens)

    best_rows(each, 1.0, each.slope(linear_step) * each.used, round_s)
    assert set(shares) == {1.0}
