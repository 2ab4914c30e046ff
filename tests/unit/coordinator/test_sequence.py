import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.answers.answer import Answer, End, Reason, Round, cut
from coordinator.lanes.request_state import (
    NEXT,
    LifeEvent,
    LifeState,
    SequenceLife,
    UnlistedLifeEvent,
)
from dspark.types import ScoredToken


def test_an_event_the_table_does_not_list_is_an_error() -> None:
    sequence = SequenceLife(7)
    with pytest.raises(UnlistedLifeEvent, match="waiting.*" + LifeEvent.PREEMPTED.value):
        sequence.apply(LifeEvent.PREEMPTED)
    assert sequence.state is LifeState.WAITING


def test_every_living_state_can_end_and_the_finished_one_knows_no_event() -> None:
    assert {state for state, event in NEXT if event is LifeEvent.ENDED} == set(LifeState) - {
        LifeState.FINISHED
    }
    assert not [key for key in NEXT if key[0] is LifeState.FINISHED]


def test_an_answer_keeps_every_position() -> None:
    answer = Answer([9, 8], resumed=[7], max_tokens=9)
    answer.take([6, 5])
    assert (answer.committed_len, answer.length, answer.since_resumed) == (5, 3, 2)
    assert answer.ids() == (9, 8, 7, 6, 5)
    assert answer.ids()[answer.prompt_len :] == (7, 6, 5)
    assert answer.room == 6


def test_the_length_ends_an_answer_inside_a_verdict() -> None:
    answer = Answer([1], max_tokens=3)
    piece = answer.take([5, 6, 7, 8], [ScoredToken(-1.0)] * 4, round=Round(7, 5, 3))
    assert (piece.tokens, piece.end, len(piece.logprobs)) == ((5, 6, 7), End(Reason.LENGTH), 3)
    assert answer.length == 3


def test_pieces_name_their_answer() -> None:
    answer = Answer([1], max_tokens=9, index=2)
    pieces = [answer.take([5, 6, 7]), answer.take([8]), answer.stopped(End(Reason.ABORT))]
    assert [(piece.tokens, piece.index) for piece in pieces] == [((5, 6, 7), 2), ((8,), 2), ((), 2)]


def test_a_stop_token_at_the_last_place_is_a_stop_and_not_a_length() -> None:
    assert cut([4, 5], room=2, stop_ids=frozenset({5})) == ((4, 5), End(Reason.STOP, token_id=5))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(1, 9),
    st.frozensets(st.integers(0, 5)),
)
def test_a_cut_is_a_prefix_that_fits(tokens: list[int], room: int, stops: frozenset[int]) -> None:
    kept, end = cut(tokens, room, stops)
    assert kept == tuple(tokens[: len(kept)])
    assert 1 <= len(kept) <= room
    assert (end is None) == (len(kept) < room and kept[-1] not in stops)
    assert not stops & set(kept[:-1])
