"""What is asked: every rule under a fixed and an adaptive policy, at three kinds of sampling
parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VOCABULARY, LENGTH = 6, 4
PROMPTS = ((0, 1, 2, 3, 1), (2, 5, 1, 0, 4, 3, 1, 0, 2, 5, 3))
RULES = ("token", "block", "coupled")
POLICIES = ("fixed:3", "adaptive")
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "T=1": {"temperature": 1.0},
    "T=0.7, top-k 5, top-p 0.95": {"temperature": 0.7, "top_k": 5, "top_p": 0.95},
    "penalties and bias": {
        "temperature": 1.0,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {1: 0.7, 4: -0.6},
    },
}


@dataclass(frozen=True)
class Setting:
    rule: str
    policy: str
    kind: str  # a key of PARAMETERS

    @property
    def name(self) -> str:
        return f"{self.rule}, {self.policy}, {self.kind}"

    @property
    def asked(self) -> dict[str, Any]:
        fixed = {"max_tokens": LENGTH, "ignore_eos": True}
        return {"rule": self.rule, "policy": self.policy, **fixed, **PARAMETERS[self.kind]}


SETTINGS = tuple(
    Setting(rule, policy, kind) for kind in PARAMETERS for rule in RULES for policy in POLICIES
)
