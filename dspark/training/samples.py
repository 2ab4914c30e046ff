"""Training text as token ids: one file, mapped into memory and read by slices.

A sample is one conversation: its ids, and which of them the target wrote. The file is safetensors with `ids` int32
[all tokens], `supervised` uint8 [all tokens] and `offsets` int64 [samples + 1].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.errors import ConfigError
from dspark.training.disk import save_tensors

_HEX = 16


class Sample(NamedTuple):
    """One conversation."""

    ids: Tensor  # [T] int64
    supervised: Tensor  # [T] bool


def write_samples(path: Path, samples: Iterable[Sample]) -> int:
    """Writes the file, whole or not at all; returns the number of samples. ConfigError if there is none."""
    ids, marks, offsets = [], [], [0]
    for sample in samples:
        ids.append(sample.ids.to(torch.int32))
        marks.append(sample.supervised.to(torch.uint8))
        offsets.append(offsets[-1] + len(sample.ids))
    if not ids:
        raise ConfigError(f"{path}: there is no sample to write")
    tensors = {"ids": torch.cat(ids), "supervised": torch.cat(marks), "offsets": torch.tensor(offsets)}
    save_tensors(path, tensors)
    return len(ids)


class Samples(Sequence[Sample]):
    """The samples of a file; tokens are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file: Any = safe_open(path, framework="pt")
            self._ids, self._marks = file.get_slice("ids"), file.get_slice("supervised")
            self.offsets: list[int] = file.get_tensor("offsets").tolist()
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: not a file of samples: {error}") from None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Sample:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        part = slice(self.offsets[number], self.offsets[number + 1])
        return Sample(self._ids[part].long(), self._marks[part].bool())

    def length(self, number: int) -> int:
        """Tokens of a sample, without reading them."""
        return self.offsets[number + 1] - self.offsets[number]

    @property
    def tokens(self) -> int:
        return self.offsets[-1]

    @property
    def largest_id(self) -> int:
        return int(self._ids[:].max())

    def digest(self) -> str:
        """Names the content."""
        total = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(1 << 20):
                total.update(chunk)
        return total.hexdigest()[:_HEX]
