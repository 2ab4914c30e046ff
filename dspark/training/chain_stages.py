"""The chain of `dspark train all`: its notes, stages that need only this package and a client, and
the final report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from dspark.client import Client
from dspark.errors import ConfigError
from dspark.model.checkpoint import context_length
from dspark.model.location import locate
from dspark.model.pairing import text_config
from dspark.model.placement import pick_device
from dspark.training import evaluate
from dspark.training.asked import first_turn
from dspark.training.batches import trained_on
from dspark.training.calibrate import NEW_TOKENS
from dspark.training.chat import Chat
from dspark.training.disk import check_same_run, read_rows, write_json, write_whole
from dspark.training.features import make_cache, plan_for
from dspark.training.metrics import plain
from dspark.training.record import StepLog
from dspark.training.run import precision_on
from dspark.training.settings import Settings
from dspark.training.split import Conversation, split_prompts
from dspark.training.trainer import LOG, train_drafter

SERVED_PROMPTS = 8
NOTES = "chain.json"
LEAST_HELD = 3  # prompts: calibration needs two


class Chain:
    """The finished stages and their results, recorded in `chain.json`."""

    def __init__(self, out: Path, identity: dict[str, Any]) -> None:
        self.out, self._path = out, out / NOTES
        out.mkdir(parents=True, exist_ok=True)
        self.notes: dict[str, Any] = {"identity": identity, "stages": {}}
        if self._path.exists():
            try:
                kept = json.loads(self._path.read_bytes())
                self.notes = {name: {**kept[name]} for name in self.notes}
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"{self._path}: no notes of a chain ({error!r}); without it every stage runs "
                    "again"
                ) from None
            check_same_run(f"the chain in {out}", self.notes["identity"], identity)

    def do(self, name: str, stage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs a stage unless it is done; returns its result."""
        stages: dict[str, dict[str, Any]] = self.notes["stages"]
        if name not in stages:
            print(f"{name} ...", file=sys.stderr, flush=True)
            start = time.monotonic()
            found = stage()
            stages[name] = found | {"stage_seconds": round(time.monotonic() - start, 2)}
            write_json(self._path, self.notes)
        return stages[name]


def split(
    prompts: Path, out: Path, settings: Settings, *, share: float, limit: int, answer: int
) -> dict[str, Any]:
    """Splits the prompts that the target can answer; holds out those that it can answer with
    `answer` tokens. Refuses too few of either part, before anything is trained."""
    folder = locate(settings.target)
    chat, text = Chat(folder), text_config(folder)
    length, longest = context_length(text), max(answer, NEW_TOKENS)
    if (most := length - longest - settings.block_size - 1) < 1:
        raise ConfigError(
            f"target: ends at {length} tokens; an answer of {longest} and a block leave no room "
            "for a prompt"
        )

    def check(turns: Conversation) -> bool:
        ids = chat.prompt_ids(turns[:1])
        if len(ids) >= length:
            raise ConfigError(f"a prompt that leaves no room in {length} tokens")
        if not ids or max(ids) >= text.vocab_size:
            raise ConfigError("empty, or an id outside the vocabulary")
        return len(ids) <= most

    found = split_prompts(
        prompts, out / "prompts", held_out=share, seed=settings.seed, limit=limit, check=check
    )
    held = found["calibrate"] + found["evaluate"]
    if held < LEAST_HELD:
        raise ConfigError(
            f"held_out_share: {share:g} of the prompts are {held}, and {LEAST_HELD} are needed to "
            "calibrate and to evaluate"
        )
    trained_on(found["train"], settings)
    return found


def cache(settings: Settings) -> dict[str, Any]:
    """Writes the target's hidden states: bfloat16 if that is the run's precision, else float32."""
    mixed = precision_on(pick_device(settings.device, key="device"), settings) == "bf16"
    plan = plan_for(settings, "bfloat16" if mixed else "float32")
    make_cache(settings, plan, Path(settings.cache))
    return {"tokens": plan.num_tokens, "bytes": plan.bytes, "folder": settings.cache}


def train(settings: Settings) -> dict[str, Any]:
    """Trains the drafter; returns its folder and the log's figures."""
    folder, log = train_drafter(settings), StepLog(Path(settings.out) / LOG)
    return {"drafter": str(folder), "first_loss": log.read()["loss"][0]} | log.last()


def measure_cell(client: Client, target: str, prompts: Path, tokens: int) -> dict[str, Any]:
    """Measures greedy answers to some prompts without drafts and with the cell's policy, and
    compares their ids."""
    chat, found = Chat(target), {}
    asked = [chat.prompt_ids(first_turn(row)) for row in islice(read_rows(prompts), SERVED_PROMPTS)]
    said: list[list[tuple[int, ...]]] = []
    for prompt in asked:  # neither policy pays for the cell's first steps, nor for whole prompts
        client.complete(prompt, max_tokens=1, timeout=600)
    for name, policy in (("off", "off"), ("drafting", "")):
        start = time.perf_counter()
        answers = [
            client.complete(prompt, max_tokens=tokens, temperature=0.0, policy=policy, timeout=600)
            for prompt in asked
        ]
        seconds = time.perf_counter() - start
        said.append([answer.token_ids for answer in answers])
        made = sum(map(len, said[-1]))
        rounds = sum(answer.end.speculation.rounds for answer in answers)
        found[name] = {
            "tokens": made,
            "tokens_per_second": made / seconds,
            "tokens_per_round": made / max(1, rounds),
        }
    return {"same_ids": said[0] == said[1], "prompts": len(asked), **found}


def write_report(out: Path, notes: Mapping[str, Any]) -> Path:
    """Writes report.json and report.md below `out`; returns the latter."""
    write_json(out / "report.json", plain(notes))
    stages, settings = notes["stages"], notes["settings"]
    split, rows, samples = stages["split"], stages["regenerate"], stages["encode"]
    train, served = stages["train"], stages["serve"]
    lines = [
        f"# Drafter of {settings['target']}",
        "",
        f"Family {settings['family']}, blocks of {settings['block_size']}, target "
        f"`{notes['identity']['target']}`.",
        "",
        "| stage | what | seconds |",
        "| --- | --- | ---: |",
    ]
    told = {
        "split": f"{split['train']} prompts to learn from, "
        f"{split['calibrate'] + split['evaluate']} held out",
        "regenerate": f"{rows['rows']} answers, {rows['tokens']:,} tokens, {rows['failed']} failed",
        "encode": f"{samples['samples']} samples, {samples['tokens']:,} tokens, "
        f"{samples['supervised']:,} supervised",
        "train": f"{train['step']:.0f} steps, "
        f"loss {train['first_loss']:.4f} -> {train['loss']:.4f}",
        "evaluate": "accepted length, below",
        "serve": f"{served['prompts']} prompts through a cell",
    }
    fits = stages["calibrate"]["fits"]
    was, now = (
        sum(fit[f"mean_ece_{side}"] for fit in fits) / len(fits) for side in ("before", "after")
    )
    told["calibrate"] = f"error of survival {was:.1%} -> {now:.1%}, mean of {len(fits)} fits"
    if "cache" in stages:
        told["cache"] = f"{stages['cache']['bytes'] / 1e9:.3f} GB of hidden states"
    for name, found in stages.items():
        lines.append(f"| {name} | {told.get(name, '')} | {found['stage_seconds']:.1f} |")
    with_it, without = served["drafting"], served["off"]
    lines += [
        "",
        "![loss](train/loss.png)",
        "",
        "## Held-out prompts",
        "",
        "```",
        evaluate.table(stages["evaluate"]),
        "```",
        "",
        "## Served",
        "",
        f"Greedy, one at a time: {with_it['tokens_per_round']:.2f} tokens a round and "
        f"{with_it['tokens_per_second']:.1f} tokens/s with the drafter, "
        f"{without['tokens_per_second']:.1f} without; "
        f"ids {'equal' if served['same_ids'] else 'NOT equal'}.",
        "",
        "```",
        f"dspark up --target {settings['target']} --drafter {out / 'train' / 'drafter'}",
        "```",
        "",
    ]
    write_whole(out / "report.md", "\n".join(lines))
    return out / "report.md"
