"""What the live page is told, as JSON: rounds of its own answer, with text. The numbers are `explaining`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.answers.answer import Piece
from coordinator.lanes.explain import Part
from coordinator.reception.tokenizer import TextStream, Tokenizer
from coordinator.watching.explaining import told
from coordinator.watching.rounds_told import Origin, Sums, origins

DIGITS = 4  # of shares and tokens; microseconds of spans


class Speaker:
    """One answer, piece by piece."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream: TextStream | None = tokenizer.stream(prompt, skip_special=True) if tokenizer else None
        self._offset = 0
        self._parts: dict[int, Part] = {}

    def say(self, piece: Piece, parts: Sequence[Part]) -> dict[str, Any]:
        """The event of a piece. `parts`: what was explained since the last one."""
        self._parts.update((part.offset, part) for part in parts)
        round = piece.round
        came = (
            (Origin.PLAIN,) * len(piece.tokens)
            if round is None
            else origins(round.accepted, round.verified, len(piece.tokens))
        )
        part = self._parts.pop(self._offset, None)
        said = {
            "type": "round" if round is not None else "first",
            "offset": self._offset,
            "tokens": [
                {"id": token, "text": text, "origin": origin.value}
                for token, text, origin in zip(piece.tokens, self._texts(piece), came, strict=True)
            ],
            "told": self._told(part) if part is not None and round is not None else None,
        }
        self._offset += len(piece.tokens)
        return said

    def _texts(self, piece: Piece) -> list[str]:
        """A character that takes several tokens stands with the last of them."""
        if self._stream is None:
            return [f" {token}" for token in piece.tokens]
        texts = [self._stream.push(token) for token in piece.tokens]
        if piece.end is not None and texts:
            texts[-1] += self._stream.flush()
        return texts

    def _alone(self, token: int) -> str:
        return f" {token}" if self._tokenizer is None else self._tokenizer.decode([token], skip_special=False)

    def _told(self, part: Part) -> dict[str, Any]:
        found = told(part)
        return {
            "empty_because": found.empty_because,
            "prefix": found.prefix,
            "accepted": found.accepted,
            "why": found.why.value,
            "price": None if found.price is None else round(found.price, DIGITS),
            "slots": [
                {
                    "id": slot.token,
                    "text": self._alone(slot.token) if slot.token is not None else "",
                    "confidence": round(slot.confidence, DIGITS),
                    "survival": round(slot.survival, DIGITS),
                    "gain": round(slot.gain, DIGITS),
                    "fate": slot.fate.value,
                }
                for slot in found.slots
            ],
            "batch": batch(found.cohort),
        }


def batch(sums: Sums) -> dict[str, Any]:
    """The round of all answers that shared it; spans in milliseconds."""
    return {
        "answers": sums.sequences,
        "verified": sums.verified,
        "tokens": sums.tokens,
        "budget": sums.budget,
        "late": list(sums.late),
        "ms": {
            "round": _ms(sums.round_s),
            "draft": _ms(sums.draft_s),
            "draft_pass": _ms(sums.draft_pass_s),
            "verify": _ms(sums.verify_s),
            "verify_pass": _ms(sums.verify_pass_s),
        },
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
