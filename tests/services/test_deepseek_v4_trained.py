"""A drafter of DeepSeek-V4's kind is trained for a tiny target of that kind, and serves it."""

import csv
from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import load_drafter
from dspark.model.staged import StagedDrafter
from dspark.training.samples import Sample, write_samples
from dspark.training.trainer import train_drafter
from tests.architectures.families import FAMILIES, model_of
from tests.architectures.serving import prompt
from tests.services.cell import Cell
from tests.unit.training.pipeline import short_run

pytestmark = pytest.mark.slow

PROMPTS, LENGTH, ANSWER = 24, 20, 24


async def test_it_learns_is_saved_and_is_accepted(tmp_path: Path) -> None:
    model = model_of(FAMILIES["deepseek_v4"])
    model.save_pretrained(tmp_path / "target")
    prompts = [prompt(LENGTH, number) for number in range(PROMPTS)]
    texts = [
        model.generate(torch.tensor([ids]), max_new_tokens=ANSWER, do_sample=False)[0]
        for ids in prompts
    ]
    write_samples(
        tmp_path / "samples", (Sample(text, torch.arange(len(text)) >= LENGTH) for text in texts)
    )
    told = {
        "family": "dspark",
        "layers": 0,
        "block_size": 5,
        "steps": 40,
        "batch": PROMPTS,
        "optimizer": "muon",
    }
    run = short_run(
        tmp_path / "samples",
        tmp_path / "target",
        tmp_path / "run",
        held_out=0,
        evaluate_every=40,
        **told,
    )
    folder = train_drafter(run)
    with (tmp_path / "run" / "log.csv").open() as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < 0.7 * losses[0]
    drafter = load_drafter(folder)
    assert isinstance(drafter, StagedDrafter)
    assert (drafter.config.num_hidden_layers, drafter.target_layer_ids) == (3, (1, 2, 3))
    async with Cell(tmp_path / "target", folder) as cell:
        coordinator = await cell.whole()
        client = cell.client(coordinator)
        for ids, text in zip(prompts[:4], texts, strict=False):
            options = {
                "max_tokens": ANSWER,
                "temperature": 0.0,
                "ignore_eos": True,
                "policy": "fixed:5",
            }
            answer = await client.complete(ids, timeout=60.0, **options)
            assert list(answer.token_ids) == text[LENGTH:].tolist()
        value = coordinator.metrics.value
        assert (
            value("spec_decode_num_accepted_tokens_total")
            > value("spec_decode_num_draft_tokens_total") / 4
        )
