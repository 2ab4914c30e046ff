"""A client that holds the first tokens of an answer is shown the rest: text, ids and
log-probabilities alike."""

import operator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.answers.answer import CommittedTokens, End, Reason
from coordinator.reception.output_processor import OutputChunk, OutputProcessor
from coordinator.requests.request import Request
from dspark.rounds.policy import Off
from dspark.types import SamplingParams, ScoredToken
from tests.unit.coordinator.test_output_processor import END, PROMPT, TOKENIZER

TEXTS = st.text(alphabet="aéb€\U0001f600 .", max_size=12)


def reader(stops: tuple[str, ...], held: int) -> OutputProcessor:
    request = Request("r", tuple(PROMPT), SamplingParams(), 99, Off(), stops=stops)
    return OutputProcessor(request, TOKENIZER, 100.0, (held,) if held else ())


def read(reading: OutputProcessor, pieces: list[CommittedTokens]) -> list[OutputChunk]:
    return [shown for piece in pieces for shown in reading.read([(piece, 101.0)])]


def told(shown: list[OutputChunk]) -> tuple[list[int], str, list[ScoredToken]]:
    return (
        [token for one in shown for token in one.tokens],
        "".join(one.text for one in shown),
        [logprob for one in shown for logprob in one.logprobs],
    )


def pieces_of(ids: list[int], sizes: list[int], ends: bool) -> list[CommittedTokens]:
    pieces, at = [], 0
    for size in [*sizes, len(ids)]:
        part = tuple(ids[at : at + size])
        at += len(part)
        if part:
            last = ends and at == len(ids)
            end = End(Reason.STOP, token_id=END) if last else None
            pieces.append(
                CommittedTokens(part, end, 0, tuple(ScoredToken(-float(token)) for token in part))
            )
    return pieces


@settings(max_examples=60)
@given(
    text=TEXTS,
    stop=st.sampled_from(["", "b€", "éé", "."]),
    sizes=st.lists(st.integers(1, 5), max_size=8),
    again=st.lists(st.integers(1, 9), max_size=4),
    ends=st.booleans(),
)
# tokens behind the stop string, in one piece with it
@example(text="a.bb", stop=".", sizes=[5], again=[], ends=False)
def test_what_was_shown_before_and_after_is_the_whole(
    text: str, stop: str, sizes: list[int], again: list[int], ends: bool
) -> None:
    ids = [*TOKENIZER.encode(text), *([END] if ends else [])]
    stops = (stop,) if stop else ()
    whole = reader(stops, 0)
    first = read(whole, pieces_of(ids, sizes, ends))
    assert len(told(first)[0]) == len(told(first)[2]), "one log-probability for each token"
    for messages in range(len(first) + 1):  # after each of them the stream may break
        before = told(first[:messages])
        held = len(before[0])
        resumed = reader(stops, held)
        after = read(resumed, pieces_of(ids, again, ends))
        assert all(shown.offset >= held for shown in after)
        assert tuple(map(operator.add, before, told(after))) == told(first)
        assert resumed.answers[0].answered == whole.answers[0].answered
        assert resumed.answers[0].end == whole.answers[0].end


@pytest.mark.parametrize("held", [0, 1, 3])
@pytest.mark.parametrize("late", ["", "more"])
def test_an_answer_that_its_text_ended_ends_the_same_when_told_again(held: int, late: str) -> None:
    """The journal knows that it stopped and not at which string, and what was committed before the
    stop was found."""
    said = tuple(TOKENIZER.encode("aéé"))
    whole, resumed = reader(("éé",), 0), reader(("éé",), held)
    first = told(read(whole, [CommittedTokens(said, None)]))
    rest = told(
        read(resumed, [CommittedTokens((*said, *TOKENIZER.encode(late)), End(Reason.STOP))])
    )
    assert rest[0] == first[0][held:]
    assert rest[1] == first[1][held:], "text and tokens of ASCII go together"
    assert resumed.answers[0].end == whole.answers[0].end == End(Reason.STOP, text="éé")
    assert resumed.unsaid == len(late)
