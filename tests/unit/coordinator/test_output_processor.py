"""What clients are shown: text, stop strings, what counts, and one message for whatever was
waiting."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from coordinator.answers.answer import CommittedTokens, End, FirstCommit, Reason, Round, cut
from coordinator.http.reader import Reader
from coordinator.reception.output_processor import (
    OutputChunk,
    OutputProcessor,
    StopStrings,
    per_token_s,
)
from coordinator.reception.tokenizer import Tokenizer
from coordinator.requests.request import Request
from dspark.rounds.policy import Off
from dspark.types import SamplingParams, ScoredToken


def byte_tokenizer() -> Tokenizer:
    """One token per byte, so that every character beyond ASCII takes several; plus one special
    token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(
        models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend)


TOKENIZER = byte_tokenizer()
PROMPT = TOKENIZER.encode("say:")
END = TOKENIZER.encode("<end>")[0]


class Told:
    """Pieces as a lane would pass them on, and what is shown of them."""

    def __init__(
        self, max_tokens: int = 99, stop_ids: frozenset[int] = frozenset(), **more: object
    ) -> None:
        params = SamplingParams(min_tokens=more.pop("min_tokens", 0))
        request = Request("r", tuple(PROMPT), params, max_tokens, Off(), stop_ids=stop_ids, **more)
        self.reader = OutputProcessor(request, TOKENIZER, 100.0)
        self.reading = self.reader.answers[0]
        self.log: list[int] = []
        self.shown: list[OutputChunk] = []

    def piece(self, ids: tuple[int, ...]) -> CommittedTokens:
        kept, end = cut(
            ids, self.reader.request.max_tokens - len(self.log), self.reader.request.stop_ids
        )
        self.log += kept
        return CommittedTokens(kept, end)

    def commit(self, ids: tuple[int, ...]) -> None:
        self.read(self.piece(ids))

    def read(self, *pieces: CommittedTokens) -> None:
        self.shown += self.reader.read([(piece, 101.0) for piece in pieces])

    def say(self, text: str, size: int) -> None:
        """Commits the text's tokens `size` at a time, until the answer ends."""
        ids = TOKENIZER.encode(text)
        for start in range(0, len(ids), size):
            self.commit(ids[start : start + size])
            if self.reading.end is not None:
                break

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.shown)

    @property
    def tokens(self) -> list[int]:
        return [token for one in self.shown for token in one.tokens]


@given(st.text(max_size=20), st.integers(1, 5))
def test_text_is_never_broken_inside_a_character(text: str, size: int) -> None:
    told = Told(max_tokens=max(len(TOKENIZER.encode(text)), 1))
    told.say(text, size)
    assert told.text == text
    assert not any("\ufffd" in one.text for one in told.shown) or "\ufffd" in text


STOP, LO, L = (End(Reason.STOP, text=text) for text in ("STOP", "lo", "l"))
(MARK,) = TOKENIZER.encode("!")


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(
    ("asked", "said", "shown", "answered", "end"),
    [
        ({"stops": ("STOP",)}, "go on STOP and on", "go on ", 10, STOP),
        ({"stops": ("lo",), "show_stop": True}, "hello there", "hello", 5, LO),
        ({"stops": ("l",), "min_tokens": 3}, "hello there", "hel", 4, L),  # too short before
        ({"stops": ("STOP",), "max_tokens": 4}, "xSTO", "xSTO", 4, End(Reason.LENGTH)),
        ({"stop_ids": frozenset({MARK})}, "hi! there", "hi", 3, End(Reason.STOP, token_id=MARK)),
        ({"max_tokens": 2}, "a\u00e9", "a\ufffd", 2, End(Reason.LENGTH)),  # inside its two bytes
    ],
)
def test_an_answer_ends_at_the_same_place_however_its_tokens_come(
    asked: Any, said: str, shown: str, answered: int, end: End, size: int
) -> None:
    told = Told(**asked)
    told.say(said, size)
    assert (told.text, told.reading.answered, told.reading.end) == (shown, answered, end)
    assert [one.end for one in told.shown if one.end] == [end]
    assert all(len(one.texts) == len(one.tokens) for one in told.shown)


def test_tokens_end_with_the_stop_string_and_those_behind_it_are_dropped_and_counted() -> None:
    told = Told(stops=("lo",))
    told.say("hello there", 7)
    told.commit(TOKENIZER.encode("more"))
    assert TOKENIZER.decode(told.tokens, skip_special=True) == "hello"
    assert told.reader.unsaid == 2 + 4
    assert told.reading.answered == 5
    assert told.text == "hel"


def test_what_is_held_back_comes_out_when_something_else_ends_the_answer() -> None:
    told = Told(stops=("STOP",))
    told.say("xST", 3)
    assert told.text == "x"
    told.read(CommittedTokens((), End(Reason.ABORT)))
    assert told.text == "xST"
    assert told.reading.end == End(Reason.ABORT)
    assert [len(one.texts) for one in told.shown] == [len(one.tokens) for one in told.shown]
    reader = Reader(inside=True)
    parts = [
        part
        for one in told.shown
        for part in reader.read(one.texts, rest=one.rest, over=one.end is not None)
    ]
    assert "".join(part.reasoning for part in parts) == "xST"
    assert reader.thought == 3, "what is held back is of tokens that were counted"


def test_a_special_token_that_is_a_stop_string_ends_the_answer_though_it_has_no_text() -> None:
    ids = (*TOKENIZER.encode("xST"), END, *TOKENIZER.encode("b"))
    for size in range(1, 6):
        for kept in (False, True):
            told = Told(stops=("STOP", "<end>"), show_stop=kept, min_tokens=3)
            for start in range(0, len(ids), size):
                told.commit(ids[start : start + size])
            assert told.text == ("xST<end>" if kept else "xST")
            assert [len(one.texts) for one in told.shown] == [len(one.tokens) for one in told.shown]
            assert told.reading.end == End(Reason.STOP, text="<end>")
            assert told.tokens == list(ids[:4])
            assert told.reader.unsaid == 1
    told = Told(max_tokens=5, stops=("<end>",), min_tokens=4)
    told.commit(ids)
    assert told.text == "xSTb"
    assert told.reading.end == End(Reason.LENGTH)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_any_ids_give_text_and_no_error(ids: list[int]) -> None:
    told = Told(max_tokens=max(len(ids), 1))
    for token in ids:
        told.commit((token,))
    assert told.text.replace("\ufffd", "") == TOKENIZER.decode(ids, skip_special=True).replace(
        "\ufffd", ""
    )


def test_what_was_waiting_becomes_one_message_per_answer() -> None:
    told = Told()
    told.read(
        told.piece(TOKENIZER.encode("abc")), told.piece(TOKENIZER.encode("def")), told.piece((7,))
    )
    assert [(one.offset, len(one.tokens)) for one in told.shown] == [(0, 7)]
    told.commit((8,))
    assert told.shown[-1].offset == 7


def test_several_answers_are_kept_apart() -> None:
    request = Request("r", (1,), SamplingParams(), 9, Off(), choices=2)
    reader = OutputProcessor(request, None, 0.0)
    pieces = [
        CommittedTokens((5,), None, 0),
        CommittedTokens((6, 7), End(Reason.LENGTH), 1),
        CommittedTokens((8,), None, 0),
    ]
    shown = reader.read([(piece, 1.0) for piece in pieces])
    assert [(one.index, one.tokens) for one in shown] == [(0, [5, 8]), (1, [6, 7])]
    assert not reader.done
    reader.read([(CommittedTokens((), End(Reason.ABORT), 0), 1.0)])
    assert reader.done


def test_numbers_come_from_the_pieces_and_stop_where_the_answer_does() -> None:
    told = Told(stops=("lo",))
    ids = TOKENIZER.encode("hello there")
    told.reader.read([(CommittedTokens(ids[:1], None, started=FirstCommit(0.25, 16)), 100.5)])
    logprobs = tuple(ScoredToken(-float(n)) for n in range(8))
    piece = CommittedTokens(ids[1:9], None, logprobs=logprobs, round=Round(9, 8, 7))
    shown = told.reader.read(
        [(piece, 101.0), (CommittedTokens(ids[9:], None, round=Round(9, 8, 1)), 102.0)]
    )
    stats = told.reading.stats
    assert [one.logprob for one in shown[0].logprobs] == [0.0, -1.0, -2.0, -3.0]
    assert (stats.rounds, stats.drafted, stats.verified) == (1, 9, 8)
    assert (stats.accepted, stats.committed_by_rounds) == (4, 4)
    assert (stats.queue_s(), stats.first_token_s(), stats.total_s()) == (0.25, 0.5, 1.0)
    assert told.reading.cached_tokens == 16


def test_tokens_of_before_a_resume_are_in_no_time_per_token() -> None:
    told = Told()
    ids = TOKENIZER.encode("hello there")
    pieces = [
        (CommittedTokens(ids[:5], None), 100.1),  # told again
        (CommittedTokens(ids[5:6], None, started=FirstCommit(0.25)), 101.0),
        (CommittedTokens(ids[6:8], End(Reason.LENGTH), round=Round(3, 3, 1)), 102.0),
    ]
    told.reader.read(pieces)
    assert told.reading.answered == 8
    assert told.reading.stats.first_token_s() == 1.0
    assert per_token_s([told.reading]) == 0.5


words = st.text(alphabet="ab", min_size=1, max_size=4)


@given(st.text(alphabet="abc", max_size=30), st.lists(words, min_size=1, max_size=3), st.data())
def test_stop_strings_are_found_however_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    finder = StopStrings(stops)
    shown, matched = "", None
    rest = text
    while rest and matched is None:
        size = data.draw(st.integers(1, 5))
        part, matched = finder.push(rest[:size])
        shown, rest = shown + part, rest[size:]
    starts = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    if matched is None:
        assert not starts
        assert shown + finder.flush() == text
    else:
        assert shown == text[: len(shown)]
        assert text[len(shown) :].startswith(matched)
        assert not any(stop in shown for stop in stops)


@given(
    st.text("ab", min_size=1, max_size=10),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1),
    st.integers(0, 8),
)
def test_under_a_least_length_the_first_stop_string_that_may_end_ends_the_answer(
    text: str, stops: list[str], least: int
) -> None:
    wanted = None
    for index in range(least, len(text)):  # a character is a token
        starts = [index + 1 - len(stop) for stop in stops if text[: index + 1].endswith(stop)]
        if starts:
            wanted = (index, text[: min(starts)])
            break
    looking, shown, ended = StopStrings(stops), "", None
    for index, character in enumerate(text):
        piece, matched = looking.push(character, may_end=index >= least)
        shown += piece
        if matched is not None:
            ended = (index, shown)
            break
    assert ended == wanted
    if ended is None:
        assert shown + looking.flush() == text
