"""Tables, plots and raw figures of a lab of made-up results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from training.corpus import DOMAINS
from training.lab import report, results, tables, timing
from training.lab.plan import BLOCK, SEEDS, Run, dspark, plan
from training.lab.run import result_path

PLACES = report.all_tables({}, {})


def _write(folder: Path, run: Run, level: float) -> None:
    """A finished run whose tau is about `level` everywhere."""
    rng = np.random.default_rng(run.seed)
    rounds = 1024 * np.maximum(1, np.round(60 / (level + 0.1 * rng.standard_normal(30)))).astype(int)
    judged = {
        "prompts": [[int(count), 60 * 1024] for count in rounds],
        "survived": [int(rounds.sum() * 0.5**slot) for slot in range(1, run.block + 1)],
    }
    curve = [
        {"step": step, "loss": 3.0 / step, "held_out_loss": 3.0 / step, "held_out_tau": level - 1 / step}
        for step in range(1, 13)
    ]
    path = result_path(folder, run)
    path.parent.mkdir(parents=True)
    result = {
        "run": asdict(run),
        "name": run.name,
        "parameters": 1234,
        "seconds": 9.0,
        "curve": curve,
        "judged": {at: dict.fromkeys(DOMAINS, judged) for at in ("T=1", "T=0")},
    }
    path.write_text(json.dumps(result))


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Path:
    levels = {"dspark": 3.0, "dflash": 2.5, "eagle3": 2.0, "mtp": 1.5, "lm": 1.2}
    for run in plan():
        if run.block == BLOCK or run.family == "mtp":
            _write(tmp_path, run, levels[run.family] + 0.01 * run.layers)
    return tmp_path


def test_tables_hold_every_family_and_what_is_missing_stays_empty(lab: Path) -> None:
    found = results.read(lab)
    families = tables.families(found, "T=1")
    assert families.count("\n") == 1 + len(tables.NAMES)
    assert "DSpark, 5 layers | 3 | 3.0" in families
    comparisons = tables.comparisons(found, "T=1")
    assert comparisons.count("| yes |") == 4
    assert "DSpark, 5 layers less DFlash, 5 layers | +0.5" in comparisons
    rows = tables.blocks(found).splitlines()
    assert rows[2] == "| 3 |  |  |"
    assert rows[3].startswith("| 7 | 3.0")
    assert tables.slots(found, "T=1", "math").count("0.50") == 5 * BLOCK + 1
    for made in report.all_tables(found, {}).values():
        assert len({line.count("|") for line in made.splitlines()}) == 1


def test_a_lab_cut_short_still_has_tables(tmp_path: Path) -> None:
    _write(tmp_path, dspark(), 3.0)
    _write(tmp_path, dspark(seed=1), 3.1)
    _write(tmp_path, Run("dflash"), 2.5)
    found = results.read(tmp_path)
    assert "| 2 | 3.0" in tables.families(found, "T=0")
    assert "DFlash" in tables.comparisons(found, "T=1")
    assert len(SEEDS) == 3


def test_pages_are_renewed_between_their_marks_and_nowhere_else() -> None:
    page = "before\n<!-- lab:one -->\nold\n<!-- /lab -->\nbetween\n<!-- lab:two -->\n<!-- /lab -->\nafter\n"
    made = report.renewed(page, {"one": "| 1 |", "two": "| 2 |"})
    assert "old" not in made
    assert made.startswith("before\n<!-- lab:one -->\n\n| 1 |\n\n<!-- /lab -->\nbetween\n")
    assert made.endswith("| 2 |\n\n<!-- /lab -->\nafter\n")
    assert report.renewed(made, {"one": "| 1 |", "two": "| 2 |"}) == made


@pytest.mark.parametrize("tables_made", [{"one": ""}, {"one": "", "two": "", "three": ""}])
def test_a_page_and_tables_that_do_not_match_are_refused(tables_made: dict[str, str]) -> None:
    page = "<!-- lab:one -->\n<!-- /lab -->\n<!-- lab:two -->\n<!-- /lab -->\n"
    with pytest.raises(ValueError, match="places"):
        report.renewed(page, tables_made)


def test_the_report_writes_page_plots_and_raw_figures(lab: Path) -> None:
    page = lab / "results.md"
    page.write_text("".join(f"<!-- lab:{name} -->\n<!-- /lab -->\n" for name in PLACES))
    times = {"machine": {"cores": 2}, "milliseconds": {dspark().kind: {"1": 2.5, "16": 7.5}}}
    (lab / timing.FILE_NAME).write_text(json.dumps(times))
    report.write(lab, page, lab)
    assert "| DSpark, 5 layers | 2.50 | 7.50 |" in page.read_text()
    assert {path.name for path in (lab / "results").iterdir()} == {"acceptance.png", "curves.png", "ablations.png"}
    raw = json.loads((lab / "lab.json").read_text())
    assert raw["drafters"][dspark().kind]["tau"]["T=1"]["mean"]["middle"] == pytest.approx(3.05, abs=0.1)
    assert len(raw["differences at T=1"]) == 4
    runs = json.loads((lab / "lab_runs.json").read_text())
    assert len(runs) == sum(map(len, results.read(lab).values()))


def test_a_lab_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished run"):
        report.write(tmp_path, tmp_path / "page.md", tmp_path)


def test_the_page_of_the_project_has_a_place_for_every_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "results.md"
    report.renewed(page.read_text(encoding="utf-8"), PLACES)
