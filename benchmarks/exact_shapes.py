"""Random checkpoints in the exact shapes of released drafters: written, loaded, compared with the published, deleted.

One at a time, each in a process of its own, whose peak memory is told (stored tensors are mapped, not copied).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.row import Row, note
from dspark.model.checkpoint import load_drafter
from dspark.model.formats.random_weights import write_random
from dspark.model.formats.shape_configs import config_of
from dspark.model.formats.shapes import shape_of, tensors_of
from dspark.model.weights_file import read_directory

# tensors, parameters, those without embedding and head, bytes of the file
PUBLISHED = {
    "dspark_qwen3_4b_block7": (64, 1_393_133_569, 615_221_249, 2_786_273_970),
    "dspark_qwen3_8b_block7": (64, 2_371_081_729, 1_126_422_017, 4_742_170_330),
    "dspark_qwen3_14b_block7": (64, 3_416_263_169, 1_860_438_529, 6_832_533_210),
    "dspark_gemma4_12b_block7": (74, 3_430_444_550, 1_417_178_630, 6_860_897_028),
    "dflash_qwen3_4b_block7": (60, 1_315_339_520, 537_427_200, 2_630_685_488),
    "dflash_qwen3_8b_block7": (60, 2_293_286_144, 1_048_626_432, 4_586_578_776),
    "dflash_qwen3_14b_block7": (60, 3_338_466_560, 1_782_641_920, 6_676_939_608),
    "dflash_gemma4_12b_block7": (70, 3_296_222_725, 1_282_956_805, 6_592_452_994),
    "eagle3_qwen3_4b_ttt7": (16, 927_344_896, 149_432_576, 1_854_691_472),
    "eagle3_qwen3_8b_ttt7": (16, 1_546_666_240, 302_006_528, 3_093_334_184),
    "eagle3_qwen3_14b_ttt7": (16, 2_053_918_976, 498_094_336, 4_107_839_656),
    "eagle3_gemma4_12b_ttt7": (18, 2_362_269_185, 349_003_265, 4_724_540_282),
}
SHOWN = ("dspark_qwen3_4b_block7", "dflash_qwen3_4b_block7", "eagle3_qwen3_4b_ttt7", "dspark_gemma4_12b_block7")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_shapes", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--names", nargs="+", choices=PUBLISHED, default=list(SHOWN), metavar="NAME", help="which ones")
    parser.add_argument("--folder", type=Path, help="where there is room for the largest (the system's)")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what the measuring processes are told
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measured(args.one, args.folder)), flush=True)
        return 0
    found = {}
    for name in args.names:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            command = [sys.executable, "-m", "benchmarks.exact_shapes", f"--one={name}", f"--folder={folder}"]
            found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        note(f"{name}: {found[name]}")
    holds = all(row["as_published"] and not row["missing"] and not row["unexpected"] for row in found.values())
    bar = "0 missing, 0 unexpected, tensors, parameters and bytes as published"
    return Row("4.2", "exact shapes", found, bar, holds).show(as_json=args.json)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Writes one and loads every tensor of it."""
    family, target = shape_of(name)
    size = write_random(folder, config_of(family, target), tensors_of(family, target))
    stored = {entry: tuple(told.shape) for entry, told in read_directory(folder).items()}
    start = time.perf_counter()
    drafter = load_drafter(folder, dtype=torch.bfloat16)
    seconds = time.perf_counter() - start
    asked = set(drafter.stored_names().values())
    state = drafter.state_dict()
    loaded = {entry: tuple(state[own].shape) for own, entry in drafter.stored_names().items()}
    parameters = sum(value.numel() for value in state.values())
    ends = drafter.lm_head.weight.numel() + drafter.embed_tokens.weight.numel()
    figures = (len(stored), parameters, parameters - ends, size)
    return {
        "family": drafter.config.family,
        "tensors": len(stored),
        "parameters": parameters,
        "without_embedding_and_head": parameters - ends,
        "bytes": size,
        "missing": sorted(asked - stored.keys()),
        "unexpected": sorted(stored.keys() - asked),
        "as_published": figures == PUBLISHED[name] and loaded == stored,
        "load_s": round(seconds, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
    }


if __name__ == "__main__":
    raise SystemExit(main())
