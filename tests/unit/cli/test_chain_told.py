"""A chain that is done tells its results in JSON that strict parsers read, wherever it lies by
then."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import main
from dspark.cli.train import build_parser
from dspark.cli.train_all import NOTES, _identity, _read

RAN = {"tokens": 2, "tokens_per_second": 1.0, "tokens_per_round": 1.0}
# what the report reads of each stage; drafts that were never accepted have no ranking
STAGES: dict[str, dict[str, Any]] = {
    "split": {"train": 1, "calibrate": 2, "evaluate": 1},
    "regenerate": {"rows": 1, "tokens": 2, "failed": 0},
    "encode": {"samples": 1, "tokens": 2, "supervised": 2},
    "train": {"drafter": "d", "step": 1.0, "first_loss": 2.0, "loss": 1.0},
    "calibrate": {
        "fits": [{"mean_ece_before": 0.1, "mean_ece_after": 0.1, "auc_each": [0.5, math.nan]}]
    },
    "evaluate": {
        "family": "dspark", "block_size": 2, "rule": "token", "fit": {"said": ""},
        "temperatures": {},
    },
    "serve": {"same_ids": True, "prompts": 1, "drafting": RAN, "off": RAN},
}  # fmt: skip


def _finished(folder: Path, target: Path) -> list[str]:
    """Puts a finished chain into `folder`; returns the command that goes on with it."""
    out, prompts = folder / "chain", folder / "prompts.jsonl"
    prompts.write_text('{"token_ids": [3, 4]}\n', encoding="utf-8")
    words = ["all", "--prompts", str(prompts), "--target", str(target), "--out", str(out)]
    args = build_parser().parse_args(words)
    identity = _identity(args, *_read(args))
    files = {f"{name}_file": f"elsewhere/{name}" for name in ("train", "calibrate", "evaluate")}
    stages = {name: found | {"stage_seconds": 0.1} for name, found in STAGES.items()}
    stages["split"] |= files
    out.mkdir()
    (out / NOTES).write_text(json.dumps({"identity": identity, "stages": stages}))
    return ["train", *words, "--json"]


def test_what_has_no_figure_is_null(
    golden_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_finished(tmp_path, golden_target)) == 0
    for text in (capsys.readouterr().out, (tmp_path / "chain" / "report.json").read_text()):
        told = json.loads(text, parse_constant=pytest.fail)
        assert told["stages"]["calibrate"]["fits"][0]["auc_each"] == [0.5, None]


def test_a_chain_goes_on_where_it_is_now(
    golden_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, out = _finished(tmp_path, golden_target), tmp_path / "chain"
    notes = json.loads((out / NOTES).read_text())
    del notes["stages"]["evaluate"]
    (out / NOTES).write_text(json.dumps(notes))
    read: list[Path] = []

    def evaluated(*given: Any, **_: Any) -> dict[str, Any]:
        read.extend(given[2])
        return STAGES["evaluate"]

    monkeypatch.setattr("dspark.training.evaluate.evaluate", evaluated)
    assert main(words) == 0
    assert read == [out / "prompts" / "evaluate.jsonl"]
    assert f"--drafter {out / 'train' / 'drafter'}" in (out / "report.md").read_text()
