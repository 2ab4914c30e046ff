"""A setting, drawn and judged; rows that can be kept and gone on from."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import note
from tests.wire_law.expected import Floats, answer_law
from tests.wire_law.sampling import Sampled, sample
from tests.wire_law.settings import LENGTH, PARAMETERS, PROMPTS, SETTINGS, VOCABULARY, Setting
from tests.wire_law.statistics import holm, p_values

P_BAR, TOKENS_BAR = 0.001, 1.8


@cache
def laws(target: Path, kind: str) -> tuple[Floats, ...]:
    """Of both prompts, at one kind of sampling parameters."""
    return tuple(answer_law(target, prompt, PARAMETERS[kind], length=LENGTH) for prompt in PROMPTS)


def judge(target: Path, setting: Setting, sampled: Sampled) -> dict[str, Any]:
    """One row: every p-value as it is, tokens a round, and how many drafts were kept."""
    found: dict[str, float] = {}
    counts = np.zeros((len(PROMPTS), *[VOCABULARY] * LENGTH), np.int64)
    for (number, ids), count in sampled.answers.items():
        counts.flat[np.ravel_multi_index((number, *ids), counts.shape)] = count
    for number, law in enumerate(laws(target, setting.kind)):
        told = p_values(law, counts[number].ravel(), vocabulary=VOCABULARY, length=LENGTH)
        found |= {f"prompt {number + 1}, {name}": value for name, value in told.items()}
    return {
        "setting": setting.name,
        "answers": sampled.answers.total(),
        "tokens_a_round": round(sampled.tokens_a_round, 3),
        "accepted": sampled.accepted,
        "verified": sampled.verified,
        "p": found,
    }


def corrected(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """The smallest p-value of every row after Holm's correction over all values of all rows."""
    rows = list(rows)
    values = iter(holm([value for row in rows for value in row["p"].values()]))
    return [min(next(values) for _ in row["p"]) for row in rows]


def draw(
    endpoint: str,
    target: Path,
    draws: int,
    *,
    seed: int,
    settings: Sequence[Setting] = SETTINGS,
    kept: Path | None = None,
) -> list[dict[str, Any]]:
    """Rows of all settings; those in `kept` are not drawn again, new ones are added to it as they
    come."""
    known: dict[str, dict[str, Any]] = {}
    if kept is not None and kept.is_file():
        rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
        known = {row["setting"]: row for row in rows if row["answers"] >= draws}
    for number, setting in enumerate(settings):
        if setting.name in known:
            continue
        sampled = sample(
            endpoint, PROMPTS, draws, first_seed=seed + number * draws, **setting.asked
        )
        known[setting.name] = judge(target, setting, sampled)
        note(f"{setting.name}: {sampled.answers.total()} answers")
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[setting.name]) + "\n")
    return [known[setting.name] for setting in settings]
