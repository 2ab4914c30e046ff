"""What of a verdict is committed, as far as tokens tell."""

from coordinator.answers.answer import Answer, End, Reason, Round
from dspark.types import ScoredToken


def test_the_length_ends_an_answer_inside_a_verdict() -> None:
    answer = Answer([1], max_tokens=3)
    piece = answer.take([5, 6, 7, 8], [ScoredToken(-1.0)] * 4, round=Round(7, 5, 3))
    assert (piece.tokens, piece.end, len(piece.logprobs)) == ((5, 6, 7), End(Reason.LENGTH), 3)
    assert answer.length == 3


def test_pieces_name_their_answer() -> None:
    answer = Answer([1], max_tokens=9, index=2)
    pieces = [answer.take([5, 6, 7]), answer.take([8]), answer.stopped(End(Reason.ABORT))]
    assert [(piece.tokens, piece.index) for piece in pieces] == [((5, 6, 7), 2), ((8,), 2), ((), 2)]
