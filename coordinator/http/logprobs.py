"""Log-probabilities of answers and prompts in response bodies, with each token's text and bytes.

A token need not be a whole character. A prompt's log-probabilities precede those of a completion
that echoes it, as in OpenAI's interface, or have a field of their own, as in vLLM's.
"""

from __future__ import annotations

import functools
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from coordinator.reception.output_processor import OutputChunk, OutputProcessor
from coordinator.reception.tokenizer import Tokenizer
from dspark.types import ScoredToken

# UTF-8 with replacement characters for what is none, as tokenizers decode it
utf8 = functools.partial(getincrementaldecoder("utf-8"), "replace")


class TokenTexts:
    """Bytes and text of single tokens, by id."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._bytes_of = None if tokenizer is None else functools.cache(tokenizer.bytes_of)
        self._special = frozenset(() if tokenizer is None else tokenizer.special_ids.values())

    def bytes_of(self, token: int) -> bytes:
        """The token's bytes; its number if the target has no tokenizer."""
        return f"token_id:{token}".encode() if self._bytes_of is None else self._bytes_of(token)

    def text_of(self, token: int) -> str:
        """The token's text; bytes that are not whole characters as hex escapes, as OpenAI does."""
        spelled = self.bytes_of(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def sizes(
        self, tokens: Iterable[int], decoder: IncrementalDecoder, *, skip_special: bool = False
    ) -> list[int]:
        """Characters that begin in each token; of skipped ones none. decoder: of the text before,
        which holds the bytes of its last character while that is not whole."""
        skipped = self._special if skip_special else ()
        made = []
        for token in tokens:
            begun = bool(decoder.getstate()[0])
            said = decoder.decode(b"" if token in skipped else self.bytes_of(token))
            made.append(len(said) + bool(decoder.getstate()[0]) - begun)
        return made


def chat_logprobs(texts: TokenTexts, shown: OutputChunk) -> dict[str, Any] | None:
    """`logprobs` of a part of a chat answer; None where none were requested."""
    if not shown.logprobs:
        return None

    def told(token: int, logprob: float) -> dict[str, Any]:
        spelled = texts.bytes_of(token)
        return {"token": texts.text_of(token), "logprob": logprob, "bytes": list(spelled)}

    content = [
        told(token, one.logprob) | {"top_logprobs": [told(*pair) for pair in _top(one)]}
        for token, one in zip(shown.tokens, shown.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


Top = Sequence[tuple[int, float]]  # the likeliest tokens at a position
Row = tuple[int, float | None, Top]  # a token, its log-probability, the likeliest at its position


def _listed(
    texts: TokenTexts, rows: Sequence[Row], sizes: Sequence[int], before: int
) -> dict[str, Any]:
    """OpenAI's `logprobs` object of completions. sizes: characters of each row; `before`: those of
    the text before the rows.

    As there, a token is among the likeliest ones of its position, as one more if it is none. They
    are keyed by text: of several tokens with one text, such as a letter and its byte, the token
    itself counts, else the likeliest.
    """
    tokens = [texts.text_of(token) for token, _, _ in rows]

    def told(token: int, value: float | None, top: Top) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for each, its in [(token, value), *top]:
            found.setdefault(texts.text_of(each), its)
        return found

    return {
        "text_offset": [max(at, 0) for at in accumulate(sizes[:-1], initial=before)],
        "token_logprobs": [value for _, value, _ in rows],
        "tokens": tokens,
        "top_logprobs": [told(*row) if row[2] else None for row in rows],
    }


def completion_logprobs(
    texts: TokenTexts, shown: OutputChunk, sizes: Sequence[int], before: int
) -> dict[str, Any]:
    """`logprobs` of a part of a completion, which was asked for them."""
    rows = [
        (token, one.logprob, _top(one))
        for token, one in zip(shown.tokens, shown.logprobs, strict=False)
    ]
    return _listed(texts, rows, sizes, before)


def echo_logprobs(
    texts: TokenTexts, output: OutputProcessor, top: int, size: int
) -> dict[str, Any] | None:
    """`logprobs` of a prompt echoed in `size` characters, with the `top` likeliest tokens at each
    position but the first; None where they were not requested or never arrived.

    What the tokenizer puts before a text is not in the echo: its tokens stand at 0.
    """
    told = output.prompt_logprobs
    if told is None:
        return None
    tops = zip(told.top_ids[:, :top].tolist(), told.top_logprobs[:, :top].tolist(), strict=True)
    values = [None, *told.logprobs.tolist()]
    likeliest = [[], *(list(zip(*each, strict=True)) for each in tops)]
    prompt = output.request.prompt
    sizes = texts.sizes(prompt, utf8())
    rows = list(zip(prompt, values, likeliest, strict=True))
    return _listed(texts, rows, sizes, size - sum(sizes))


def _top(one: ScoredToken) -> list[tuple[int, float]]:
    return list(zip(one.top_ids, one.top_logprobs, strict=True))


def prompt_logprobs(
    texts: TokenTexts, output: OutputProcessor, top: int | None = None
) -> dict[str, Any]:
    """A choice's `prompt_logprobs` field in a dict, which is empty without them. Every position has
    its own token and the `top` likeliest; None: all that were scored."""
    told = output.prompt_logprobs
    if told is None:
        return {}

    def one(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": texts.text_of(token)}

    rows = zip(
        output.request.prompt[1:],
        told.logprobs.tolist(),
        told.ranks.tolist(),
        told.top_ids[:, :top].tolist(),
        told.top_logprobs[:, :top].tolist(),
        strict=True,
    )
    made = [
        {str(token): one(token, logprob, rank)}
        | {
            str(each): one(each, value, place)
            for place, (each, value) in enumerate(zip(ids, values, strict=True), 1)
        }
        for token, logprob, rank, ids, values in rows
    ]
    return {"prompt_logprobs": [None, *made]}
