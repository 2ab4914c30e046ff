"""Text as ids arrive: whole characters only, and nothing lost behind bytes that are no
character."""

import random

import pytest
from tokenizers import decoders

from coordinator.reception.tokenizer import Tokenizer
from tests.unit.coordinator.test_token_texts import sentencepiece

EURO, REPLACEMENT = [0xE2, 0x82, 0xAC], [0xEF, 0xBF, 0xBD]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return sentencepiece(decoders.Strip(" ", 1, 0))


def _streamed(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    stream = tokenizer.stream(prompt, skip_special=True)
    return "".join(stream.push(token) for token in ids) + stream.flush()


def test_pieces_add_up_to_the_text_of_the_whole(tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(300):
        pieces = [
            rng.choice([[256], [257], [258], [259], EURO]) for _ in range(rng.randrange(1, 8))
        ]
        prompt, ids = [256, 259], [token for piece in pieces for token in piece]
        before, whole = (
            tokenizer.decode(each, skip_special=True) for each in (prompt, prompt + ids)
        )
        assert before + _streamed(tokenizer, prompt, ids) == whole


def test_half_a_character_is_held_back_and_flushed_at_the_end(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream([256], skip_special=True)
    assert [stream.push(byte) for byte in EURO] == ["", "", "€"]
    assert stream.push(EURO[0]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_that_never_become_a_character_are_said_all_the_same(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream([256], skip_special=True)
    said = [stream.push(0x80) for _ in range(64)]
    assert "".join(said) == "\N{REPLACEMENT CHARACTER}" * 64
    assert stream.flush() == ""


BROKEN, SPECIAL = "\N{REPLACEMENT CHARACTER}", 263


@pytest.mark.parametrize(
    ("prompt_end", "ids", "text"),
    [
        ([], [0xFF], BROKEN),
        ([], [0xE2, 0x82], 2 * BROKEN),
        ([], [0x80, 0x80, 0xE2], 3 * BROKEN),
        (REPLACEMENT, [], ""),
        (EURO[:2], [], ""),
        ([], [258, *[SPECIAL] * 40], "a"),
    ],
)
def test_a_word_behind_what_is_no_text_keeps_its_space_and_repeats_no_prompt(
    prompt_end: list[int], ids: list[int], text: str, tokenizer: Tokenizer
) -> None:
    assert tokenizer.id_of("<s>") == SPECIAL
    assert _streamed(tokenizer, [256, *prompt_end], [*ids, 257, 258]) == f"{text} ba"
