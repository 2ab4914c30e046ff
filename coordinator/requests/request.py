"""What a client asked for, once everything malformed has been refused, and whose it is. Plain and
frozen.

Names that tenants choose are kept apart: one tenant's request ids and cache salts never meet
another's.

Inside the cell a name carries its tenant. Two tenants that choose the same name get two names, and
no tenant can spell another's: tenants' names hold no slash.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dspark.rounds.policy import Policy
from dspark.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to produce, or several that differ in the key of their draws alone."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    policy: Policy
    # the target's own included, unless they are to be ignored
    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    show_stop: bool = False
    skip_special: bool = True
    choices: int = 1  # answers; each is a sequence of its own, with `params.choice` 0, 1, ...
    cache_salt: str = ""  # computed prefixes are shared among equals
    seeded: bool = False  # by its client: its draws may have been drawn before
    tenant: str = ""  # whose it is, as its credentials say; "" where nobody is asked
    label: str = ""  # acceptance is counted under it
    traceparent: str = ""  # W3C trace context of the caller
    # what a token of this answer is worth to the scheduler beside those of others
    weight: float = 1.0
    drafter: str = ""  # replica that is to draft; empty: the least loaded one
    # likeliest tokens told at every position of the prompt; None tells nothing
    prompt_logprobs: int | None = None

    @property
    def longest(self) -> int:
        """Prompt and answer at most; a token is drawn behind every prompt."""
        return len(self.prompt) + max(self.max_tokens, 1)


MAX_TENANT = 64  # characters


def inside(tenant: str, name: str) -> str:
    """What the cell calls it."""
    return f"{tenant}/{name}" if tenant or "/" in name else name


def outside(tenant: str, name: str) -> str:
    """What its tenant calls it: the inverse."""
    return name.removeprefix(f"{tenant}/") if tenant else name.removeprefix("/")


def owned(request: Request) -> Request:
    """As the cell knows it. Prefixes are shared within a tenant at most, and there among equal
    salts."""
    tenant = request.tenant
    return replace(
        request, id=inside(tenant, request.id), cache_salt=inside(tenant, request.cache_salt)
    )
