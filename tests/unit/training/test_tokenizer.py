"""Text survives the tokenizer, digits stay single and the reserved tokens have their places."""

import random
from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from training import tokenizer
from training.arithmetic import worksheet
from training.corpus import Document

CODE = "def f(x):\n    if x:\n        return {'a': [1, 23]}\n\n\nclass Größe:\t# ≤ 10 €\n    pass\n"


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    texts = [CODE, worksheet(random.Random(0), 8)]
    return tokenizer.train([Document("code", str(n), False, text) for n, text in enumerate(texts)], vocabulary=400)


@pytest.mark.parametrize(
    "make", [lambda: CODE, lambda: worksheet(random.Random(1), 4), lambda: "\x00 \n \r\n  漢字 🙂  "]
)
def test_decoding_gives_the_text_back(trained: PreTrainedTokenizerFast, make: Callable[[], str]) -> None:
    assert trained.decode(trained.encode(make())) == make()


def test_digits_are_single_tokens(trained: PreTrainedTokenizerFast) -> None:
    assert len(trained.encode(" 12345")) == 5


def test_special_tokens_have_their_ids(trained: PreTrainedTokenizerFast) -> None:
    assert (trained.eos_token_id, trained.pad_token_id, trained.mask_token_id) == (0, 1, 2)
    assert trained.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [3, 4]
