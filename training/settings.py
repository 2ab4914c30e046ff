"""Everything a drafter's training run is told. The defaults are the published recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dspark.errors import ConfigError

FAMILIES = ("dspark", "dflash", "eagle3", "mtp", "lm")
HEADS = ("none", "vanilla", "gated", "rnn")
_CHOICES = {
    "family": FAMILIES,
    "head": HEADS,
    "optimizer": ("adamw", "muon"),
    "schedule": ("cosine", "linear"),
    "precision": ("auto", "fp32", "bf16"),
}
_AT_LEAST = {
    "batch": 1, "micro_tokens": 1, "anchors": 1, "block_size": 1, "steps": 0, "epochs": 1, "layers": 0, "width": 0,
    "markov_rank": 0, "held_out": 0, "log_every": 1, "evaluate_every": 1, "save_every": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    What: `target` folder or hub id; `samples` file; `out` folder of the run; `cache` folder of a target cache, empty to
    run the target beside the drafter. `start` folder of a drafter to go on from.

    Drafter: `family`; `head` of DSpark; `layers` (0: the family's own, 5 for blocks, 1 for Eagle3 and MTP, 2 for a
    language model); `block_size` tokens drafted; `taps` target layers, evenly spread where none are named;
    `markov_rank`; `width` hidden size of a language model (0: half the target's).

    Optimisation: `epochs` over the samples, or `steps` where above 0; `batch` conversations a step over all workers, in
    pieces of at most `micro_tokens` tokens; `anchors` blocks of a conversation; `rate` of AdamW, and `matrix_rate` of
    Muon for matrices; `warmup` share of the steps; `clip` of the gradient's norm; `decay` of the weights of slots (0:
    4.0 for blocks of 7 and in proportion).

    Running: `precision` fp32, or bf16 products on fp32 weights; auto is bf16 on GPUs. `device`; `seed`;
    a conversation; `held_out` conversations kept for evaluation; a line of the log, an evaluation and a state every so
    many steps, a state also every `save_every_s` seconds.
    """

    target: str
    samples: str
    out: str
    cache: str = ""
    start: str = ""
    family: str = "dspark"
    head: str = "vanilla"
    layers: int = 0
    block_size: int = 7
    taps: tuple[int, ...] = ()
    markov_rank: int = 256
    width: int = 0
    epochs: int = 10
    steps: int = 0
    batch: int = 512
    micro_tokens: int = 8192
    anchors: int = 512
    optimizer: str = "adamw"
    rate: float = 6e-4
    matrix_rate: float = 0.02
    schedule: str = "cosine"
    warmup: float = 0.04
    clip: float = 1.0
    decay: float = 0.0
    precision: str = "auto"
    device: str = "auto"
    seed: int = 42
    held_out: int = 16
    log_every: int = 10
    evaluate_every: int = 200
    save_every: int = 3000
    save_every_s: float = 300.0

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name}: {value!r} is none of {', '.join(choices)}")
        for name, least in _AT_LEAST.items():
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name}: {value} is below {least}")
        for name in ("rate", "matrix_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not above 0")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup: {self.warmup} is no share from 0 to 1")

    def to_json(self) -> dict[str, Any]:
        """As it is kept beside the state."""
        return asdict(self) | {"taps": list(self.taps)}


# What may differ between the parts of a run: none of it moves a number of the loss curve.
_FREE = {"target", "samples", "out", "start", "log_every", "evaluate_every", "save_every", "save_every_s", "device"}


def from_json(raw: Mapping[str, Any]) -> Settings:
    """The settings `to_json` gave; ConfigError names an unknown key."""
    known = {field.name for field in fields(Settings)}
    if unknown := set(raw) - known:
        raise ConfigError(f"{sorted(unknown)[0]}: no such setting of a training run")
    return Settings(**{**raw, "taps": tuple(raw.get("taps", ()))})


def check_same_run(settings: Settings, kept: Mapping[str, Any]) -> None:
    """A state goes on under the settings it was made with: ConfigError names the one that differs."""
    for name, value in settings.to_json().items():
        if name not in _FREE and kept.get(name) != value:
            raise ConfigError(
                f"{name}: {settings.out} was begun with {kept.get(name)!r}, not {value!r}; name another folder"
            )
