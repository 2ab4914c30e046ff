"""What is simulated: pools, load, policy and the constants of hops. Errors name the field."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.config import CoordinatorConfig
from coordinator.simulation.world import HopDelays
from dspark.errors import InvalidRequest
from dspark.rounds.policy import parse_policy
from dspark.synthetic.spec import SyntheticSpec

Span = tuple[int, int]  # least and most, both included


@dataclass(frozen=True)
class Scenario:
    """One simulation. Exactly one of `concurrency` (users, each sending again when answered) and
    `rate` (Poisson arrivals) is set.

    The window opens after `warmup_s` and lasts `window_s`, both in simulated seconds.
    """

    spec: SyntheticSpec
    concurrency: int = 0
    rate: float = 0.0
    cores: int = 0  # of one machine, shared by all processes; 0: each has one of its own
    verifiers: int = 1
    drafters: int = 1
    # processors that settle replies; verifiers are dealt out to them, drafters shared
    coordinators: int = 1
    policy: str = "adaptive"
    prompt_tokens: Span = (32, 32)
    answer_tokens: Span = (128, 128)
    warmup_s: float = 5.0
    window_s: float = 20.0
    temperature: float = 1.0
    seed: int = 0
    hops: HopDelays = field(default_factory=HopDelays)
    config: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    prefill_chunk: int = 256
    kv_tokens: int = 0  # per verifier; 0: no limit
    # when the first, the second, ... of the pool is lost for good
    verifiers_lost_s: tuple[float, ...] = ()
    drafters_lost_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if (self.concurrency > 0) == (self.rate > 0):
            raise InvalidRequest("concurrency", "give either a concurrency or a rate, above 0")
        for name in ("verifiers", "coordinators", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise InvalidRequest(name, f"{getattr(self, name)} is less than 1")
        if self.cores < 0:
            raise InvalidRequest("cores", f"{self.cores} is negative")
        if self.drafters < 0:
            raise InvalidRequest("drafters", f"{self.drafters} is negative")
        for name in ("prompt_tokens", "answer_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise InvalidRequest(name, f"{low}..{high} is no span of lengths from 1 on")
        if len(self.verifiers_lost_s) >= self.verifiers:
            raise InvalidRequest(
                "verifiers_lost_s", f"one of {self.verifiers} verifiers has to stay"
            )
        if len(self.drafters_lost_s) > self.drafters:
            raise InvalidRequest("drafters_lost_s", f"there are {self.drafters} drafters")
        if self.warmup_s < 0 or not self.window_s > 0:
            raise InvalidRequest(
                "window_s", "the warm-up must be 0 or more seconds, the window above 0"
            )
        parse_policy(self.policy, field="policy")


AXES = ("policy", "verifiers", "drafters", "concurrency", "rate")  # the last one varies fastest


def scenarios(base: Scenario, axes: dict[str, Sequence[Any]]) -> Iterator[Scenario]:
    """A sweep: every combination of the values given for fields of the scenario."""
    named = [name for name in AXES if name in axes]
    for values in itertools.product(*(axes[name] for name in named)):
        changes = dict(zip(named, values, strict=True))
        if "concurrency" in changes or "rate" in changes:
            changes = {"concurrency": 0, "rate": 0.0, **changes}
        yield dataclasses.replace(base, **changes)
