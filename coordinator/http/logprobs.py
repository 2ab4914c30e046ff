"""Log-probabilities as bodies of answers have them: single tokens as text and bytes, answers' and prompts'.

A token need not be a whole character. Those of a prompt stand among those of a completion that shows it, as OpenAI
writes them, or by themselves, as vLLM does.
"""

from __future__ import annotations

from typing import Any

from coordinator.http.asking import Scored
from coordinator.reception.output_processor import OutputChunk
from coordinator.reception.tokenizer import Tokenizer
from dspark.types import ScoredToken


class TokenTexts:
    """What each token id is to a reader."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """The very bytes the token stands for; of a target without a tokenizer its number."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._read(token)
        return found

    def text_of(self, token: int) -> str:
        """Bytes that are no character of their own are spelled out, as OpenAI does."""
        spelled = self.bytes_of(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def _read(self, token: int) -> bytes:
        if self._tokenizer is None:
            return f"token_id:{token}".encode()
        return self._tokenizer.bytes_of(token)


def chat_logprobs(texts: TokenTexts, shown: OutputChunk) -> dict[str, Any] | None:
    """Of a part of a chat answer; None where nothing was asked for."""
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


def completion_logprobs(texts: TokenTexts, shown: OutputChunk, before: int) -> dict[str, Any] | None:
    """Of a part of a completion that begins `before` characters into the text; None where nothing was asked for."""
    tokens, values, tops, offsets = [], [], [], []
    for token, one in zip(shown.tokens, shown.logprobs, strict=False):
        text = texts.text_of(token)
        tokens.append(text)
        values.append(one.logprob)
        tops.append({texts.text_of(other): value for other, value in _top(one)} or None)
        offsets.append(before)
        before += len(text)
    if not tokens:
        return None
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}


def _top(one: ScoredToken) -> list[tuple[int, float]]:
    return list(zip(one.top_ids, one.top_logprobs, strict=True))


class EchoLogprobs:
    """Of the prompt that a completion begins with; `top` likeliest tokens at each position."""

    def __init__(self, texts: TokenTexts, scored: Scored, top: int) -> None:
        self._texts = texts
        self._tokens = [texts.text_of(token) for token in scored.ids]
        self._values: list[float | None] = [None, *scored.told.logprobs.tolist()]
        rows = zip(scored.told.top_ids[:, :top].tolist(), scored.told.top_logprobs[:, :top].tolist(), strict=True)
        self._tops = [None, *(self._named(ids, values) for ids, values in rows)]
        self.characters = sum(map(len, self._tokens))  # as offsets count them

    def written(self) -> dict[str, Any]:
        """As those of the answer, whose offsets begin with `characters`."""
        offsets, at = [], 0
        for token in self._tokens:
            offsets.append(at)
            at += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": self._values,
            "tokens": self._tokens,
            "top_logprobs": self._tops,
        }

    def _named(self, ids: list[int], values: list[float]) -> dict[str, float] | None:
        return dict(zip(map(self._texts.text_of, ids), values, strict=True)) or None


def prompt_logprobs(texts: TokenTexts, scored: Scored | None, top: int | None = None) -> dict[str, Any]:
    """The field `prompt_logprobs` of a choice; nothing where it was not asked for. The token itself is always told."""
    if scored is None:
        return {}
    told, at = scored.told, [None]

    def one(token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": texts.text_of(token)}

    rows = zip(
        list(scored.ids)[1:],
        told.logprobs.tolist(),
        told.ranks.tolist(),
        told.top_ids[:, :top].tolist(),
        told.top_logprobs[:, :top].tolist(),
        strict=True,
    )
    made = [
        {str(token): one(token, logprob, rank)}
        | {str(each): one(each, value, place) for place, (each, value) in enumerate(zip(ids, values, strict=True), 1)}
        for token, logprob, rank, ids, values in rows
    ]
    return {"prompt_logprobs": [*at, *made]}
