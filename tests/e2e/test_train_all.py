"""The whole chain on a target it has never seen: a folder and prompts in, a serving drafter and a
report out."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.model.checkpoint import load_drafter

PAIR = Path(__file__).parents[1] / "data" / "pair"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["dspark", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_a_target_and_prompts_become_a_serving_drafter_and_a_report(
    family: str, golden_target: Path, tmp_path: Path
) -> None:
    rng, prompts, out = random.Random(0), tmp_path / "prompts.jsonl", tmp_path / "chain"
    rows = [
        {"token_ids": [rng.randrange(2, 128) for _ in range(rng.randrange(4, 12))]}
        for _ in range(24)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "dspark.cli.main",
        "train",
        "all",
        "--json",
        "--prompts",
        str(prompts),
    ]
    words += [
        "--target",
        str(golden_target),
        "--out",
        str(out),
        "--family",
        family,
        "--held-out-share",
        "0.2",
    ]
    words += [
        "--steps",
        "6",
        "--layers",
        "1",
        "--batch",
        "6",
        "--anchors",
        "6",
        "--markov-rank",
        "4",
    ]
    words += [
        "--block-size",
        "3",
        "--held-out",
        "2",
        "--log-every",
        "2",
        "--cache",
        "--ask-max-tokens",
        "20",
    ]
    words += ["--min-supervised", "4", "--answer-tokens", "16", "--device", "cpu"]

    def chain() -> dict[str, object]:
        done = subprocess.run(words, capture_output=True, text=True, timeout=1000, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    first = chain()
    assert load_drafter(out / "train" / "drafter").config.family == family
    stages = first["stages"]
    assert isinstance(stages, dict)
    wanted = {"split", "regenerate", "encode", "cache", "train", "evaluate", "serve"}
    assert set(stages) == wanted | ({"calibrate"} if family == "dspark" else set())
    assert stages["serve"]["same_ids"]
    assert (out / "train" / "drafter" / "calibration.json").exists() == (family == "dspark")
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "dspark up" in report
    assert (out / "train" / "loss.png").exists()
    assert chain()["stages"] == stages  # nothing is done twice


@pytest.mark.slow
def test_a_target_with_a_tokenizer_takes_prompts_as_text(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"def number_{n}(self"}) + "\n" for n in range(24))
    )
    words = [
        "--target",
        str(PAIR / "target"),
        "--prompts",
        str(prompts),
        "--out",
        str(tmp_path / "chain"),
    ]
    words += [
        "--steps",
        "3",
        "--layers",
        "1",
        "--batch",
        "4",
        "--anchors",
        "4",
        "--markov-rank",
        "4",
    ]
    words += [
        "--block-size",
        "3",
        "--held-out",
        "2",
        "--held-out-share",
        "0.2",
        "--min-supervised",
        "4",
    ]
    words += ["--ask-max-tokens", "16", "--answer-tokens", "8", "--device", "cpu"]
    command = [sys.executable, "-m", "dspark.cli.main", "train", "all", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert load_drafter(found["drafter"]).config.family == "dspark"
    assert found["stages"]["serve"]["same_ids"]
    assert Path(found["report"]).exists()
