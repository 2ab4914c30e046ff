"""Regenerated conversations to samples: ids as the target read and wrote them, cut to a length, short ones dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dspark.errors import ConfigError
from dspark.training.chat import Chat
from dspark.training.row_file import read_rows
from dspark.training.samples import Sample, write_samples

MAX_LENGTH = 4096
MIN_SUPERVISED = 14  # a conversation with fewer tokens of the target teaches next to nothing


def encode_rows(
    rows: Path, path: Path, chat: Chat, *, max_length: int = MAX_LENGTH, min_supervised: int = MIN_SUPERVISED
) -> dict[str, Any]:
    """Writes the samples of a regenerated file to `path`; returns counts of rows and tokens."""
    counts: Counter[str] = Counter()

    def samples() -> Iterator[Sample]:
        for row in read_rows(rows):
            counts["rows"] += 1
            if row.get("status", "success") != "success":
                counts["failed"] += 1
                continue
            turns = row.get("conversations")
            if not isinstance(turns, list) or not turns:
                raise ConfigError(f"{rows}: row {row.get('id')!r} has no conversations")
            ids, supervised = chat.learned(turns)
            counts["cut"] += len(ids) > max_length
            sample = Sample(torch.tensor(ids[:max_length]), torch.tensor(supervised[:max_length]))
            if int(sample.supervised.sum()) < min_supervised:
                counts["short"] += 1
                continue
            counts["samples"] += 1
            counts["tokens"] += len(sample.ids)
            counts["supervised"] += int(sample.supervised.sum())
            yield sample

    write_samples(path, samples())
    return {name: counts[name] for name in ("rows", "samples", "tokens", "supervised", "cut", "short", "failed")}
