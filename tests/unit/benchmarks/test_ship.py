"""The shipped drafter's folder is made of a training run by one command, whether the run has ended
or not."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import ship
from dspark.model.calibration import load_calibration
from dspark.model.checkpoint import load_drafter
from dspark.training.disk import write_rows
from dspark.training.trainer import train_drafter
from tests.unit.training.pipeline import random_samples, short_run


def test_a_run_becomes_the_folder_that_ships(
    golden_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = random_samples(tmp_path / "samples.safetensors")
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(list(range(2, 100))))
    drafter = {"family": "dspark", "block_size": 3, "keep_tokens": str(kept)}
    train_drafter(short_run(samples, golden_target, tmp_path / "run", steps=2, **drafter))
    asked = tmp_path / "made-up.jsonl"
    rows = [{"turns": [[3 + n, 7, 9 + n, 11]], "domain": "made up"} for n in range(4)]
    write_rows(asked, rows)
    words = f"{tmp_path}/run --target {golden_target} --tokens 10 --rows 0 --prompts {asked} "
    words += f"--datasets {asked} --keep {tmp_path}/answers --out "
    out = tmp_path / "models" / "shipped"
    out.mkdir(parents=True)
    (out / "of-another-version").touch()
    assert ship.main(f"{words} {out}".split()) == 0
    assert {path.name for path in out.parent.iterdir()} == {"shipped"}
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "calibration.json", "metrics.json", "README.md",
        "training.csv",
        "training.png", "acceptance.png", "reliability-greedy.png",
        "reliability-token-sampled.png",
        "reliability-block-sampled.png", "reliability-coupled-sampled.png",
    }  # fmt: skip
    assert (
        not {"embed_tokens.weight", "lm_head.weight"} & load_file(out / "model.safetensors").keys()
    )
    assert load_file(out / "model.safetensors")["fc.weight"].dtype is torch.bfloat16
    assert load_drafter(out, target=golden_target).config.head_size == 98
    assert set(load_calibration(out, block_size=3).rules) == {"token", "block", "coupled"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "An early version: at most 48 blocks" in card
    for row in ("T=0   made-up ", "T=1   all ", "all greedy: mean ", "coupled sampled: mean "):
        assert row in card
    assert str(tmp_path) not in card + (out / "metrics.json").read_text(encoding="utf-8")
    shutil.rmtree(tmp_path / "run" / "drafter")  # as before its last step
    assert ship.main(f"{words} {tmp_path}/again".split()) == 0
    assert "its state after 2 steps" in capsys.readouterr().err
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "again"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_folder_that_is_no_run_is_refused_and_what_ships_stays(
    tmp_path: Path, golden_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").touch()
    words = f"{tmp_path}/nothing --target {golden_target} --out {tmp_path}/out"
    assert ship.main(words.split()) == 1
    assert "nothing: no state.safetensors" in capsys.readouterr().err
    assert (tmp_path / "out" / "weights").exists()
