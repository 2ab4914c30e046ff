"""The lab's target and its finished runs, as they ship: later runs are then compared on the same target."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from training.lab.plan import Run
from training.lab.run import PACE, result_path


def lay_out(folder: Path, target: Path, results: Path, runs: Iterable[Run]) -> int:
    """Puts a shipped target and its results into an empty lab folder; returns how many runs need not be made again.

    Text is made again from the target, by the same seeds. Results at another pace are left out: their runs are due.
    A folder that has a target already is refused (ValueError), since its runs belong to that one.
    """
    place = folder / "target"
    if place.exists():
        raise ValueError(f"--start: {place} is there already, found while laying out {target}")
    place.mkdir(parents=True)
    shutil.copytree(target, place / "model")
    (place / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target / name, place / "tokenizer" / name)
    known = {found["name"]: found for found in json.loads(results.read_text(encoding="utf-8"))}
    kept = 0
    for run in runs:
        found = known.get(run.name)
        if found is not None and found["pace"] == asdict(PACE) | {"steps": PACE.steps * run.stretch}:
            path = result_path(folder, run)
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(found) + "\n", encoding="utf-8")
            kept += 1
    return kept
