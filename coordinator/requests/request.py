"""A request after validation, and names of tenants. Plain and frozen.

Names that tenants choose are kept apart: one tenant's request ids and cache salts never equal
another's. Inside the cell a name carries its tenant. Two tenants that choose the same name get two
names, and no tenant can write another's, because tenants' names hold no slash.
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
    # includes the target's own, unless `ignore_eos` is set
    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    show_stop: bool = False
    skip_special: bool = True
    choices: int = 1  # answers; each is a sequence of its own, with `params.choice` 0, 1, ...
    cache_salt: str = ""  # cached prefixes are shared under equal salts
    seeded: bool = False  # the client gave the seed: its draws may have been used before
    tenant: str = ""  # from the caller's credentials; "" without any
    label: str = ""  # acceptance is counted under it
    traceparent: str = ""  # W3C trace context of the caller
    # worth of a token of this answer to the scheduler, relative to other requests
    weight: float = 1.0
    drafter: str = ""  # replica that is to draft; empty: the least loaded one
    # likeliest tokens to report at every position of the prompt; None: no log-probabilities
    prompt_logprobs: int | None = None

    @property
    def longest(self) -> int:
        """Most tokens of prompt and answer; at least one is drawn after every prompt."""
        return len(self.prompt) + max(self.max_tokens, 1)


MAX_TENANT = 64  # characters


def inside(tenant: str, name: str) -> str:
    """The cell's name for a name that a tenant chose."""
    return f"{tenant}/{name}" if tenant or "/" in name else name


def outside(tenant: str, name: str) -> str:
    """The tenant's name for a name of the cell; inverse of `inside`."""
    return name.removeprefix(f"{tenant}/") if tenant else name.removeprefix("/")


def owned(request: Request) -> Request:
    """The request under the cell's names. Cached prefixes are thus shared within a tenant only, and
    there under equal salts."""
    tenant = request.tenant
    return replace(
        request, id=inside(tenant, request.id), cache_salt=inside(tenant, request.cache_salt)
    )
