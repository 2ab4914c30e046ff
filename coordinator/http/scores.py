"""Log-probabilities of prompts, as bodies of answers have them: among those of a completion that shows its prompt, as
OpenAI writes them, and by themselves, as vLLM does."""

from __future__ import annotations

from typing import Any

from coordinator.http.asking import Scored
from coordinator.http.tokens import TokenTexts


class EchoLogprobs:
    """Of the prompt that a completion begins with; `top` likeliest tokens at each position."""

    def __init__(self, texts: TokenTexts, scored: Scored, top: int) -> None:
        self._texts = texts
        self._tokens = [texts.text_of(token) for token in scored.ids]
        self._values: list[float | None] = [None, *scored.told.logprobs.tolist()]
        rows = zip(scored.told.top_ids[:, :top].tolist(), scored.told.top_logprobs[:, :top].tolist(), strict=True)
        self._tops = [None, *(self._named(ids, values) for ids, values in rows)]
        self.characters = sum(map(len, self._tokens))  # as offsets count them

    def written(self, behind: dict[str, Any] | None = None) -> dict[str, Any]:
        """With those of the answer behind them, whose offsets begin with `characters`."""
        offsets, at = [], 0
        for token in self._tokens:
            offsets.append(at)
            at += len(token)
        mine: dict[str, list[Any]] = {
            "text_offset": offsets,
            "token_logprobs": self._values,
            "tokens": self._tokens,
            "top_logprobs": self._tops,
        }
        return mine if behind is None else {name: values + behind[name] for name, values in mine.items()}

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
