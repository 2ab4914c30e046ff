"""Two workers placed by Ray Train train as one does, by the command a user types."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dspark.training.settings import Settings
from dspark.training.trainer import train_drafter
from tests.commands import dspark
from tests.unit.training.pipeline import check_curves, random_samples, short_run

pytestmark = pytest.mark.ray


@pytest.mark.slow
def test_two_ray_workers_write_the_curve_of_one(golden_target: Path, tmp_path: Path) -> None:
    samples = random_samples(tmp_path / "samples.safetensors")
    alone = short_run(samples, golden_target, tmp_path / "alone", steps=3, rate=1e-3)
    both = short_run(samples, golden_target, tmp_path / "both", steps=3, rate=1e-3)
    words = ["drafter", both.samples, "--workers", "2", "--json"]
    usual = asdict(Settings(target="", samples="", out=""))
    for name, value in asdict(both).items():
        if name != "samples" and value != usual[name]:
            words += [f"--{name.replace('_', '-')}", str(value)]
    home = {"DSPARK_HOME": str(tmp_path / "home")}
    said = dspark("train", *words, environment=home, within_s=280)
    assert json.loads(said)["drafter"] == str(Path(both.out) / "drafter")
    train_drafter(alone)
    check_curves(alone, both)
