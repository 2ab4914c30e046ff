"""A target the chain has never seen and prompts in, a serving drafter and a report out."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dspark.model.checkpoint import load_drafter
from tests.commands import dspark
from tests.faults.pair import TARGET

SHORT = "--layers 1 --anchors 4 --markov-rank 4 --block-size 3 --held-out 2 --held-out-share 0.2"
LEAST = "--min-supervised 4 --device cpu"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def chain(folder: Path, target: Path, prompts: list[dict[str, Any]], more: str) -> dict[str, Any]:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts), encoding="utf-8")
    files = ("--target", str(target), "--prompts", str(file), "--out", str(folder / "chain"))
    words = f"{SHORT} {LEAST} {more}".split()
    return dict(json.loads(dspark("train", "all", "--json", *files, *words, within_s=1000)))


@pytest.mark.parametrize("family", ["dspark", "eagle3"])
def test_a_target_and_prompts_become_a_serving_drafter_and_a_report(
    family: str, golden_target: Path, tmp_path: Path
) -> None:
    rng, out = random.Random(0), tmp_path / "chain"
    prompts = [
        {"token_ids": [rng.randrange(2, 128) for _ in range(rng.randrange(4, 12))]}
        for _ in range(24)
    ]
    more = (
        f"--family {family} --steps 6 --batch 6 --log-every 2 --cache --ask-max-tokens 20 "
        "--answer-tokens 16"
    )
    stages = chain(tmp_path, golden_target, prompts, more)["stages"]
    assert load_drafter(out / "train" / "drafter").config.family == family
    wanted = {"split", "regenerate", "encode", "cache", "train", "calibrate", "evaluate", "serve"}
    assert set(stages) == wanted
    assert stages["serve"]["same_ids"]
    assert (out / "train" / "drafter" / "calibration.json").exists()
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "dspark up" in report
    assert (out / "train" / "loss.png").exists()
    again = chain(tmp_path, golden_target, prompts, more)
    assert again["stages"] == stages  # nothing is done twice


def test_a_target_with_a_tokenizer_takes_prompts_as_text(tmp_path: Path) -> None:
    prompts = [{"prompt": f"def number_{n}(self"} for n in range(24)]
    more = "--steps 3 --batch 4 --ask-max-tokens 16 --answer-tokens 8"
    found = chain(tmp_path, TARGET, prompts, more)
    assert load_drafter(found["drafter"]).config.family == "dspark"
    assert found["stages"]["serve"]["same_ids"]
    assert Path(found["report"]).exists()
