"""The report of a chain: what was done to which target, and what came of it, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.training import evaluate as evaluation
from dspark.training.disk import write_whole


def write_report(out: Path, notes: Mapping[str, Any]) -> Path:
    """Writes report.json and report.md below `out`; returns the latter."""
    write_whole(out / "report.json", json.dumps(notes, indent=2) + "\n")
    stages, settings = notes["stages"], notes["settings"]
    split, rows, samples = stages["split"], stages["regenerate"], stages["encode"]
    train, served = stages["train"], stages["serve"]
    lines = [
        f"# Drafter of {settings['target']}",
        "",
        f"Family {settings['family']}, blocks of {settings['block_size']}, target `{notes['identity']['target']}`.",
        "",
        "| stage | what | seconds |",
        "| --- | --- | ---: |",
    ]
    told = {
        "split": f"{split['train']} prompts to learn from, {split['test']} held out",
        "regenerate": f"{rows['rows']} answers, {rows['tokens']:,} tokens, {rows['failed']} failed",
        "encode": f"{samples['samples']} samples, {samples['tokens']:,} tokens, {samples['supervised']:,} supervised",
        "train": f"{train['step']:.0f} steps, loss {train['first_loss']:.4f} -> {train['loss']:.4f}",
        "evaluate": "accepted length, below",
        "serve": f"{served['prompts']} prompts through a cell",
    }
    if "calibrate" in stages:
        fits = stages["calibrate"]["fits"]
        was, now = (sum(fit[f"mean_ece_{side}"] for fit in fits) / len(fits) for side in ("before", "after"))
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
        evaluation.table(stages["evaluate"]),
        "```",
        "",
        "## Served",
        "",
        f"Greedy, one at a time: {with_it['tokens_per_round']:.2f} tokens a round and "
        f"{with_it['tokens_per_second']:.1f} tokens/s with the drafter, {without['tokens_per_second']:.1f} without; "
        f"ids {'equal' if served['same_ids'] else 'NOT equal'}.",
        "",
        "```",
        f"dspark up --target {settings['target']} --drafter {train['drafter']}",
        "```",
        "",
    ]
    write_whole(out / "report.md", "\n".join(lines))
    return out / "report.md"
