"""A deepened twin computes what its target computes, and the fitted drafter sees the same features."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.pair import Pair
from benchmarks.twin import build
from dspark.model.checkpoint import load_drafter

IDS = torch.tensor([[5, 17, 99, 3, 42, 8, 8, 61, 120, 7]])


def test_logits_and_tapped_layers_of_the_twin_are_those_of_the_target_bit_for_bit(
    golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    twin = build(Pair(golden_target, golden_drafter), times=3, out=tmp_path).pair
    taps, deep_taps = (_config(folder)["target_layer_ids"] for folder in (golden_drafter, twin.drafter))
    logits, states = _run(golden_target)
    deep_logits, deep_states = _run(twin.target)
    assert len(deep_states) - 1 == 3 * (len(states) - 1)
    assert torch.equal(logits, deep_logits)
    for tap, deep_tap in zip(taps, deep_taps, strict=True):
        assert torch.equal(states[tap + 1], deep_states[deep_tap + 1])


def test_the_fitted_drafter_loads_and_keeps_its_weights(
    golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    twin = build(Pair(golden_target, golden_drafter), times=2, out=tmp_path).pair
    ours, theirs = load_drafter(golden_drafter), load_drafter(twin.drafter)
    assert theirs.config.num_target_layers == 2 * ours.config.num_target_layers
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])


def test_twins_say_that_they_are_twins_and_are_made_once(
    golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    pair = Pair(golden_target, golden_drafter)
    first = build(pair, times=2, out=tmp_path).pair
    made = (first.target / "model.safetensors").stat().st_mtime_ns
    assert build(pair, times=2, out=tmp_path).pair == first
    assert (first.target / "model.safetensors").stat().st_mtime_ns == made
    for folder in (first.target, first.drafter):
        assert "twin-x2" in folder.name
        assert "deepened twin" in (folder / "README.md").read_text(encoding="utf-8")


def _config(folder: Path) -> dict[str, list[int]]:
    content: dict[str, list[int]] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return content


def _run(folder: Path) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # The library's last hidden state is normed, so a drafter's taps, which never name the last layer, come before it.
    with torch.no_grad():
        out = model(IDS, output_hidden_states=True)
    return out.logits, out.hidden_states
