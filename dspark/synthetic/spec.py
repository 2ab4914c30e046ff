"""The description of a synthetic pair, read from a YAML file; errors name the field.

One file describes both workers, so that a verifier and a drafter started with it fit together.
`docs/simulator.md` explains the keys; `benchmarks/synthetic/` holds examples.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError
from dspark.runtime.config import read_yaml
from dspark.synthetic.steps import StepTable

MOST_SLOTS = 64
MOST_VOCABULARY = 1 << 24  # ids travel to the drafter in three feature values of eight bits
LEAST_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Domain:
    """The acceptance of drafts for one kind of text."""

    name: str
    accept: tuple[float, ...]  # [slots] mean chance that a slot is kept once the ones before it are
    # of the Beta distribution around each mean; None: every chance is the mean
    concentration: float | None


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """The description of both workers of a pair."""

    verify: StepTable  # tokens in the pass, context length
    draft: StepTable  # sequences in the pass, context length
    domains: tuple[Domain, ...]
    seed: int
    vocabulary: int
    context_length: int
    feature_width: int
    noise: float  # standard deviation of the error of confidence, in logits; 0 is calibrated
    bias: float  # constant error of confidence, in logits
    jitter: float  # relative standard deviation of step times
    # seconds of a prompt token; None: a chunk takes the step time of its tokens
    prefill_token_s: float | None
    fingerprint: str

    @property
    def block(self) -> int:
        """Slots of a block."""
        return len(self.domains[0].accept)

    def prefill_seconds(self, tokens: int, context: float) -> float:
        """Seconds of one chunk of a prompt that ends at this context."""
        return (
            self.verify.seconds(tokens, context)
            if self.prefill_token_s is None
            else tokens * self.prefill_token_s
        )


def load_spec(path: str | Path) -> SyntheticSpec:
    """The pair described in a file; raises ConfigError naming file and field."""
    document = read_yaml(path)
    try:
        return read_spec(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_spec(document: object) -> SyntheticSpec:
    """The pair described by plain values; raises ConfigError naming the field."""
    top = _Fields(document, "synthetic")
    verify, draft, confidence = (
        top.fields("verify"),
        top.fields("draft"),
        top.fields("confidence", missing={}),
    )
    domains = _domains(top)
    spec = SyntheticSpec(
        verify=_table(verify, "tokens"),
        draft=_table(draft, "sequences"),
        domains=domains,
        seed=top.whole("seed", 0, 1 << 62, default=0),
        vocabulary=top.whole("vocabulary", 2, MOST_VOCABULARY, default=32_000),
        context_length=top.whole("context_length", 16, 1 << 30, default=1 << 20),
        feature_width=top.whole("feature_width", LEAST_WIDTH, 1 << 16, default=64),
        noise=confidence.number("noise", 0.0, 100.0, default=0.0),
        bias=confidence.number("bias", -100.0, 100.0, default=0.0),
        jitter=top.number("jitter", 0.0, 1.0, default=0.0),
        prefill_token_s=verify.number("prefill_ms", 0.0, 1e6) / 1e3
        if "prefill_ms" in verify
        else None,
        fingerprint=hashlib.sha256(
            json.dumps(document, sort_keys=True, default=str).encode()
        ).hexdigest(),
    )
    for fields in (top, verify, draft, confidence):
        fields.finish()
    return spec


def _domains(top: _Fields) -> tuple[Domain, ...]:
    given = top.take("domains")
    if not isinstance(given, Mapping) or not given:
        raise ConfigError("synthetic.domains: must map names to {accept, concentration}")
    domains: list[Domain] = []
    for name, content in given.items():
        fields = _Fields(content, f"synthetic.domains.{name}")
        accept = fields.numbers("accept", 0.0, 1.0)
        if not 1 <= len(accept) <= MOST_SLOTS:
            raise ConfigError(
                f"{fields.name}.accept: {len(accept)} slots are not in 1..{MOST_SLOTS}"
            )
        if domains and len(accept) != len(domains[0].accept):
            raise ConfigError(
                f"{fields.name}.accept: {len(accept)} slots, the first domain has another number"
            )
        concentration = (
            fields.number("concentration", 0.01, 1e4) if "concentration" in fields else None
        )
        fields.finish()
        domains.append(Domain(str(name), tuple(accept), concentration))
    return tuple(domains)


def _table(fields: _Fields, first: str) -> StepTable:
    rows = fields.axis(first)
    contexts = fields.axis("contexts", default=[0])
    milliseconds = fields.take("ms")
    if not isinstance(milliseconds, list) or len(milliseconds) != len(rows):
        raise ConfigError(
            f"{fields.name}.ms: needs one row per entry of {first}, {len(rows)} in all"
        )
    grid = []
    for index, row in enumerate(milliseconds):
        values = row if isinstance(row, list) else [row]
        if len(values) != len(contexts):
            raise ConfigError(
                f"{fields.name}.ms[{index}]: {len(values)} values for {len(contexts)} contexts"
            )
        grid.append(
            [_number(value, f"{fields.name}.ms[{index}]", 1e-6, 1e7) / 1e3 for value in values]
        )
    stairs = fields.take("stairs", default=False)
    if not isinstance(stairs, bool):
        raise ConfigError(f"{fields.name}.stairs: must be true or false")
    return StepTable(tuple(rows), tuple(contexts), tuple(map(tuple, grid)), stairs)


class _Fields:
    """One mapping of the file; keys that are never taken are errors."""

    def __init__(self, content: object, name: str) -> None:
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name}: must be a mapping")
        self.name = name
        self._content: dict[str, Any] = {str(key): value for key, value in content.items()}
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._content.get(key) is not None

    def take(self, key: str, **default: object) -> Any:
        self._asked.add(key)
        if key not in self:
            if not default:
                raise ConfigError(f"{self.name}.{key}: required and not given")
            return default["default"]
        return self._content[key]

    def fields(self, key: str, *, missing: Mapping[str, object] | None = None) -> _Fields:
        return _Fields(
            self.take(key) if missing is None else self.take(key, default=missing),
            f"{self.name}.{key}",
        )

    def number(self, key: str, least: float, most: float, **default: float) -> float:
        return _number(self.take(key, **default), f"{self.name}.{key}", least, most)

    def whole(self, key: str, least: int, most: int, **default: int) -> int:
        return _whole(self.take(key, **default), f"{self.name}.{key}", least, most)

    def numbers(self, key: str, least: float, most: float) -> list[float]:
        given = self.take(key)
        if not isinstance(given, list):
            raise ConfigError(f"{self.name}.{key}: must be a list of numbers")
        return [
            _number(value, f"{self.name}.{key}[{index}]", least, most)
            for index, value in enumerate(given)
        ]

    def axis(self, key: str, **default: list[int]) -> list[int]:
        given = self.take(key, **default)
        if not isinstance(given, list) or not given:
            raise ConfigError(f"{self.name}.{key}: must be a list of whole numbers")
        values = [
            _whole(value, f"{self.name}.{key}[{index}]", 0, 1 << 40)
            for index, value in enumerate(given)
        ]
        if any(after <= before for before, after in itertools.pairwise(values)):
            raise ConfigError(f"{self.name}.{key}: must ascend")
        return values

    def finish(self) -> None:
        unknown = sorted(set(self._content) - self._asked)
        if unknown:
            raise ConfigError(
                f"{self.name}.{unknown[0]}: unknown key; known: {', '.join(sorted(self._asked))}"
            )


def _number(value: object, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name}: {value!r} is not a number")
    if not least <= value <= most:
        raise ConfigError(f"{name}: {value} is not in {least:g}..{most:g}")
    return float(value)


def _whole(value: object, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}: {value!r} is not a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{name}: {value} is not in {least}..{most}")
    return value
