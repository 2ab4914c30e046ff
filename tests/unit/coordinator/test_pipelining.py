"""One cohort or two, by a clock and commit counts made up here."""

from collections.abc import Callable

from coordinator.scheduling.pipelining import (
    FIRST_TRIAL,
    LEAST_SEQUENCES,
    SETTLE_ROUNDS,
    WINDOW_ROUNDS,
    Mode,
    Pipelining,
    _level,
)


def drive(depth: Pipelining, rate: Callable[[int], float], cohorts: int, sequences: int = 64) -> list[int]:
    """Judges cohorts of ten tokens; `rate(depth)` tokens per second. Returns the depth after each."""
    now, seen = drive.now, []
    for _ in range(cohorts):
        now += 10 / rate(depth.depth)
        if depth.judged(now, 10, sequences):
            depth.may_try(two=True, plain=False)
        seen.append(depth.depth)
    drive.now = now
    return seen


drive.now = 0.0

LONG = 20 * FIRST_TRIAL * WINDOW_ROUNDS


def test_two_cohorts_stay_when_they_commit_more() -> None:
    depth = Pipelining()
    seen = drive(depth, lambda d: 1.3 if d == 2 else 1.0, LONG)
    assert seen[0] == 1
    assert seen[-LONG // 2 :].count(2) > 0.8 * (LONG // 2)


def test_one_cohort_stays_when_two_win_nothing_and_trials_become_rare() -> None:
    depth = Pipelining()
    seen = drive(depth, lambda d: 1.0, LONG)
    first, second = seen[: LONG // 2].count(2), seen[LONG // 2 :].count(2)
    assert 0 < second < first < LONG // 8


def test_a_trial_that_clearly_loses_ends_early() -> None:
    close = drive(Pipelining(), lambda d: 1.0 - 0.05 * (d == 2), LONG).count(2)
    far = drive(Pipelining(), lambda d: 1.0 - 0.2 * (d == 2), LONG).count(2)
    assert 0 < far < 0.5 * close


def test_a_few_sequences_are_never_split() -> None:
    depth = Pipelining()
    assert set(drive(depth, lambda d: float(d), LONG, sequences=LEAST_SEQUENCES - 1)) == {1}


def test_a_number_of_cohorts_that_was_asked_for_is_kept() -> None:
    assert set(drive(Pipelining(2), lambda d: 1.0 / d, LONG)) == {2}
    assert set(drive(Pipelining(1), lambda d: float(d), LONG)) == {1}


def test_a_trial_that_is_not_promising_is_put_off() -> None:
    depth = Pipelining()
    for step in range(LONG):
        if depth.judged(float(step), 10, 64):
            depth.may_try(two=False, plain=False)
        assert depth.depth == 1


def test_one_cohort_is_tried_again_where_two_are_no_longer_expected_to_win() -> None:
    depth, now = Pipelining(), 0.0
    rate = {1: 1.0, 2: 1.3}

    def rounds(count: int, two_could_win: bool) -> list[int]:
        nonlocal now
        seen = []
        for _ in range(count):
            now += 10 / rate[depth.depth]
            if depth.judged(now, 10, 64):
                depth.may_try(two=two_could_win, plain=False)
            seen.append(depth.depth)
        return seen

    assert rounds(10 * WINDOW_ROUNDS, True)[-1] == 2
    rate[1] = 2.0
    assert rounds(LONG, False)[-1] == 1


def in_modes(
    lane: Pipelining, rate: dict[Mode, float], cohorts: int, *, plain: bool = True, load: int = 16
) -> list[Mode]:
    """As `drive`, for all three modes."""
    seen = []
    for _ in range(cohorts):
        drive.now += 10 / rate[lane.mode]
        if lane.judged(drive.now, 10, load):
            lane.may_try(two=True, plain=plain)
        seen.append(lane.mode)
    return seen


PLAIN_WINS = {Mode.ONE: 1.0, Mode.TWO: 0.9, Mode.PLAIN: 1.2}


def test_a_lane_goes_without_drafts_where_it_commits_more_that_way() -> None:
    seen = in_modes(Pipelining(), PLAIN_WINS, LONG)
    assert seen[0] is Mode.ONE
    assert seen[-LONG // 2 :].count(Mode.PLAIN) > 0.8 * (LONG // 2)


def test_two_cohorts_are_found_where_one_is_worse_than_no_drafts() -> None:
    lane = Pipelining()
    rates = {Mode.ONE: 1.0, Mode.PLAIN: 1.2, Mode.TWO: 1.4}
    assert in_modes(lane, rates, LONG)[-LONG // 2 :].count(Mode.TWO) > 0.8 * (LONG // 2)


def test_arrivals_do_not_change_the_mode_of_a_window_that_counts() -> None:
    lane = Pipelining()
    assert in_modes(lane, PLAIN_WINS, LONG)[-1] is Mode.PLAIN
    in_modes(lane, PLAIN_WINS, 1, load=1)
    assert in_modes(lane, PLAIN_WINS, WINDOW_ROUNDS // 2, load=12)[-1] is Mode.ONE
    lane.joined(16)
    assert lane.mode is Mode.ONE
    assert in_modes(lane, PLAIN_WINS, WINDOW_ROUNDS + SETTLE_ROUNDS, plain=False)[-1] is Mode.PLAIN, "another load"
    in_modes(lane, PLAIN_WINS, WINDOW_ROUNDS, plain=False)
    assert lane._home_rate > 0.99 * PLAIN_WINS[Mode.PLAIN], "of plain rounds alone"


def test_a_load_at_the_edge_of_two_known_ones_is_measured_all_the_same() -> None:
    lane = Pipelining()
    one_wins = {Mode.ONE: 1.2, Mode.TWO: 0.9, Mode.PLAIN: 1.0}
    in_modes(lane, PLAIN_WINS, LONG, load=16)
    in_modes(lane, PLAIN_WINS, 1, load=1)
    in_modes(lane, one_wins, LONG, load=15)
    assert lane._best[_level(16)] is not lane._best[_level(15)]
    in_modes(lane, PLAIN_WINS, 1, load=1)
    for _ in range(20):
        in_modes(lane, one_wins, 20)
        for arrived in (15, 16):
            lane.joined(arrived)
    assert lane._home_rate > 0.0
    assert lane.home is Mode.ONE


def test_another_drafter_is_tried_soon() -> None:
    lane = Pipelining()
    assert in_modes(lane, PLAIN_WINS, 4 * LONG)[-1] is Mode.PLAIN
    lane.drafters_changed()
    soon = 2 * (FIRST_TRIAL + 1) * (WINDOW_ROUNDS + SETTLE_ROUNDS)
    assert Mode.ONE in in_modes(lane, PLAIN_WINS, soon)


def test_drafts_come_back_when_they_pay_again() -> None:
    lane = Pipelining()
    assert in_modes(lane, PLAIN_WINS, LONG)[-1] is Mode.PLAIN
    assert in_modes(lane, {Mode.ONE: 2.0, Mode.TWO: 1.0, Mode.PLAIN: 1.0}, 4 * LONG)[-1] is Mode.ONE


def test_going_without_drafts_is_not_tried_where_it_is_far_from_paying() -> None:
    assert Mode.PLAIN not in in_modes(Pipelining(), PLAIN_WINS, LONG, plain=False)


def test_what_was_best_under_a_load_is_remembered_while_it_is_away() -> None:
    lane = Pipelining()
    assert in_modes(lane, PLAIN_WINS, LONG)[-1] is Mode.PLAIN
    assert set(in_modes(lane, PLAIN_WINS, 10, load=1)) == {Mode.ONE}, "few are always drafted for"
    lane.joined(5)
    assert lane.mode is Mode.ONE, "five are another load"
    lane.joined(16)
    assert lane.mode is Mode.PLAIN
    assert in_modes(lane, PLAIN_WINS, WINDOW_ROUNDS, plain=False)[-1] is Mode.PLAIN
