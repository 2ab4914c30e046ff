"""Targets of other kinds than plain decoders: their text is drawn side by side, and drafters are
trained for them."""

from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import load_drafter, load_target
from dspark.training import lockstep
from dspark.training.fitting import fit
from dspark.training.trainer import train_drafter
from tests.architectures.families import FAMILIES, model_of
from tests.architectures.serving import prompt
from tests.unit.training.pipeline import random_samples, short_run

# The last two: values smaller than keys; a class whose decoder, as it says, is itself.
KINDS = ("deepseek_v4", "lfm2", "mamba2", "gpt2", "deepseek_v2", "llama4")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model_of(FAMILIES[request.param]).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_texts_drawn_side_by_side_are_those_of_the_library(target: Path) -> None:
    model = load_target(target).model
    prompts = [prompt(18 + seed, seed) for seed in range(3)]
    drawn = lockstep.generate(model, prompts=prompts, total=36)
    alone = [
        model.generate(torch.tensor([ids]), max_length=36, do_sample=False)[0].tolist()
        for ids in prompts
    ]
    assert drawn.tolist() == alone


def test_a_drafter_is_trained_and_tried(target: Path, tmp_path: Path) -> None:
    samples = random_samples(tmp_path / "samples.safetensors")
    folder = train_drafter(short_run(samples, target, tmp_path / "run", family="dspark", steps=2))
    drafter = load_drafter(folder, target=target)
    assert drafter.config.family == "dspark"
    assert fit(load_target(target), drafter, [prompt(20, 1)]).places >= 40
