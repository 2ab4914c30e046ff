"""The card of the shipped drafter: what it was trained on, how sure it is, how much of it the
target accepts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

EARLY = 1_500_000  # blocks below which a drafter of this size is still learning fast


def card(told: Mapping[str, Any], *, rows: int, tokens: int) -> str:
    """Text of README.md. told: the facts of a training state, the reports of `calibrate` and
    `evaluate`, the run's log."""
    report = told["evaluation"]
    asked = f"{rows} prompts a domain" if rows else "all prompts"
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
            f"{asked} of `dspark/loadgen/questions`, at most {tokens} new tokens, whole blocks "
            "verified under the",
            f"rule `{report['rule']}`. tau counts the target's own token. Beside it the chance "
            "that a slot is accepted",
            "when the one before it was. Answers in which a run of eight tokens comes twice are "
            "easy to draft: their",
            "number, and tau without them.",
            "",
            *_taus(report),
            "",
            "![acceptance by slot](acceptance.png)",
            "",
            "## Calibration",
            "",
            *_fits(told["calibration"]),
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


def _taus(report: Mapping[str, Any]) -> list[str]:
    slots = range(1, report["block_size"] + 1)
    head = [
        "| domain | T | tau | "
        + " | ".join(f"slot {slot}" for slot in slots)
        + " | loops | tau without |"
    ]
    lines = [*head, "| --- |" + " ---: |" * (len(slots) + 4)]
    for temperature, part in report["temperatures"].items():
        for row in part["datasets"].values():
            lines.append(_row(row["domain"], temperature, row["tau"], row["conditional"], row))
        mean = part["mean"]
        sets = part["datasets"].values()
        mean = {
            **mean,
            "loops": sum(row["loops"] for row in sets),
            "texts": sum(row["texts"] for row in sets),
        }
        lines.append(_row("mean", temperature, mean["tau"], [math.nan] * len(slots), mean))
    return lines


def _row(
    domain: str, temperature: str, tau: float, by_slot: Sequence[float], row: Mapping[str, Any]
) -> str:
    shares = " | ".join("" if math.isnan(share) else f"{share:.2f}" for share in by_slot)
    told = f"{row['loops']} of {row['texts']} | {row['tau_without_loops']:.2f}"
    return f"| {domain} | {temperature.removeprefix('T=')} | {tau:.2f} | {shares} | {told} |"


def _fits(report: Mapping[str, Any]) -> list[str]:
    prompts = sum(report["prompts"].values())
    lines = [
        "`calibration.json` holds a temperature and an offset per slot and rule, fitted on every "
        f"second of {prompts}",
        "prompts. The error of survival (expected calibration error: mean over the slots, and of "
        "the worst one) on the",
        "others; greedy requests are matched alike under every rule:",
        "",
        "| rule | requests | rounds | mean before | mean after | worst after |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for fit in report["fits"]:
        lines.append(
            f"| {fit['rule']} | {fit['bucket']} | {fit['rounds_measured']:,} | "
            f"{fit['mean_ece_before']:.1%} | "
            f"{fit['mean_ece_after']:.1%} | {max(fit['after']['ece']):.1%} |"
        )
    if any(fit["few_rounds"] for fit in report["fits"]):
        lines += [
            "",
            "Few rounds: about as much of an error as is left would be seen on them by chance.",
        ]
    names = [
        "greedy" if f["bucket"] == "greedy" else f"{f['rule']}-{f['bucket']}"
        for f in report["fits"]
    ]
    return [*lines, "", *(f"![{name}](reliability-{name}.png)" for name in names)]


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
