"""A drafter that does not fit is told by what it makes of its target: taps off by one, or nothing
accepted at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.cli.main import main
from dspark.model.checkpoint import load_drafter, load_target
from dspark.training.fitting import Fit, Gain, fit, held_prompts
from tests.unit.model.golden import altered

PAIR = Path(__file__).parents[2] / "data" / "pair"


@pytest.fixture(scope="module")
def off_by_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped pair's drafter, whose file names the layer before the one it was trained on."""

    def one_before(settings: dict[str, Any]) -> None:
        settings["target_layer_ids"] = [layer - 1 for layer in settings["target_layer_ids"]]

    return altered(tmp_path_factory.mktemp("off") / "drafter", one_before, of=PAIR / "drafter")


def tried(folder: Path, prompts: int) -> Fit:
    """A drafter's with the pair's target."""
    target = load_target(PAIR / "target")
    return fit(target, load_drafter(folder, target=PAIR / "target"), held_prompts(target, prompts))


def test_the_right_taps_fit_and_the_layer_before_is_named(off_by_one: Path) -> None:
    right = tried(PAIR / "drafter", 8)
    assert right.fits, str(right)
    assert right.places >= 8 * 40
    wrong = tried(off_by_one, 8)
    assert wrong.off_by == 1
    assert not wrong.fits
    assert "its taps are off by one: from layers 1 instead of 0" in str(wrong)


def test_a_drafter_of_nothing_is_told() -> None:
    target = load_target(PAIR / "target")
    drafter = load_drafter(PAIR / "drafter", target=PAIR / "target")
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    found = fit(target, drafter, held_prompts(target, 4))
    assert not found.fits
    assert (
        f"accepted 1.{round(100 * (found.accepted - 1)):02d} of 7: this drafter does not fit"
        in str(found)
    )


def test_taps_off_by_two_are_named_as_that(tmp_path: Path) -> None:
    folder = altered(tmp_path / "drafter", {"target_layer_ids": [-1]}, of=PAIR / "drafter")
    assert "its taps are off by two: from layers 1 instead of -1" in str(tried(folder, 8))


def test_a_drafter_of_other_ids_is_not_told_of_its_taps() -> None:
    target = load_target(PAIR / "target")
    drafter = load_drafter(PAIR / "drafter", target=PAIR / "target")
    state = drafter.state_dict()
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        state[name].copy_(state[name].roll(7, 0))
    found = fit(target, drafter, held_prompts(target, 16))
    assert found.accepted < 1.1
    assert found.off_by is None
    assert not found.fits


def test_a_gain_that_could_be_chance_names_no_layer() -> None:
    def found(gain: Gain) -> Fit:
        return Fit(7, (1,), 2.0, {1: gain}, 300)

    assert found(Gain(0.1, 0.01, 2.1)).off_by == 1
    assert found(Gain(0.1, 0.03, 2.1)).off_by is None
    assert found(Gain(0.005, 0.0001, 2.1)).off_by is None
    assert found(Gain(-0.3, 0.01, 1.9)).fits


def test_the_doctor_tries_the_pair_when_asked(
    off_by_one: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*options: str) -> dict[str, Any]:
        main([*f"doctor --json --target {PAIR}/target --drafter {off_by_one}".split(), *options])
        return {row["what"]: row for row in json.loads(capsys.readouterr().out)["findings"]}

    assert "acceptance" not in found()
    row = found("--acceptance")["acceptance"]
    assert row["level"] == "warn"
    assert "off by one" in row["said"]
