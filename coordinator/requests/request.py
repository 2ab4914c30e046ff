"""What a client asked for, once everything malformed has been refused. Plain and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.rounds.policy import Policy
from dspark.types import Law


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to produce, or several that differ in the key of their draws alone."""

    id: str
    prompt: tuple[int, ...]
    law: Law
    max_tokens: int
    policy: Policy
    stop_ids: frozenset[int] = frozenset()  # the target's own included, unless they are to be ignored
    stops: tuple[str, ...] = ()
    show_stop: bool = False
    skip_special: bool = True
    choices: int = 1  # answers; each is a sequence of its own, with `law.choice` 0, 1, ...
    cache_salt: str = ""  # computed prefixes are shared among equals
    seeded: bool = False  # by its client: its draws may have been drawn before
    tenant: str = ""  # whose it is, as its credentials say; "" where nobody is asked
    label: str = ""  # acceptance is counted under it
    traceparent: str = ""  # W3C trace context of the caller
    weight: float = 1.0  # what a token of this answer is worth to the scheduler beside those of others
    drafter: str = ""  # replica that is to draft; empty: the least loaded one
    prompt_logprobs: int | None = None  # likeliest tokens told at every position of the prompt; None tells nothing

    @property
    def longest(self) -> int:
        """Prompt and answer at most; a token is drawn behind every prompt."""
        return len(self.prompt) + max(self.max_tokens, 1)
