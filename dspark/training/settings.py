"""Settings of a training run and of the answers to train on; the defaults are the published
recipes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dspark.errors import ConfigError
from dspark.rounds.plan import MAX_SLOTS
from dspark.runtime.setting import check_settings, setting

FAMILIES = ("dspark", "dflash", "eagle3", "mtp", "lm")
HEADS = ("none", "vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one training run."""

    target: str = field(metadata={"doc": "Folder or hub id of the target."})
    samples: str = field(metadata={"doc": "File of samples, as `encode` writes it."})
    out: str = field(
        metadata={"doc": "Folder of the run: state, log, curve, and the drafter at the end."}
    )
    cache: str = setting("", "Folder of a target cache; empty: the target runs beside the drafter.")
    start: str = setting("", "Folder of a drafter to go on from; empty: a fresh one.")
    family: str = setting("dspark", "dspark, dflash, eagle3, mtp or lm.", one_of=FAMILIES)
    head: str = setting(
        "vanilla", "Sequential head of DSpark: vanilla, gated, rnn or none.", one_of=HEADS
    )
    layers: int = setting(
        0, "Depth; 0: 5 for blocks (3 for DeepSeek-V4), 1 for eagle3 and mtp, 2 for lm.", least=0
    )
    block_size: int = setting(7, "Tokens drafted in a round.", least=1, most=MAX_SLOTS)
    taps: tuple[int, ...] = setting(
        (),
        "Target layers read; none named: five, evenly spread (mtp: the last; DeepSeek-V4: the last "
        "three).",
    )
    markov_rank: int = setting(256, "Rank of the sequential head.", least=0)
    keep_tokens: str = setting(
        "", "JSON list of the tokens the head can say, by `vocabulary`; empty: all."
    )
    width: int = setting(0, "Hidden size of lm; 0: half the target's.", least=0)
    epochs: int = setting(10, "Passes over the samples.", least=1)
    steps: int = setting(0, "Optimiser steps; 0: as many as the epochs have.", least=0)
    batch: int = setting(512, "Conversations of a step, over all workers.", least=1)
    micro_tokens: int = setting(
        8192, "Tokens computed at one time; a longer conversation goes alone.", least=1
    )
    anchors: int = setting(512, "Blocks drawn from a conversation, most.", least=1)
    optimizer: str = setting(
        "adamw",
        "adamw (published) or muon (matrices by Muon, the rest by AdamW).",
        one_of=("adamw", "muon"),
    )
    rate: float = setting(6e-4, "Peak learning rate of AdamW.", above=0)
    matrix_rate: float = setting(0.02, "Peak learning rate of Muon.", above=0)
    schedule: str = setting(
        "cosine",
        "cosine (published) or linear: level, then linear to 0.",
        one_of=("cosine", "linear"),
    )
    warmup: float = setting(0.04, "Share of the steps in which the rate rises.")
    clip: float = setting(1.0, "Largest norm of the gradient.", above=0)
    decay: float = setting(
        0.0,
        "Slot k weighs exp(-(k-1)/decay); 0: 4.0, in proportion for blocks longer than 7.",
        least=0,
    )
    precision: str = setting(
        "auto",
        "fp32, or bf16 products on fp32 weights; auto: bf16 on GPUs.",
        one_of=("auto", "fp32", "bf16"),
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N.")
    seed: int = setting(
        42, "Key of the first weights, of the order and of the anchors.", least=0, most=1 << 62
    )
    held_out: int = setting(16, "Conversations kept for evaluation.", least=0)
    log_every: int = setting(10, "Steps between two lines of the log.", least=1)
    evaluate_every: int = setting(
        200, "Steps between two evaluations, in whole lines of the log.", least=1
    )
    save_every: int = setting(3000, "Steps between two states.", least=1)
    save_every_s: float = setting(300.0, "Longest time between two states, in seconds.")

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup: {self.warmup} is no share from 0 to 1")


@dataclass(frozen=True, slots=True)
class RegenerationSettings:
    """How answers are generated; the defaults are those published for Qwen3 without thinking."""

    temperature: float = setting(0.7, "Of the answers.", least=0)
    top_p: float = setting(0.8, "Nucleus mass.", above=0, most=1)
    top_k: int = setting(20, "Likeliest tokens kept; 0 or -1: all.", least=-1)
    min_p: float = setting(0.0, "Least share of the likeliest one.", least=0, most=1)
    max_tokens: int = setting(
        4096, "Longest answer, as far as the context has room for it.", least=1
    )
    seed: int = setting(42, "Key of the draws.", least=0, most=1 << 62)
    concurrency: int = setting(32, "Answers asked for at the same time.", least=1)
    answer_timeout_s: float = setting(600.0, "Deadline of an answer.")
    patience_s: float = setting(
        300.0, "How long a row is tried again while the cell does not answer."
    )

    def __post_init__(self) -> None:
        check_settings(self)


# Settings that may change when a run is resumed: none of them changes a loss curve or an answer.
_FREE = {
    "target",
    "samples",
    "keep_tokens",
    "cache",
    "out",
    "start",
    "log_every",
    "evaluate_every",
    "save_every",
    "save_every_s",
    "device",
    "concurrency",
    "answer_timeout_s",
    "patience_s",
}


def settled(settings: Settings | RegenerationSettings) -> dict[str, Any]:
    """The settings that results depend on, as JSON has them, without files: their content is
    compared, not their paths.

    A run passes settings with a resolved precision, never `auto`, which depends on the device.
    """
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if name not in _FREE
    }
