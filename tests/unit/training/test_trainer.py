"""A run is a function of its settings: not of where it stopped, of its pieces, nor of where features come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark.errors import ConfigError
from dspark.model.checkpoint import load_drafter
from tests.unit.training.pipeline import COLUMNS, random_samples, short_run
from training.caching import make_cache, plan_for
from training.record import Log
from training.settings import FAMILIES, Settings
from training.trainer import LOG, train_drafter

pytestmark = pytest.mark.usefixtures("golden_target")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_samples(tmp_path_factory.mktemp("samples") / "samples.safetensors")


class Stopped(Exception):
    pass


def _curve(settings: Settings) -> dict[str, list[float]]:
    log = Log(Path(settings.out) / LOG).read()
    return {name: log[name] for name in COLUMNS}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stopped_run_goes_on_to_the_same_bits(
    family: str, samples: Path, golden_target: Path, tmp_path: Path
) -> None:
    whole = short_run(samples, golden_target, tmp_path / "whole", family=family)
    parts = replace(whole, out=str(tmp_path / "parts"))
    folder = train_drafter(whole)
    assert load_drafter(folder).config.family == family

    def stop(done: int, steps: int, shown: Mapping[str, float]) -> None:
        if done == 3:  # a step after the last state: it has to be done again
            raise Stopped

    with pytest.raises(Stopped):
        train_drafter(parts, on_step=stop)
    assert Log(Path(parts.out) / LOG).read()["step"] == [1, 2, 3]
    train_drafter(parts)
    assert repr(_curve(whole)) == repr(_curve(parts))
    ends = [load_file(Path(settings.out) / "drafter" / "model.safetensors") for settings in (whole, parts)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


@pytest.mark.parametrize("family", ["dspark", "eagle3", "mtp", "lm"])
def test_how_a_step_is_cut_into_pieces_changes_rounding_only(
    family: str, samples: Path, golden_target: Path, tmp_path: Path
) -> None:
    curves = []
    for pieces in (1, 70, 4096):
        settings = short_run(
            samples, golden_target, tmp_path / str(pieces), family=family, micro_tokens=pieces, steps=2, rate=1e-3
        )
        train_drafter(settings)
        curves.append(_curve(settings))
    for other in curves[1:]:
        for name in COLUMNS:
            assert other[name] == pytest.approx(curves[0][name], rel=2e-4, nan_ok=True)


def test_a_cache_gives_the_curve_of_the_target_beside_the_drafter(
    samples: Path, golden_target: Path, tmp_path: Path
) -> None:
    online = short_run(samples, golden_target, tmp_path / "online", steps=2)
    cached = replace(online, out=str(tmp_path / "cached"), cache=str(tmp_path / "cache"))
    make_cache(cached, plan_for(cached, "float32"), tmp_path / "cache")
    train_drafter(online)
    train_drafter(cached)
    wanted, found = _curve(online), _curve(cached)
    for name in COLUMNS:
        assert found[name] == pytest.approx(wanted[name], rel=2e-4, nan_ok=True)


def test_a_run_goes_on_under_its_own_settings_and_samples_only(
    samples: Path, golden_target: Path, tmp_path: Path
) -> None:
    settings = short_run(samples, golden_target, tmp_path / "run", steps=2)
    train_drafter(settings)
    with pytest.raises(ConfigError, match=r"rate: .* was begun with"):
        train_drafter(replace(settings, rate=1e-4))
    other = random_samples(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(ConfigError, match=r"samples: .* was begun with other samples"):
        train_drafter(replace(settings, samples=str(other)))


@pytest.mark.parametrize(
    ("change", "field"),
    [({"family": "gpt"}, "family"), ({"batch": 0}, "batch"), ({"rate": 0.0}, "rate"), ({"warmup": 1.0}, "warmup")],
)
def test_a_wrong_setting_is_named(change: dict[str, object], field: str, samples: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        short_run(samples, tmp_path, tmp_path, **change)


def test_layers_and_taps_that_do_not_fit_are_named(samples: Path, golden_target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^layers: "):
        train_drafter(short_run(samples, golden_target, tmp_path, family="eagle3", layers=2))
    with pytest.raises(ConfigError, match=r"^taps: "):
        train_drafter(short_run(samples, golden_target, tmp_path, taps=(1, 99)))


def test_the_loss_falls_on_text_that_can_be_learned(golden_target: Path, samples: Path, tmp_path: Path) -> None:
    settings = short_run(samples, golden_target, tmp_path, steps=30, batch=12, optimizer="muon", evaluate_every=30)
    train_drafter(settings)
    curve = _curve(settings)
    assert curve["loss"][-1] < 0.8 * curve["loss"][0]
