"""Renews the tables and plots of the results page, and the raw figures, from the runs that are finished.

The page is prose with places for tables: everything between `<!-- lab:NAME -->` and `<!-- /lab -->` is replaced.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.lab import pictures, results, tables
from training.lab.plan import plan
from training.lab.results import Results
from training.lab.run import PACE
from training.lab.statistics import differences, intervals
from training.lab.target import SHAPE
from training.lab.timing import read_times

_PLACE = re.compile(r"(<!-- lab:([\w-]+) -->\n).*?(<!-- /lab -->)", re.DOTALL)


def renewed(page: str, made: Mapping[str, str]) -> str:
    """The page with every table it has a place for; a place nobody fills is an error, and so is a table unplaced."""
    places = [match.group(2) for match in _PLACE.finditer(page)]
    if sorted(places) != sorted(made):
        raise ValueError(f"the page has places for {sorted(places)}, the tables are {sorted(made)}")
    return _PLACE.sub(lambda match: f"{match.group(1)}\n{made[match.group(2)]}\n\n{match.group(3)}", page)


def all_tables(found: Results, milliseconds: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    return {
        "families-hot": tables.families(found, tables.HOT),
        "families-greedy": tables.families(found, tables.GREEDY),
        "comparisons": tables.comparisons(found, tables.HOT),
        "slots": tables.slots(found, tables.HOT, "math"),
        "depths": tables.depths(found),
        "blocks": tables.blocks(found),
        "heads": tables.heads(found),
        "training": tables.training(found),
        "speed": tables.speed(milliseconds),
    }


def summary(found: Results, times: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the tables, for programs."""
    by_kind = {
        kind: {
            "seeds": [result["run"]["seed"] for result in same],
            "parameters": same[0]["parameters"],
            "tau": {
                at: {domain: asdict(value) for domain, value in intervals(results.of_seeds(same, at)).items()}
                for at in (tables.HOT, tables.GREEDY)
            },
            "ms_a_block": times["milliseconds"].get(kind),
        }
        for kind, same in found.items()
    }
    gaps = {
        f"{ours} less {theirs}": {
            domain: asdict(value)
            for domain, value in differences(
                *(results.of_seeds(found[kind], tables.HOT)[: _common(found, ours, theirs)] for kind in (ours, theirs))
            ).items()
        }
        for ours, theirs in tables.RIVALS
        if ours in found and theirs in found
    }
    return {
        "target": asdict(SHAPE),
        "pace": asdict(PACE),
        "machine of the times": times["machine"],
        "drafters": by_kind,
        "differences at T=1": gaps,
    }


def _common(found: Results, *kinds: str) -> int:
    return min(len(found[kind]) for kind in kinds)


def write(folder: Path, page: Path, raw: Path) -> None:
    """Tables into `page`, plots beside it, raw figures into `raw`."""
    found, times = results.read(folder), read_times(folder)
    if not found:
        raise SystemExit(f"{folder}: no finished run")
    page.write_text(
        renewed(page.read_text(encoding="utf-8"), all_tables(found, times["milliseconds"])), encoding="utf-8"
    )
    beside = page.parent / page.stem
    beside.mkdir(exist_ok=True)
    pictures.acceptance(found, beside / "acceptance.png")
    pictures.curves(found, beside / "curves.png")
    pictures.ablations(found, beside / "ablations.png")
    (raw / "lab.json").write_text(json.dumps(summary(found, times), indent=1) + "\n", encoding="utf-8")
    # One line a run: counts by prompt and the whole curve.
    lines = [json.dumps(result) for same in found.values() for result in same]
    (raw / "lab_runs.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{len(lines)} of {len(plan())} runs are in {page} and {raw}/lab*.json")
