"""A step of a synthetic verifier between its preparation and its end, and what it is made of. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dspark.types import Refusal, Verdict
from verify_service.interface import PromptPrefill
from verify_service.sequences import CachedSequence, VerifyItem


@dataclasses.dataclass(slots=True)
class SyntheticSequence:
    """One sequence: what the real engine keeps, and what its tokens hang on."""

    state: CachedSequence
    key: int = 0
    first_token: int = 0


class SyntheticStep:
    """A step under way: it sleeps where a real one computes. Verdicts are known before, and told at its end."""

    def __init__(
        self,
        sleep: Callable[[int, float], int],
        outcomes: list[Verdict | Refusal | None],
        runnable: Sequence[tuple[int, VerifyItem, SyntheticSequence]],
        said: list[list[int]],
        riders: list[Rider],
        seconds: float,
        began_ns: int,
    ) -> None:
        self.outcomes, self.runnable, self.said, self.riders = outcomes, runnable, said, riders
        self.tokens = sum(1 + len(item.draft_ids) for _, item, _ in runnable)
        self.forward_ns = 0
        self.failure: Exception | None = None  # never by itself
        self._sleep, self._seconds, self._began_ns = sleep, seconds, began_ns

    def run(self) -> None:
        if self.runnable or self.riders:
            self.forward_ns = self._sleep(self._began_ns, self._seconds)


class Rider(NamedTuple):
    """The next tokens of a prompt."""

    prefill: PromptPrefill
    held: SyntheticSequence
    token_ids: Sequence[int]
