"""Which tokens a drafter's head needs: the ones the target writes most, as a JSON list of ids.

`dspark train drafter --keep-tokens` trains with such a head, `dspark checkpoint convert --keep-tokens` cuts that of a
trained drafter. What the head cannot say is never drafted; answers stay the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dspark.errors import ConfigError
from dspark.training.disk import write_whole
from dspark.training.samples import Samples


def most_written(samples: Path, count: int, path: Path) -> dict[str, Any]:
    """Writes the ids, ascending, of the `count` tokens the target wrote most often; returns how much they cover.

    ConfigError where the samples hold fewer different ones.
    """
    read = Samples(samples)
    written = torch.zeros(read.largest_id + 1, dtype=torch.int64)
    for number in range(len(read)):
        sample = read[number]
        written += torch.bincount(sample.ids[sample.supervised], minlength=len(written))
    different = int((written > 0).sum())
    if not 0 < count <= different:
        raise ConfigError(f"tokens: {count} is not from 1 to {different}, the different tokens that {samples} holds")
    kept = torch.argsort(written, descending=True, stable=True)[:count].sort().values
    write_whole(path, json.dumps(kept.tolist()) + "\n")
    share = float(written[kept].sum() / written.sum())
    return {"tokens": count, "of": different, "share_of_text": round(share, 6), "file": str(path)}


def read_kept(path: str, vocab_size: int) -> torch.Tensor | None:
    """[Vd] ids, ascending, that a head can say; None without a path: all. ConfigError for a file that says no ids."""
    if not path:
        return None
    try:
        ids = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"keep_tokens: {path}: {error}") from None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ConfigError(f"keep_tokens: {path} holds no list of ids below {vocab_size}")
    return torch.tensor(sorted(set(ids)))
