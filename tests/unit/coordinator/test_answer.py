from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from coordinator.answer import Answer, Piece
from coordinator.commit_log import CommitLog, End, Reason
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import Tokenizer


def byte_tokenizer() -> Tokenizer:
    """One token per byte, so that every character beyond ASCII takes several; plus one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend)


TOKENIZER = byte_tokenizer()
PROMPT = TOKENIZER.encode("say:")
END = TOKENIZER.encode("<end>")[0]


def an_answer(max_tokens: int = 99, **more: object) -> Answer:
    return Answer(CommitLog(PROMPT), max_tokens=max_tokens, text=TOKENIZER.stream(PROMPT, skip_special=True), **more)


def told(answer: Answer, text: str, size: int) -> list[Piece]:
    """Commits the text's tokens `size` at a time, until the answer ends."""
    ids = TOKENIZER.encode(text)
    pieces = []
    for start in range(0, len(ids), size):
        pieces.append(answer.take(ids[start : start + size]))
        if pieces[-1].end is not None:
            break
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@settings(deadline=None)
@given(st.text(max_size=20), st.integers(1, 5))
def test_text_is_never_broken_inside_a_character(text: str, size: int) -> None:
    answer = an_answer(max_tokens=max(len(TOKENIZER.encode(text)), 1))
    pieces = told(answer, text, size)
    assert text_of(pieces) == text
    assert not any("�" in piece.text for piece in pieces) or "�" in text


def test_what_dangles_at_the_end_is_shown_once() -> None:
    answer = an_answer(max_tokens=3)
    pieces = told(answer, "aé" + "é", 1)  # cut in the middle of the first é's two bytes is not possible here ...
    assert text_of(pieces) == "aé"
    answer = an_answer(max_tokens=2)
    pieces = told(answer, "aé", 1)  # ... but here it is
    assert text_of(pieces) == "a�"


def test_a_stop_string_across_chunk_borders_is_never_shown() -> None:
    for size in range(1, 12):
        answer = an_answer(stops=("STOP",))
        pieces = told(answer, "go on STOP and on", size)
        assert text_of(pieces) == "go on "
        assert pieces[-1].end == End(Reason.STOP, text="STOP")


def test_the_answer_s_tokens_end_with_the_one_that_completes_the_stop_string() -> None:
    answer = an_answer(stops=("lo",))
    pieces = told(answer, "hello there", 7)
    assert TOKENIZER.decode(answer.log.answer(), skip_special=True) == "hello"
    assert text_of(pieces) == "hel"


def test_a_stop_string_can_be_kept() -> None:
    answer = an_answer(stops=("lo",), show_stop=True)
    assert text_of(told(answer, "hello there", 4)) == "hello"


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    answer = an_answer(max_tokens=4, stops=("STOP",))
    assert text_of(told(answer, "xSTO", 1)) == "xSTO"


def test_a_stop_token_is_not_part_of_the_text() -> None:
    answer = an_answer(stop_ids=frozenset({TOKENIZER.encode("!")[0]}))
    pieces = told(answer, "hi! there", 9)
    assert text_of(pieces) == "hi"
    assert len(answer.log.answer()) == 3


def test_special_tokens_are_left_out_of_the_text() -> None:
    answer = an_answer()
    ids = [*TOKENIZER.encode("a"), END, *TOKENIZER.encode("b")]
    assert "".join(answer.take([token]).text for token in ids) == "ab"


@settings(deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_any_ids_give_text_and_no_error(ids: list[int]) -> None:
    answer = an_answer(max_tokens=max(len(ids), 1))
    text = "".join(answer.take([token]).text for token in ids)
    assert text.replace("\ufffd", "") == TOKENIZER.decode(ids, skip_special=True).replace("\ufffd", "")


def test_offsets_count_the_answer_s_tokens() -> None:
    pieces = told(an_answer(), "abcdefg", 3)
    assert [(piece.offset, len(piece.tokens)) for piece in pieces] == [(0, 3), (3, 3), (6, 1)]


def test_what_is_held_back_comes_out_when_something_else_ends_the_answer() -> None:
    answer = an_answer(stops=("STOP",))
    told(answer, "xST", 3)
    assert answer.remainder() == "ST"


def test_without_a_tokenizer_there_is_no_text() -> None:
    answer = Answer(CommitLog([1]), max_tokens=3)
    assert answer.take([5, 6]) == Piece((5, 6), "", 0, None)


words = st.text(alphabet="ab", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.text(alphabet="abc", max_size=30), st.lists(words, min_size=1, max_size=3), st.data())
def test_stop_strings_are_found_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
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
