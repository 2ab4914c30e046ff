"""What a drafter's training run is told, and how answers are asked for; the defaults are the published recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
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
    """One run."""

    target: str = field(metadata={"doc": "Folder or hub id of the target."})
    samples: str = field(metadata={"doc": "File of samples, as `encode` writes it."})
    out: str = field(metadata={"doc": "Folder of the run: state, log, curve, and the drafter at the end."})
    cache: str = field(
        default="", metadata={"doc": "Folder of a target cache; empty: the target runs beside the drafter."}
    )
    start: str = field(default="", metadata={"doc": "Folder of a drafter to go on from; empty: a fresh one."})
    family: str = field(default="dspark", metadata={"doc": "dspark, dflash, eagle3, mtp or lm."})
    head: str = field(default="vanilla", metadata={"doc": "Sequential head of DSpark: vanilla, gated, rnn or none."})
    layers: int = field(
        default=0, metadata={"doc": "Depth; 0: 5 for blocks (3 for DeepSeek-V4), 1 for eagle3 and mtp, 2 for lm."}
    )
    block_size: int = field(default=7, metadata={"doc": "Tokens drafted in a round."})
    taps: tuple[int, ...] = field(
        default=(),
        metadata={
            "doc": "Target layers read; none named: five, evenly spread (mtp: the last; DeepSeek-V4: the last three)."
        },
    )
    markov_rank: int = field(default=256, metadata={"doc": "Rank of the sequential head."})
    keep_tokens: str = field(
        default="", metadata={"doc": "JSON list of the tokens the head can say, by `vocabulary`; empty: all."}
    )
    width: int = field(default=0, metadata={"doc": "Hidden size of lm; 0: half the target's."})
    epochs: int = field(default=10, metadata={"doc": "Passes over the samples."})
    steps: int = field(default=0, metadata={"doc": "Optimiser steps; 0: as many as the epochs have."})
    batch: int = field(default=512, metadata={"doc": "Conversations of a step, over all workers."})
    micro_tokens: int = field(
        default=8192, metadata={"doc": "Tokens computed at one time; a longer conversation goes alone."}
    )
    anchors: int = field(default=512, metadata={"doc": "Blocks drawn from a conversation, most."})
    optimizer: str = field(
        default="adamw", metadata={"doc": "adamw (published) or muon (matrices by Muon, the rest by AdamW)."}
    )
    rate: float = field(default=6e-4, metadata={"doc": "Peak learning rate of AdamW."})
    matrix_rate: float = field(default=0.02, metadata={"doc": "Peak learning rate of Muon."})
    schedule: str = field(default="cosine", metadata={"doc": "cosine (published) or linear: level, then linear to 0."})
    warmup: float = field(default=0.04, metadata={"doc": "Share of the steps in which the rate rises."})
    clip: float = field(default=1.0, metadata={"doc": "Largest norm of the gradient."})
    decay: float = field(
        default=0.0,
        metadata={"doc": "Slot k weighs exp(-(k-1)/decay); 0: 4.0, in proportion for blocks longer than 7."},
    )
    precision: str = field(
        default="auto", metadata={"doc": "fp32, or bf16 products on fp32 weights; auto: bf16 on GPUs."}
    )
    device: str = field(default="auto", metadata={"doc": "auto, cpu, cuda or cuda:N."})
    seed: int = field(default=42, metadata={"doc": "Key of the first weights, of the order and of the anchors."})
    held_out: int = field(default=16, metadata={"doc": "Conversations kept for evaluation."})
    log_every: int = field(default=10, metadata={"doc": "Steps between two lines of the log."})
    evaluate_every: int = field(
        default=200, metadata={"doc": "Steps between two evaluations, in whole lines of the log."}
    )
    save_every: int = field(default=3000, metadata={"doc": "Steps between two states."})
    save_every_s: float = field(default=300.0, metadata={"doc": "Longest time between two states, in seconds."})

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
_FREE = {
    "target",
    "samples",
    "keep_tokens",
    "out",
    "start",
    "log_every",
    "evaluate_every",
    "save_every",
    "save_every_s",
    "device",
}


def settled(settings: Settings) -> dict[str, Any]:
    """What the numbers of a run depend on, files apart: their content is compared, not where they lie."""
    return {name: value for name, value in settings.to_json().items() if name not in _FREE}


def from_json(raw: Mapping[str, Any]) -> Settings:
    """The settings `to_json` gave; ConfigError names an unknown key."""
    known = {one.name for one in fields(Settings)}
    if unknown := set(raw) - known:
        raise ConfigError(f"{sorted(unknown)[0]}: no such setting of a training run")
    return Settings(**{**raw, "taps": tuple(raw.get("taps", ()))})


def check_same_run(settings: Settings, kept: Mapping[str, Any]) -> None:
    """A state goes on under the settings it was made with: ConfigError names the one that differs.

    Both with the precision that came out, never `auto`: that of another device may be another one.
    """
    for name, value in settled(settings).items():
        if kept.get(name) != value:
            raise ConfigError(
                f"{name}: {settings.out} was begun with {kept.get(name)!r}, not {value!r}; name another folder"
            )


@dataclass(frozen=True, slots=True)
class RegenerationSettings:
    """How the target's answers are drawn; the published settings of Qwen3 without thinking."""

    temperature: float = field(default=0.7, metadata={"doc": "Of the answers."})
    top_p: float = field(default=0.8, metadata={"doc": "Nucleus mass."})
    top_k: int = field(default=20, metadata={"doc": "Likeliest tokens kept; 0: all."})
    min_p: float = field(default=0.0, metadata={"doc": "Least share of the likeliest one."})
    max_tokens: int = field(default=4096, metadata={"doc": "Longest answer, as far as the context has room for it."})
    seed: int = field(default=42, metadata={"doc": "Key of the draws."})
    concurrency: int = field(default=32, metadata={"doc": "Answers asked for at the same time."})
    answer_timeout_s: float = field(default=600.0, metadata={"doc": "Deadline of an answer."})
    patience_s: float = field(
        default=300.0, metadata={"doc": "How long a row is tried again while the cell does not answer."}
    )

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"concurrency: {self.concurrency} is below 1")

    def settings(self) -> dict[str, float | int]:
        """What an answer depends on; how many are asked at the same time is no part of it."""
        kept = asdict(self)
        for name in ("concurrency", "answer_timeout_s", "patience_s"):
            del kept[name]
        return kept
