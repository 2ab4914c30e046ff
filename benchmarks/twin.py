"""The deepened twin of a target: the same function at several times the cost, and the same drafter fitted to it.

    python -m benchmarks.twin [--times 5] [--out FOLDER]

Behind each layer stand `times - 1` more with the same weights, except that the two matrices that write to the residual
stream (`o_proj`, `down_proj`) are zero: each adds exactly 0. So the twin's logits are those of the target, bit for bit,
while a pass reads and multiplies `times` as many weights. Layer n of the target is layer `times * (n + 1) - 1` of the
twin in all that follows it; the drafter's tapped layers are renamed accordingly and nothing else of it changes.

It stands for a larger target in measurements of speed, where a small target is so cheap that the hops between
processes are much of a round. Wherever it appears it is called a twin.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.pair import Pair, add_arguments, chosen
from dspark.model.checkpoint import fingerprint

TIMES = 5
WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
LAYER = "model.layers."
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Twin:
    """Folders of the twin and of the drafter fitted to it."""

    pair: Pair
    times: int


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin", description="The deepened twin of a pair.")
    add_arguments(parser)
    parser.add_argument("--times", type=int, default=TIMES, help=f"how many times as deep ({TIMES})")
    parser.add_argument("--out", type=Path, help="folder for both (default: the cache of this user)")
    args = parser.parse_args(argv)
    if args.times < 2:
        parser.error(f"--times: {args.times} is less than 2")
    twin = build(chosen(args), times=args.times, out=args.out)
    print(f"--target {twin.pair.target} --drafter {twin.pair.drafter}")
    return 0


def build(pair: Pair, *, times: int = TIMES, out: Path | None = None) -> Twin:
    """The twin of a pair, made unless it lies there already."""
    name = f"{fingerprint(pair.target)}-{fingerprint(pair.drafter)}-x{times}"
    folder = out or _cache() / name
    twin = Pair(folder / f"{pair.target.name}-twin-x{times}", folder / f"{pair.drafter.name}-twin-x{times}")
    if not (twin.target / CONFIG).is_file():
        _write(twin.target, lambda made: _deepen_target(pair.target, made, times))
    if not (twin.drafter / CONFIG).is_file():
        _write(twin.drafter, lambda made: _fit_drafter(pair.drafter, made, times))
    return Twin(twin, times)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dspark" / "twins"


def _write(folder: Path, fill: object) -> None:
    """Fills a folder beside its place and moves it there whole."""
    assert callable(fill)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".twin-"))
    try:
        fill(made)
        made.chmod(0o755)
        os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _deepen_target(source: Path, folder: Path, times: int) -> None:
    config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    for path in source.iterdir():
        if path.is_file() and path.name not in (WEIGHTS, CONFIG, "README.md"):
            shutil.copy(path, folder / path.name)
    tensors = {}
    for name, tensor in load_file(source / WEIGHTS).items():
        if not name.startswith(LAYER):
            tensors[name] = tensor
            continue
        number, rest = name.removeprefix(LAYER).split(".", 1)
        for copy in range(times):
            silent = copy > 0 and rest in WRITERS
            deep = torch.zeros_like(tensor) if silent else tensor.clone()
            tensors[f"{LAYER}{times * int(number) + copy}.{rest}"] = deep
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config["num_hidden_layers"] *= times
    if config.get("layer_types"):
        config["layer_types"] = [kind for kind in config["layer_types"] for _ in range(times)]
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _label(folder, f"the same function as `{source.name}`, {times} times as deep")


def _fit_drafter(source: Path, folder: Path, times: int) -> None:
    config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    for path in source.iterdir():
        if path.is_file() and path.name not in (CONFIG, "README.md"):
            shutil.copy(path, folder / path.name)
    config["target_layer_ids"] = [times * (layer + 1) - 1 for layer in config["target_layer_ids"]]
    config["num_target_layers"] *= times
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _label(folder, f"`{source.name}` with its tapped layers renamed for a target {times} times as deep")


def _label(folder: Path, what: str) -> None:
    text = f"A deepened twin, for measurements of speed only: {what}.\nMade by `python -m benchmarks.twin`."
    (folder / "README.md").write_text(f"# {folder.name}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
