"""Where the reference cases are: the few that ship with the tests, all of them where present."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dspark.model.checkpoint import save_drafter
from dspark.model.config_file import read_drafter_config
from dspark.model.families import fresh_drafter

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


def altered(
    folder: Path,
    settings: Mapping[str, Any] | Callable[[dict[str, Any]], Any] | None = None,
    tensors: Callable[[dict[str, torch.Tensor]], Any] | None = None,
    *,
    of: Path | None = None,
    file: str = "model.safetensors",
) -> Path:
    """A checkpoint with other settings, and tensors of a file that a function changed; made of a
    copy of `of` first."""
    if of is not None:
        shutil.copytree(of, folder, dirs_exist_ok=True)
    if settings is not None:
        path = folder / "config.json"
        raw = json.loads(path.read_text())
        settings(raw) if callable(settings) else raw.update(settings)
        path.write_text(json.dumps(raw))
    if tensors is not None:
        held = load_file(folder / file)
        tensors(held)
        save_file(held, folder / file, metadata={"format": "pt"})
    return folder


def without(*names: str) -> Callable[[dict[str, torch.Tensor]], None]:
    """A change to `altered`'s tensors."""

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in names:
            del tensors[name]

    return drop


def put(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    """A change to `altered`'s tensors."""
    return lambda tensors: tensors.update({name: tensor})


def sharded(folder: Path) -> dict[str, str]:
    """Splits a checkpoint's weights into two files with an index: tensor -> its file."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"{'ab'[place % 2]}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in files if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


def fresh(folder: Path, **shape: Any) -> Path:
    """A random drafter of the shipped target, shaped as the shipped drafter but for what is
    said."""
    config = dataclasses.replace(read_drafter_config(DATA / "dspark_vanilla"), **shape)
    tables = load_file(DATA / "target_qwen3" / "model.safetensors")
    embedding = tables["model.embed_tokens.weight"]
    head = tables.get("lm_head.weight", embedding)
    save_drafter(
        fresh_drafter(
            config, embedding=embedding, lm_head=head, generator=torch.Generator().manual_seed(1)
        ),
        folder,
    )
    return folder


def block_cases(folder: Path) -> list[dict[str, torch.Tensor]]:
    """One dict per case, names without the `caseN.` prefix."""
    cases: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "block_cases.safetensors").items():
        case, _, field = name.partition(".")
        cases.setdefault(case, {})[field] = tensor
    return [cases[name] for name in sorted(cases)]
