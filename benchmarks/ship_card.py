"""The card of the shipped drafter: what it was trained on, how sure it is, how much of it the
target accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.training import calibrate, evaluate

EARLY = 1_500_000  # blocks below which a drafter of this size is still learning fast


def card(told: Mapping[str, Any], folder: Path) -> str:
    """Text of README.md. told: the facts of a training state, the reports of `calibrate` and
    `evaluate`, the run's log. folder: of the drafter, with its diagrams."""
    report, fits = told["evaluation"], told["calibration"]
    diagrams = sorted(path.name for path in folder.glob("reliability-*.png"))
    return "\n".join(
        [
            "# smollm2-dspark",
            "",
            "A DSpark drafter of SmolLM2-135M-Instruct (`smollm2`). Embedding and head are the "
            "target's and not in the",
            "file: `--target` is needed wherever it is loaded.",
            "",
            *_early(told),
            "## Accepted length",
            "",
            f"`dspark evaluate` on `dspark/loadgen/questions`: answers of at most "
            f"{report['new_tokens']} tokens, whole blocks",
            "verified. tau counts the target's own token. Answers in which a run of eight tokens "
            "comes twice are easy to",
            "draft: their number (loops), and tau without them.",
            "",
            "```",
            evaluate.table(report),
            "```",
            "",
            "![acceptance by slot](acceptance.png)",
            "",
            "## Calibration",
            "",
            "`dspark calibrate`: a temperature T and an offset per slot and rule, fitted on every "
            f"second of {sum(fits['prompts'].values())} prompts.",
            "The error of survival on the others, before and after; greedy requests are matched "
            "alike under every rule:",
            "",
            "```",
            calibrate.table(fits | {"file": "calibration.json"}),
            "```",
            "",
            *(f"![{name}]({name})" for name in diagrams),
            "",
            "## Training",
            "",
            *_training(told),
            "",
            "![training](training.png)",
            "",
            "`python -m benchmarks.ship RUN` makes this folder of a training run.",
            "Weights: Apache-2.0, as the project and the target.",
            "",
        ]
    )


def _early(told: Mapping[str, Any]) -> list[str]:
    most = told["before"] + _blocks(told["training"])
    if most >= EARLY:
        return []
    return [
        f"An early version: at most {most:,} blocks were learned from, and acceptance was still "
        "rising when this was",
        "taken. On a processor where a verified token is dear it may not pay; the scheduler then "
        "decodes plainly.",
        "",
    ]


def _blocks(facts: Mapping[str, Any]) -> int:
    settings = facts["settings"]
    return int(facts["step"] * settings["batch"] * settings["anchors"])


def _training(told: Mapping[str, Any]) -> list[str]:
    facts, log = told["training"], told["log"]
    made = facts["settings"]
    held = [
        (step, tau)
        for step, tau in zip(log["step"], log.get("held_out_tau", ()), strict=False)
        if tau == tau
    ]
    lines = [
        f"{facts['step']} of {made['steps']} steps of {made['batch']} conversations with up to "
        f"{made['anchors']} blocks"
        f" each, on answers that the target wrote itself; {made['layers']} layers, blocks of "
        f"{made['block_size']},",
        f"Markov rank {made['markov_rank']}, {made['optimizer']}, rates {made['rate']:g} and "
        f"{made['matrix_rate']:g}, "
        f"schedule {made['schedule']}, {made['precision']}, seed {made['seed']}; "
        f"{facts['seconds'] / 3600:.1f} hours.",
    ]
    if made["start"]:
        lines.append(
            f"It started from the weights of an earlier version, which had seen {told['before']:,} "
            "blocks."
        )
    if held:
        points = ", ".join(f"{tau:.2f} after {step:.0f}" for step, tau in held[-3:])
        lines.append(
            f"Expected accepted length on {made['held_out']} held-out conversations: {points} "
            "steps."
        )
    return lines
