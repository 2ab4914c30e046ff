"""The target trainer is a function of (tokens, recipe): interrupted or not."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from training import target, tokenizer, tokens
from training.arithmetic import worksheet
from training.corpus import DOMAINS, Document

RECIPE = target.Recipe(
    steps=6, hidden=64, layers=2, heads=1, kv_heads=1, mlp=64, context=128, rows=4, length=16, long_length=32,
    long_share=0.34, warmup=2, evaluate_every=3, save_every_s=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return tokenizer.train([Document("math", "a", False, worksheet(random.Random(0), 4))], vocabulary=300)


@pytest.fixture(scope="module")
def streams() -> dict[str, tokens.Ids]:
    rng = np.random.default_rng(0)
    splits = ("train", "held-out")
    return {f"{d}/{s}": rng.integers(5, 300, 2000).astype(np.uint16) for d in DOMAINS for s in splits}


class Stopped(Exception):
    pass


def test_a_resumed_run_ends_in_the_same_parameters(
    tmp_path: Path, trained: PreTrainedTokenizerFast, streams: dict[str, tokens.Ids], monkeypatch: pytest.MonkeyPatch
) -> None:
    target.train(streams, trained, RECIPE, tmp_path / "whole")
    original = tokens.batch

    def interrupted(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        if step == 3:
            raise Stopped
        return original(*args, step=step, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(tokens, "batch", interrupted)
        with pytest.raises(Stopped):
            target.train(streams, trained, RECIPE, tmp_path / "parts")
    target.train(streams, trained, RECIPE, tmp_path / "parts")
    whole, parts = (load_file(tmp_path / name / "state.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, parts[name]), name


def test_an_epoch_reads_every_chunk_once(streams: dict[str, tokens.Ids]) -> None:
    stream = np.arange(4096, dtype=np.uint16)
    own = streams | {f"{domain}/train": stream for domain in DOMAINS}
    rows = [tokens.batch(own, seed=0, step=step, rows=4, length=16) for step in range(200)]
    starts = [int(start) for start in torch.cat([batch[:2, 0] for batch in rows])]
    chunks = len(stream) // 16 - 1
    assert len(set(starts[:chunks])) == chunks
    assert all(torch.equal(row, torch.arange(int(row[0]), int(row[0]) + 16)) for row in rows[0])


def test_the_last_steps_read_long_sequences() -> None:
    shapes = [target.shape_at(step, 6, RECIPE) for step in range(6)]
    assert shapes == [(4, 16)] * 4 + [(2, 32)] * 2
    assert target.shape_at(0, 6, replace(RECIPE, long_share=0.0)) == (4, 16)
