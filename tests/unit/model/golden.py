"""Where the reference cases are: the few that ship with the tests, all of them where present."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

DATA = Path(__file__).parents[2] / "data"
_ALL = Path(__file__).parents[4] / "shared" / "golden"
ROOT = _ALL if _ALL.is_dir() else DATA
TARGET = DATA / "target_qwen3"
_NAMES = (
    "dspark_vanilla",
    "dspark_gated",
    "dspark_rnn",
    "dspark_confidence_without_markov",
    "dflash",
    "eagle3",
    "dspark_gemma4",
    "dflash_gemma4",
    "eagle3_gemma4",
)
ALL = [ROOT / name for name in _NAMES if (ROOT / name).is_dir()]


def target_of(folder: Path) -> Path:
    """The target that a drafter's cases were made with."""
    return ROOT / ("target_gemma4" if folder.name.endswith("_gemma4") else "target_qwen3")


def block_cases(folder: Path) -> list[dict[str, torch.Tensor]]:
    """One dict per case, names without the `caseN.` prefix."""
    cases: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "block_cases.safetensors").items():
        case, _, field = name.partition(".")
        cases.setdefault(case, {})[field] = tensor
    return [cases[name] for name in sorted(cases)]
