"""Single tokens as bytes: together they are the text, whatever the vocabulary's way of writing."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from coordinator.http.completions import CompletionShape
from coordinator.http.logprobs import TokenTexts
from coordinator.reception.output_processor import OutputChunk
from coordinator.reception.tokenizer import Tokenizer
from dspark.types import ScoredPrompt, ScoredToken

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
TEXT = "Grüße, 世界 🙂\n\tx = [1, 2]"
UNLIKELY = ScoredToken(-0.5, (), ())


def sentencepiece(*last: Any) -> Tokenizer:
    """A vocabulary as SentencePiece writes one: bytes for what is missing, by their own number, and
    words with a mark for spaces. last: decoders behind the usual ones."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "▁b", "a", "b", "<unk>", "▁", "▁x"]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Backend(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    usual = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*usual, *last])
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


def told(
    shape: CompletionShape, ids: list[int], scored: list[ScoredToken], at: int = 0
) -> dict[str, Any]:
    """Log-probabilities of an answer's tokens."""
    return shape.part(0, OutputChunk(0, at, tokens=ids, logprobs=scored))["logprobs"]


def opening(shape: CompletionShape, ids: tuple[int, ...]) -> list[int]:
    """Offsets of an echoed prompt's tokens."""
    scored = ScoredPrompt(*(np.zeros((len(ids) - 1, *more)) for more in ((), (), (0,), (0,))))
    output: Any = SimpleNamespace(request=SimpleNamespace(prompt=ids), prompt_logprobs=scored)
    return shape.opening(0, output)["logprobs"]["text_offset"]


TINY, WRITTEN = Tokenizer.load(TARGET), sentencepiece()


@pytest.mark.parametrize(("tokenizer", "text"), [(TINY, TEXT), (WRITTEN, "a b 世 a")])
def test_bytes_of_all_tokens_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode(text, add_special=False)
    assert b"".join(texts.bytes_of(token) for token in ids).decode() == text
    for token in ids:
        whole = texts.bytes_of(token).decode(errors="replace")
        assert texts.text_of(token) == whole or texts.text_of(token).startswith("bytes:\\x")


def test_special_tokens_stand_for_themselves_and_unknown_ids_for_nothing() -> None:
    texts = TokenTexts(TINY)
    assert texts.text_of(0) == "<|endoftext|>"
    assert texts.text_of(1 << 20) == ""
    assert TokenTexts(None).text_of(7) == "token_id:7"


def test_offsets_of_a_stream_are_those_of_its_own_prompt_and_answer() -> None:
    ids = TINY.encode("Problem 1: add", add_special=False)
    shape = CompletionShape(TokenTexts(TINY), None)
    offsets = defaultdict[tuple[int, int], list[int]](list)
    for count, token in enumerate(ids, 1):
        for prompt, index in ((0, 0), (0, 1), (1, 0)):
            shown = OutputChunk(index, count, tokens=[token], logprobs=[UNLIKELY])
            offsets[prompt, index] += shape.part(prompt, shown)["logprobs"]["text_offset"]
    texts = [TINY.decode([token], skip_special=False) for token in ids]
    expected = [len("".join(texts[:before])) for before in range(len(ids))]
    assert offsets == dict.fromkeys(offsets, expected)


def test_offsets_are_places_in_the_text_that_is_shown() -> None:
    """Special tokens are left out of it, and a token need not be a whole character."""
    end = TINY.special_ids["<|endoftext|>"]
    ids = [*TINY.encode("a 🙂", add_special=False), end, *TINY.encode("b")]
    assert len(ids) > 5, "the character takes several tokens"
    scored = [UNLIKELY] * len(ids)
    for skip in (True, False):
        shape = CompletionShape(TokenTexts(TINY), ["Q: "], 0, None, skip)
        said = told(shape, ids, scored)
        text = "Q: " + TINY.decode(ids, skip_special=skip)
        places = dict(zip(said["tokens"], said["text_offset"], strict=True))
        assert places["a"] == text.index("a")
        assert places["b"] == text.index("b")


def test_tokens_before_an_echoed_text_take_no_place_in_it() -> None:
    """As those that begin a text for many models."""
    ids = (0, *TINY.encode("Problem 1: add", add_special=False))
    offsets = opening(CompletionShape(TokenTexts(TINY), ["Problem 1: add"], 0), ids)
    assert (*offsets[:2], offsets[-1]) == (0, 0, len("Problem 1: ad"))


def test_bytes_that_are_no_character_take_the_place_of_what_is_shown_for_them() -> None:
    """A prompt of token ids, and what is drawn, may begin, break off and go on in a character."""
    first, *rest = TINY.encode("🙂", add_special=False)
    assert rest, "the character takes several tokens"
    (a,) = TINY.encode("a", add_special=False)
    ids = (rest[-1], a, first, a, first, *rest, rest[-1], rest[-1], a, first, first, a)
    text = TINY.decode(ids, skip_special=False)
    assert {"�", "🙂"} <= set(text)
    offsets = [len(TINY.decode(ids[:at], skip_special=False)) for at in range(len(ids))]
    shape = CompletionShape(TokenTexts(TINY), [text], 0)
    assert opening(shape, ids) == offsets
    parts = [told(shape, [token], [UNLIKELY], at=at) for at, token in enumerate(ids)]
    assert [part["text_offset"] for part in parts] == [[len(text) + at] for at in offsets]


@pytest.mark.parametrize("likeliest", [(), (5,), (5, 6)])
def test_a_token_itself_is_among_the_likeliest_of_its_position(likeliest: tuple[int, ...]) -> None:
    """As in OpenAI's interface, which tells up to one more than requested."""
    texts = TokenTexts(TINY)
    scores = tuple(-0.5 - place for place in range(len(likeliest)))
    scored = [ScoredToken(-9.0, likeliest, scores), ScoredToken(-0.5, likeliest, scores)]
    said = told(CompletionShape(texts, None), [8, 5], scored)["top_logprobs"]
    best = {texts.text_of(token): log for token, log in zip(likeliest, scores, strict=True)}
    assert said == ([best | {texts.text_of(8): -9.0}, best] if best else [None, None])


def test_of_tokens_with_one_text_the_token_itself_counts_and_then_the_likeliest() -> None:
    """A letter and its byte: the unlikely one of both took the place of the likely one."""
    tokenizer = WRITTEN
    letter, byte, other = (tokenizer.id_of(name) for name in ("a", "<0x61>", "b"))
    top, scores = (letter, other, byte), (-0.5, -1.0, -9.0)
    chosen = zip((letter, byte, other), (-0.5, -9.0, -1.0), strict=True)
    scored = [ScoredToken(score, top, scores) for _, score in chosen]
    said = told(CompletionShape(TokenTexts(tokenizer), None), [letter, byte, other], scored)
    likely, unlikely = {"a": -0.5, "b": -1.0}, {"a": -9.0, "b": -1.0}
    assert said["top_logprobs"] == [likely, unlikely, likely]
