"""The stages of the recipe: what each reads from and writes to the working directory.

`facts.json` there collects what the cards say about the stages.
"""

import argparse
import json
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from training import (
    assistant,
    calibrate,
    calibration_report,
    card,
    continuations,
    corpus,
    drafter,
    evaluate,
    held_out,
    prompts,
    target,
    tokenizer,
    tokens,
    variety,
)

CIRCLE_SHARDS = 12
TARGET_NAME, DRAFTER_NAME, ASSISTANT_NAME = "demo-target", "demo-dspark", "demo-assistant"


def run(chosen: argparse.Namespace) -> None:
    torch.set_num_threads(chosen.threads)
    names = list(STAGES) if chosen.stage == "all" else [chosen.stage]
    for name in names:
        STAGES[name](chosen)


def note(workdir: Path, **facts: Any) -> None:
    path = workdir / "facts.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | facts, indent=2) + "\n", encoding="utf-8")


def make_corpus(chosen: argparse.Namespace) -> None:
    documents = corpus.collect(chosen.seed)
    corpus.write(documents, chosen.workdir / "corpus.jsonl")
    rows = corpus.summary(documents)
    note(chosen.workdir, corpus=rows, python={"version": platform.python_version()})
    for name, row in rows.items():
        print(name, row)


def make_tokenizer(chosen: argparse.Namespace) -> None:
    documents = corpus.read(chosen.workdir / "corpus.jsonl")
    trained = tokenizer.train(documents)
    trained.save_pretrained(chosen.workdir / "tokenizer")
    streams = tokens.encode(documents, trained)
    tokens.save(streams, chosen.workdir / "tokens.safetensors")
    prompts.write(prompts.choose(documents, trained, chosen.seed), chosen.prompts)
    for name, ids in streams.items():
        print(name, len(ids), "tokens")


def train_target(chosen: argparse.Namespace) -> None:
    recipe = target.Recipe(seed=chosen.seed, steps=chosen.steps, minutes=chosen.minutes, compile=chosen.compile)
    streams = tokens.load(chosen.workdir / "tokens.safetensors")
    trained = target.train(streams, tokenizer.load(chosen.workdir / "tokenizer"), recipe, chosen.workdir / "target")
    release(trained, chosen.models / TARGET_NAME)


def release(made: Path, folder: Path) -> None:
    shutil.copytree(made, folder, dirs_exist_ok=True)
    print("released", folder)


def tune_variety(chosen: argparse.Namespace) -> None:
    """The target's own text first, then the tuning on it; the tuned target is the one that is released."""
    sources = continuations.Sources(
        target=chosen.workdir / "target" / "model",
        tokens=chosen.workdir / "tokens.safetensors",
        folder=chosen.workdir / "circles",
        seed=chosen.seed,
    )
    continuations.write(sources, minutes=0, workers=chosen.threads, shards=CIRCLE_SHARDS)
    tuned = variety.tune(
        tokens.load(sources.tokens),
        tokenizer.load(chosen.workdir / "tokenizer"),
        continuations.read(sources.folder),
        target.Recipe(seed=chosen.seed),
        variety.Recipe(seed=chosen.seed),
        chosen.workdir / "target",
        chosen.workdir / "variety",
    )
    release(tuned, chosen.models / TARGET_NAME)


def write_continuations(chosen: argparse.Namespace) -> None:
    sources = continuations.Sources(
        target=chosen.workdir / "variety" / "model",
        tokens=chosen.workdir / "tokens.safetensors",
        folder=chosen.workdir / "continuations",
        seed=chosen.seed + 1,
    )
    start = time.perf_counter()
    continuations.write(sources, minutes=chosen.minutes, workers=chosen.threads, shards=chosen.shards)
    minutes = (time.perf_counter() - start) / 60
    shards = continuations.read(sources.folder)
    sampled = sum(int((~shard["forced"]).sum()) for shard in shards)
    note(chosen.workdir, continuations={"shards": len(shards), "tokens": sampled, "minutes": minutes})


def train_drafter(chosen: argparse.Namespace) -> None:
    shards = continuations.read(chosen.workdir / "continuations")
    streams = tokens.load(chosen.workdir / "tokens.safetensors")
    # One shard in five is plain training text, if not told otherwise.
    plain = len(shards) // 4 if chosen.plain is None else chosen.plain
    shards += continuations.corpus_shards(streams, shards=plain, rows=192, length=300, seed=chosen.seed)
    settings = drafter.settings_of(
        chosen.workdir / "variety" / "model",
        chosen.workdir / "samples.safetensors",
        chosen.workdir / "drafter",
        seed=chosen.seed,
        steps=chosen.steps,
        block=chosen.block,
        start=chosen.start,
    )
    release(drafter.train(shards, settings), chosen.models / DRAFTER_NAME)


def fit_calibration(chosen: argparse.Namespace) -> None:
    folder = chosen.models / DRAFTER_NAME
    report = calibrate.calibrate(
        chosen.models / TARGET_NAME,
        folder,
        held_out.files("calibrate"),
        seed=chosen.seed,
        also_greedy=held_out.files("calibrate-greedy"),
        plots=folder,
        keep=chosen.workdir / "rounds",
    )
    note(chosen.workdir, calibration=report)
    print(calibration_report.table(report))


def run_evaluation(chosen: argparse.Namespace) -> None:
    report = evaluate.evaluate(
        chosen.models / TARGET_NAME,
        chosen.models / DRAFTER_NAME,
        held_out.files("evaluate"),
        out=chosen.workdir / "evaluation",
    )
    print(evaluate.table(report))


def write_cards(chosen: argparse.Namespace) -> None:
    card.write(chosen.workdir, chosen.models / TARGET_NAME, chosen.models / DRAFTER_NAME)


def train_assistant(chosen: argparse.Namespace) -> None:
    """The small language model that other speculative decoders draft with; needs `corpus` and `tokenizer` only."""
    own = tokenizer.load(chosen.workdir / "tokenizer")
    target_folder = chosen.models / TARGET_NAME
    if own.get_vocab() != tokenizer.load(target_folder).get_vocab():
        raise SystemExit(f"the tokenizer of {chosen.workdir} is not that of {target_folder}; drafts would not fit")
    recipe = assistant.recipe(seed=chosen.seed, steps=chosen.steps, minutes=chosen.minutes, compile=chosen.compile)
    streams = tokens.load(chosen.workdir / "tokens.safetensors")
    trained = target.train(streams, own, recipe, chosen.workdir / "assistant")
    assistant.write_card(chosen.workdir / "assistant", trained)
    release(trained, chosen.models / ASSISTANT_NAME)


STAGES = {
    "corpus": make_corpus,
    "tokenizer": make_tokenizer,
    "target": train_target,
    "variety": tune_variety,
    "continuations": write_continuations,
    "drafter": train_drafter,
    "calibrate": fit_calibration,
    "evaluate": run_evaluation,
    "card": write_cards,
    "assistant": train_assistant,
}
