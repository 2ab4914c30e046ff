"""A shipped target and its published runs become the beginning of a lab."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from training.corpus import DOMAINS, Document
from training.lab import shipped, target
from training.lab.plan import dspark
from training.lab.run import PACE, read_result
from training.lab.target import Shape, build

SHAPE = Shape(vocabulary=64, hidden=32, mlp=48, heads=2, kv_heads=1, head_dim=16, layers=2)
RUN, OTHER, SHORT = dspark(), dspark(seed=1), dspark(seed=2)


@pytest.fixture(name="target_folder")
def fixture_target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shipped"
    build(SHAPE, layers=SHAPE.layers, seed=0).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes(((Path(__file__).parents[3] / "models/lab-target") / name).read_bytes())
    return folder


@pytest.fixture(name="published")
def fixture_published(tmp_path: Path) -> Path:
    path = tmp_path / "lab_runs.json"
    paces = {RUN.name: asdict(PACE), SHORT.name: asdict(PACE) | {"steps": PACE.steps - 1}}
    path.write_text(json.dumps([{"name": name, "pace": pace} for name, pace in paces.items()]))
    return path


def test_runs_at_the_pace_of_today_are_kept(tmp_path: Path, target_folder: Path, published: Path) -> None:
    lab = tmp_path / "lab"
    assert shipped.lay_out(lab, target_folder, published, [RUN, OTHER, SHORT]) == 1
    assert read_result(lab, RUN) == {"name": RUN.name, "pace": asdict(PACE)}
    assert read_result(lab, OTHER) is None
    assert read_result(lab, SHORT) is None


def test_the_target_is_taken_as_it_is(
    tmp_path: Path, target_folder: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    shipped.lay_out(lab, target_folder, published, [])
    documents = [
        Document(domain, "a", held_out, "some text. " * 40) for domain in DOMAINS for held_out in (False, True)
    ]
    monkeypatch.setattr(target.corpus, "collect", lambda seed: documents)
    found, streams = target.prepare(lab / "target", SHAPE)
    built = build(SHAPE, layers=SHAPE.layers, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), built.parameters(), strict=True))
    assert set(streams) == {f"{domain}/{split}" for domain in DOMAINS for split in ("train", "held-out")}


def test_a_lab_that_has_a_target_keeps_it(tmp_path: Path, target_folder: Path, published: Path) -> None:
    shipped.lay_out(tmp_path / "lab", target_folder, published, [])
    with pytest.raises(ValueError, match="--start"):
        shipped.lay_out(tmp_path / "lab", target_folder, published, [])
