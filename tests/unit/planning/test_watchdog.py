"""The watchdog of one drafter: what raises an alarm and how soon, what does not, and how it is
tried again."""

import functools

import numpy as np
import pytest

from coordinator.planning.watchdog import (
    LONGEST_S,
    PAUSE_S,
    Alarm,
    BlockSums,
    DraftedPass,
    DrafterWatch,
    drafted_passes,
)
from dspark.rounds.events import RoundReport

SURE = (0.9, 0.8, 0.8, 0.7, 0.7, 0.6, 0.6)
ROUND_S = 0.02


@functools.cache
def block(accepted: int, verified: int = 7, confidence: tuple[float, ...] = SURE) -> RoundReport:
    return RoundReport(1, 0, 1, 100, (1,) * (accepted + 1), accepted, verified, confidence, "", 3)


def empty(why: str, drafter: int = 3) -> RoundReport:
    return RoundReport(1, 0, 1, 100, (1,), why_empty=why, drafter=drafter)


class Rounds:
    """Passes of some sequences that one drafter drafts for, one after the other."""

    def __init__(self, sequences: int = 1, seed: int = 0) -> None:
        self.watch = DrafterWatch(BlockSums())
        self.now, self._draw, self._sequences = 100.0, np.random.default_rng(seed), sequences

    def honest(
        self, kept: float = 1.0, confidence: tuple[float, ...] = SURE, verified: int = 7
    ) -> list[RoundReport]:
        """Blocks whose slots are accepted as they promise, or less often than that."""
        right = self._draw.random((self._sequences, verified)) < kept * np.array(
            confidence[:verified]
        )
        accepted = np.logical_and.accumulate(right, axis=1).sum(axis=1)
        return [block(count, verified, confidence) for count in accepted.tolist()]

    def run(self, rounds: list[RoundReport], formed: bool = False) -> None:
        self.now += ROUND_S
        for seen in drafted_passes(rounds, [formed] * len(rounds)).values():
            self.watch.observe(seen, self.now)

    def until_alarm(self, make: list[RoundReport] | None, most: int, **honest: float) -> int:
        """Passes until there is one; `most` where there is none."""
        for number in range(most):
            self.run(make if make is not None else self.honest(**honest))
            if self.watch.alarm is not None:
                return number + 1
        return most


@pytest.fixture
def drafter() -> Rounds:
    return Rounds()


def test_a_pass_says_what_was_promised_and_what_was_kept_of_it() -> None:
    half = (0.5, 0.5, 0.5)
    rounds = [block(1, 2, half), block(2, 2, half), block(0)]
    rounds += map(empty, ("invalid", "late", "off"))
    seen = drafted_passes(rounds, [each == block(0) for each in rounds])
    blocks = DraftedPass(
        2, 1.5, 3.0, 0.25**2 + 1.25**2, 1.0 + 2.5, 6.0, malformed=1, missing=1, formed=1, first=1.0
    )
    assert seen == {3: blocks}
    lacking = [*map(empty, ("rows lost", "unknown sequence", "drafter late"))]
    # told by the drafter, which every time drafts nothing
    assert drafted_passes(lacking, [False] * 3) == {3: DraftedPass(missing=3)}
    others = [empty("no drafter", 0), empty("last token"), empty("rows missing")]
    assert drafted_passes(others, [False] * 3) == {}


@pytest.mark.parametrize("sequences", [1, 4, 64])
def test_honest_blocks_raise_no_alarm(sequences: int) -> None:
    for seed in range(4):
        rounds = Rounds(sequences, seed)
        assert rounds.until_alarm(None, 3000) == 3000
        assert rounds.watch.recent.ratio == pytest.approx(1.0, abs=0.45)
        assert rounds.until_alarm(None, 3000, kept=0.75) == 3000, "a harder text, not a collapse"


@pytest.mark.parametrize(
    ("rounds", "alarm"),
    [
        ([block(0)], Alarm.NOTHING_ACCEPTED),
        ([block(0, 2)], Alarm.NOTHING_ACCEPTED),
        ([block(0, 0, (0.0,) * 7)], Alarm.NOTHING_ACCEPTED),
        ([empty("invalid")], Alarm.MALFORMED),
        ([empty("invalid"), empty("invalid"), block(2)], Alarm.MALFORMED),
        ([empty("invalid"), block(2), block(2)], Alarm.MALFORMED),
        ([empty("")], Alarm.NOTHING_DRAFTED),
        ([empty(""), block(2)], Alarm.NOTHING_DRAFTED),
        ([empty("drafter late")], Alarm.NOTHING_DRAFTED),
    ],
)
def test_an_alarm_comes_within_a_hundred_rounds(
    drafter: Rounds, rounds: list[RoundReport], alarm: Alarm
) -> None:
    assert drafter.until_alarm(None, 500) == 500
    assert drafter.until_alarm(rounds, 101) <= 100
    assert drafter.watch.alarm is alarm


@pytest.mark.parametrize("sequences", [1, 8])
def test_acceptance_that_falls_to_a_sixth_is_a_collapse(sequences: int) -> None:
    drafter = Rounds(sequences)
    drafter.until_alarm(None, 500)
    assert drafter.until_alarm(None, 101, kept=0.15) <= 100
    assert drafter.watch.alarm in (Alarm.COLLAPSE, Alarm.NOTHING_ACCEPTED)


def test_the_first_blocks_are_no_surer_than_they_are() -> None:
    watch = DrafterWatch(BlockSums(1000.0, 4000.0, 4000.0, 4000.0, 4000.0, 7000.0))
    few = DraftedPass(1.0, 3.3, 1.0, 5.3, 1.0, 7.0, first=0.9)
    for _ in range(8):
        watch.observe(few, 1.0)
    assert watch.alarm is None, "8 of 26 tokens: less than four standard deviations"
    for _ in range(12):
        watch.observe(few, 1.0)
    assert watch.alarm is Alarm.COLLAPSE


def test_a_hiccup_is_none_and_neither_is_a_block_now_and_then(drafter: Rounds) -> None:
    drafter.until_alarm(None, 300)
    assert drafter.until_alarm([empty("late")], 25) == 25  # half a second of these rounds
    for _ in range(200):
        drafter.run([empty("late")])
        for each in ("invalid", "", "", "", "", "", "", ""):
            drafter.run([empty(each)] if each else drafter.honest())
    assert drafter.watch.alarm is None


def test_who_is_left_out_is_tried_again_each_time_later_and_forgiven_when_it_drafts(
    drafter: Rounds,
) -> None:
    drafter.until_alarm(None, 300)
    drafter.until_alarm([block(0)], 100)
    pauses = []
    for _ in range(8):
        pauses.append(drafter.watch.pause_left_s(drafter.now))
        drafter.run([block(0)])
        assert drafter.watch.left_out(drafter.now), "rounds that were under way say nothing"
        drafter.now += pauses[-1]
        began = drafter.now
        assert not drafter.watch.left_out(began)
        for _ in range(100):
            drafter.run([block(0)])
            if drafter.watch.left_out(drafter.now):
                break
        assert (
            drafter.watch.pause_left_s(drafter.now) >= 8.0 * (drafter.now - began - ROUND_S) - 1e-9
        )
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (PAUSE_S, LONGEST_S)
    drafter.now += LONGEST_S
    for _ in range(40):
        drafter.run(drafter.honest())
    assert drafter.watch.alarm is None
    drafter.until_alarm([block(0)], 100)
    assert drafter.watch.pause_left_s(drafter.now) == PAUSE_S


def test_what_a_verifier_gave_up_is_left_out_at_once_and_once() -> None:
    watch = DrafterWatch(BlockSums())
    assert watch.raised(Alarm.MALFORMED, 5.0)
    assert not watch.raised(Alarm.NOTHING_DRAFTED, 6.0)
    assert watch.alarm is Alarm.MALFORMED
    assert (watch.left_out(14.9), watch.left_out(15.0)) == (True, False)


def test_blocks_that_are_worth_little_may_become_what_is_usual(drafter: Rounds) -> None:
    """A load of another kind: little is promised, and it is kept."""
    poor = (0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    drafter.until_alarm(None, 500)
    assert drafter.until_alarm(None, 300, confidence=poor) < 300
    drafter.now += PAUSE_S
    for _ in range(2000):
        drafter.run(drafter.honest(confidence=poor))
    assert drafter.watch.alarm is None


def test_a_process_that_comes_anew_knows_what_its_version_did(drafter: Rounds) -> None:
    drafter.until_alarm(None, 500)
    drafter.watch = DrafterWatch(drafter.watch.past)
    assert drafter.until_alarm([block(0, 0, (0.0,) * 7)], 101) <= 100


@pytest.mark.parametrize("promise", [0.35, 0.4, 0.45, 0.5, 0.55])
def test_a_trial_goes_on_until_it_can_tell_where_blocks_promise_little(promise: float) -> None:
    slots = (promise,) * 7
    rounds = Rounds(8)
    assert rounds.until_alarm(None, 400, confidence=slots) == 400
    dead = [block(0, 7, slots)] * 8
    rounds.until_alarm(dead, 400)
    for _ in range(6):
        assert rounds.watch.alarm is not None
        rounds.now += rounds.watch.pause_left_s(rounds.now)
        for _ in range(200):
            rounds.run(dead)
            assert rounds.watch.alarm is not None, "nothing was accepted, and it passed"
            if rounds.watch.left_out(rounds.now):
                break
    assert rounds.watch.pause_left_s(rounds.now) == pytest.approx(LONGEST_S, rel=0.5)


def test_a_trial_that_stood_idle_does_not_make_the_pause_behind_it_any_longer(
    drafter: Rounds,
) -> None:
    assert drafter.until_alarm([block(0)], 101) <= 100, "one that never fitted has no past"
    drafter.now += PAUSE_S
    drafter.run([block(0)])
    drafter.now += 3600.0  # nobody asks for anything
    for _ in range(100):
        drafter.run([block(0)])
        if drafter.watch.left_out(drafter.now):
            break
    assert 0.0 < drafter.watch.pause_left_s(drafter.now) <= LONGEST_S


def test_short_blocks_are_not_measured_by_what_long_ones_were_worth(drafter: Rounds) -> None:
    sure = (0.99,) * 15
    assert drafter.until_alarm(None, 500, confidence=sure, verified=15) == 500
    assert drafter.until_alarm(None, 500, confidence=sure[:1], verified=1) == 500


def test_what_a_form_refuses_is_not_its_drafter_s_fault_and_a_trial_may_end_with_it(
    drafter: Rounds,
) -> None:
    drafter.until_alarm(None, 300)
    for _ in range(500):
        drafter.run([block(0)], formed=True)
    assert drafter.watch.alarm is None
    drafter.watch.raised(Alarm.NOTHING_DRAFTED, drafter.now)
    drafter.now += PAUSE_S
    for _ in range(40):
        drafter.run([block(0)], formed=True)
    assert drafter.watch.alarm is None
    assert drafter.until_alarm(None, 101, kept=0.0) <= 100
