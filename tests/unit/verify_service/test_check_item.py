"""Whether a command about a sequence fits: anything but the next round is stale or unknown."""

import pytest

from dspark.types import NO_Q, Cursor, Refusal, RefusalReason, SamplingParams
from verify_service.sequences import CachedSequence, VerifyItem, check_item

CURSOR = Cursor(7, 2, 4, 10)  # of the round that is due


def held() -> CachedSequence:
    """Ten tokens committed, three rounds judged, under epoch 2; its prompt was five, of a request
    of three."""
    return CachedSequence(
        sequence=7,
        epoch=2,
        owner=0,
        params=SamplingParams(temperature=0.0, prompt_len=3),
        prompt_len=5,
        keep_features=True,
        token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9, 5],
        cached=9,
        anchored=True,
        round=3,
    )


def check(
    state: CachedSequence | None = None, *, anchor: int = 5, **differs: int
) -> Refusal | None:
    item = VerifyItem(CURSOR._replace(**differs), anchor, (), NO_Q)
    return check_item(state or held(), item)


def reason(answer: Refusal | None) -> RefusalReason | None:
    return answer.reason if isinstance(answer, Refusal) else None


def test_the_next_round_may_run() -> None:
    assert check() is None


@pytest.mark.parametrize(
    "differs",
    [
        {"round": 3},  # over, and the sequence has moved on since
        {"round": 2},
        {"round": 2, "committed_len": 8},  # where the last round began, but another round
        {"committed_len": 8},
        {"committed_len": 9},
        {"committed_len": 11},
        {"anchor": 6},
        {"epoch": 1},
        {"epoch": 1, "round": 3, "committed_len": 8},
    ],
    ids=str,
)
def test_another_moment_is_stale(differs: dict[str, int]) -> None:
    assert reason(check(**differs)) is RefusalReason.STALE_CURSOR


def test_an_epoch_ahead_is_unknown_and_so_is_whose_prompt_has_not_ended() -> None:
    assert reason(check(epoch=3)) is RefusalReason.UNKNOWN_SEQUENCE
    assert reason(check(epoch=3, round=3, committed_len=8)) is RefusalReason.UNKNOWN_SEQUENCE
    early = held()
    early.anchored = False
    assert reason(check(early)) is RefusalReason.UNKNOWN_SEQUENCE


def test_the_request_s_own_prompt_is_what_it_gave_wherever_its_answer_goes_on() -> None:
    state = held()
    assert state.given == 3
    state.params = SamplingParams(temperature=0.0)  # an older coordinator does not say
    assert state.given == 5
