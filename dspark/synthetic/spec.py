"""The description of a synthetic pair, read from a YAML file; errors name the field.

One file describes both workers, so that a verifier and a drafter started with it fit together.
`docs/simulator.md` explains the keys; `benchmarks/synthetic/` holds examples.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError
from dspark.numerals import number, shown, whole
from dspark.runtime.config import read_yaml
from dspark.synthetic.steps import StepTable

MOST_SLOTS = 64
MOST_VOCABULARY = 1 << 24  # ids travel to the drafter in three feature values of eight bits
LEAST_WIDTH = 4

Read = Callable[[object], Any]  # raises ValueError


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
    verify, draft = top.fields("verify"), top.fields("draft")
    confidence = top.fields("confidence", default={})
    prefill_ms = verify.value(number, "prefill_ms", 0.0, 1e6, default=None)
    spec = SyntheticSpec(
        verify=_table(verify, "tokens"),
        draft=_table(draft, "sequences"),
        domains=_domains(top),
        seed=top.value(whole, "seed", 0, 1 << 62, default=0),
        vocabulary=top.value(whole, "vocabulary", 2, MOST_VOCABULARY, default=32_000),
        context_length=top.value(whole, "context_length", 16, 1 << 30, default=1 << 20),
        feature_width=top.value(whole, "feature_width", LEAST_WIDTH, 1 << 16, default=64),
        noise=confidence.value(number, "noise", 0.0, 100.0, default=0.0),
        bias=confidence.value(number, "bias", -100.0, 100.0, default=0.0),
        jitter=top.value(number, "jitter", 0.0, 1.0, default=0.0),
        prefill_token_s=None if prefill_ms is None else prefill_ms / 1e3,
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
        accept = fields.values(number, "accept", 0.0, 1.0)
        if len(accept) > MOST_SLOTS:
            raise ConfigError(f"{fields.name}.accept: {len(accept)} slots exceed {MOST_SLOTS}")
        if domains and len(accept) != len(domains[0].accept):
            raise ConfigError(
                f"{fields.name}.accept: {len(accept)} slots, the first domain has another number"
            )
        concentration = fields.value(number, "concentration", 0.01, 1e4, default=None)
        fields.finish()
        domains.append(Domain(str(name), accept, concentration))
    return tuple(domains)


def _table(fields: _Fields, first: str) -> StepTable:
    rows, contexts = fields.ascending(first), fields.ascending("contexts", default=[0])
    milliseconds = fields.take("ms")
    if not isinstance(milliseconds, list) or len(milliseconds) != len(rows):
        raise ConfigError(
            f"{fields.name}.ms: needs one row per entry of {first}, {len(rows)} in all"
        )
    grid = []
    for index, row in enumerate(milliseconds):
        values, name = row if isinstance(row, list) else [row], f"{fields.name}.ms[{index}]"
        if len(values) != len(contexts):
            raise ConfigError(f"{name}: {len(values)} values for {len(contexts)} contexts")
        grid.append(tuple(_read(number, value, name, 1e-6, 1e7) / 1e3 for value in values))
    stairs = fields.take("stairs", default=False)
    if not isinstance(stairs, bool):
        raise ConfigError(f"{fields.name}.stairs: must be true or false")
    return StepTable(rows, contexts, tuple(grid), stairs)


class _Fields:
    """One mapping of the file; keys that are never taken are errors. Numbers are read by a function
    of `dspark.numerals` and bounded."""

    def __init__(self, content: object, name: str) -> None:
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name}: must be a mapping")
        self.name = name
        self._content: dict[str, Any] = {str(key): value for key, value in content.items()}
        self._asked: set[str] = set()

    def take(self, key: str, **default: object) -> Any:
        """What the key holds; where it is absent or null, the default if there is one."""
        self._asked.add(key)
        if (value := self._content.get(key)) is not None:
            return value
        if not default:
            raise ConfigError(f"{self.name}.{key}: required and not given")
        return default["default"]

    def fields(self, key: str, **default: object) -> _Fields:
        return _Fields(self.take(key, **default), f"{self.name}.{key}")

    def value(self, read: Read, key: str, least: float, most: float, *, default: Any) -> Any:
        given = self.take(key, default=default)
        return given if given is None else _read(read, given, f"{self.name}.{key}", least, most)

    def values(self, read: Read, key: str, least: float, most: float, **default: object) -> Any:
        given, name = self.take(key, **default), f"{self.name}.{key}"
        if not isinstance(given, list) or not given:
            raise ConfigError(f"{name}: must be a list of numbers")
        return tuple(
            _read(read, one, f"{name}[{index}]", least, most) for index, one in enumerate(given)
        )

    def ascending(self, key: str, **default: object) -> tuple[int, ...]:
        found: tuple[int, ...] = self.values(whole, key, 0, 1 << 40, **default)
        if any(after <= before for before, after in itertools.pairwise(found)):
            raise ConfigError(f"{self.name}.{key}: must ascend")
        return found

    def finish(self) -> None:
        unknown = sorted(set(self._content) - self._asked)
        if unknown:
            raise ConfigError(
                f"{self.name}.{unknown[0]}: unknown key; known: {', '.join(sorted(self._asked))}"
            )


def _read(read: Read, value: object, name: str, least: float, most: float) -> Any:
    try:
        made = read(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not least <= made <= most:  # false for NaN, too
        raise ConfigError(f"{name}: {shown(value)} is not in {least:.12g}..{most:.12g}")
    return made
