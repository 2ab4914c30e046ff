"""Features for training: the target's tapped layers and last hidden state, for every token of a
sample.

They are hidden states, never logits: a vocabulary product is computed only where a slot needs it.
They come from the target, run beside the drafter, or from a cache, so that the target runs once and
not once an epoch.

A cache is a folder of `manifest.json` and `rows.bin`: m taps and the last hidden state of every
token, [tokens, (m + 1) H] in one dtype, sample after sample. The manifest names the file of
samples, the target and the layers, and counts the samples whose rows are on the disk: a writer that
was killed goes on behind them, and a reader refuses any other cache.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dspark.errors import ConfigError, in_short
from dspark.model.checkpoint import fingerprint, load_target
from dspark.model.location import locate
from dspark.model.pairing import text_config
from dspark.model.placement import pick_device, use
from dspark.model.target import tapped
from dspark.progress import progress
from dspark.training.disk import only_writer, write_json
from dspark.training.samples import Sample, Samples
from dspark.training.settings import Settings
from dspark.training.shape import drafter_config
from dspark.whole_file import remove_partial

VERSION = 2
MANIFEST, ROWS = "manifest.json", "rows.bin"
FLUSH_BYTES = 1 << 30  # of rows, between two counts in the manifest
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_ROOM_LEFT = 0.95  # share of the free disk space that a cache may take


class Features(NamedTuple):
    """The features of one sample."""

    taps: Tensor  # [T, m*H]
    last: Tensor  # [T, H] after the final norm


class FeatureSource(Protocol):
    """A source of features: the running target, or a cache."""

    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        """The features of samples, in their order."""


class OnlineFeatures:
    """Runs the target, padded behind the end, which a causal model does not see."""

    def __init__(self, model: Any, layer_ids: tuple[int, ...]) -> None:
        self._model, self._layer_ids = model, layer_ids

    @torch.no_grad()
    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        lengths = [len(sample.ids) for sample in samples]
        ids = torch.nn.utils.rnn.pad_sequence([sample.ids for sample in samples], batch_first=True)
        taps, last = tapped(self._model, ids.to(self._model.device), self._layer_ids)
        return [Features(taps[row, :n], last[row, :n]) for row, n in enumerate(lengths)]


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What a cache holds and how large it gets; made before anything runs."""

    samples: str  # digest of the file of samples
    num_samples: int
    num_tokens: int
    target: str  # fingerprint of the target
    target_layer_ids: tuple[int, ...]
    hidden_size: int
    hidden_dtype: str

    @staticmethod
    def of(
        samples: Samples, target: str, target_layer_ids: tuple[int, ...], size: int, dtype: str
    ) -> CachePlan:
        """The plan for these samples. target: its fingerprint; size: of its hidden states."""
        counts = (samples.digest(), len(samples), samples.tokens)
        return CachePlan(*counts, target, target_layer_ids, size, dtype)

    @property
    def width(self) -> int:
        """Numbers of a token: m taps and the last hidden state."""
        return self.hidden_size * (len(self.target_layer_ids) + 1)

    @property
    def bytes_per_token(self) -> int:
        return self.width * _DTYPES[self.hidden_dtype].itemsize

    @property
    def bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    def to_json(self) -> dict[str, Any]:
        """The manifest, but for the count; also the estimate shown before a run."""
        sizes = {"bytes_per_token": self.bytes_per_token, "bytes": self.bytes}
        layers = list(self.target_layer_ids)
        return {"version": VERSION, **asdict(self), "target_layer_ids": layers, **sizes}


def write_cache(
    folder: Path,
    plan: CachePlan,
    samples: Samples,
    source: FeatureSource,
) -> None:
    """Writes the missing rows, with a progress bar.

    ConfigError if the folder holds another cache, or the disk has no room for this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest, path, mine, start = folder / MANIFEST, folder / ROWS, plan.to_json(), 0
    if manifest.exists():
        kept = read_manifest(folder)
        start = _there(folder, kept, plan, samples)
        if {**kept, **mine} != kept:
            raise ConfigError(
                f"{folder}: holds a cache of other samples, another target or other layers"
            )
    begun = samples.offsets[start] * plan.bytes_per_token
    free, needed = shutil.disk_usage(folder).free, plan.bytes - begun
    if needed > free * _ROOM_LEFT:
        raise ConfigError(f"{folder}: {needed:,} bytes are needed and {free:,} are free")
    try:
        with path.open("ab") as file, progress("cache", len(samples)) as tell:
            file.truncate(begun)
            tell(note=f"{plan.bytes / 1e9:.2f} GB")
            for number in range(start, len(samples)):
                (found,) = source.of([number], [samples[number]])
                rows = torch.cat((found.taps, found.last), dim=-1).to(_DTYPES[plan.hidden_dtype])
                file.write(rows.cpu().view(torch.uint8).numpy().data)
                if number + 1 == len(samples) or file.tell() - begun >= FLUSH_BYTES:
                    file.flush()
                    os.fsync(file.fileno())
                    begun, count = file.tell(), {"written": number + 1}
                    write_json(manifest, mine | count)
                tell(completed=number + 1)
    except OSError as error:  # of a full disk, say, which names no file
        error.filename = error.filename or str(path)
        raise


class CachedFeatures:
    """Reads what `write_cache` wrote by a plan. ConfigError if it is incomplete, or another's."""

    def __init__(self, folder: Path, plan: CachePlan, samples: Samples) -> None:
        kept = read_manifest(folder)
        for name, wanted in plan.to_json().items():
            if kept.get(name) != wanted:
                raise ConfigError(
                    f"cache: {name} of {folder} is {kept.get(name)!r}, this run needs {wanted!r}"
                )
        self._offsets, self._size = samples.offsets, plan.hidden_size
        if missing := len(samples) - _there(folder, kept, plan, samples):
            raise ConfigError(
                f"cache: {folder} lacks the rows of {missing} of {len(samples)} samples; write it "
                "first"
            )
        self._dtype = _DTYPES[plan.hidden_dtype]
        # read-only, as a file may be larger than the memory
        shape = plan.num_tokens, plan.bytes_per_token
        self._rows = np.memmap(folder / ROWS, np.uint8, "r", shape=shape)

    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        return [self._one(number) for number in numbers]

    def _one(self, number: int) -> Features:
        stored = self._rows[self._offsets[number] : self._offsets[number + 1]]
        rows = torch.from_numpy(stored.copy()).view(self._dtype)
        return Features(rows[:, : -self._size], rows[:, -self._size :])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a cache; ConfigError where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cache: {folder} holds no cache ({in_short(error)})") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise ConfigError(f"cache: {folder} was written by another version")
    if (dtype := manifest.get("hidden_dtype")) not in list(_DTYPES):
        raise ConfigError(
            f"cache: hidden_dtype of {folder} is {dtype!r}, not {' or '.join(_DTYPES)}"
        )
    return manifest


def _there(folder: Path, kept: Mapping[str, Any], plan: CachePlan, samples: Samples) -> int:
    """How many samples a cache holds all rows of, from the first on: as many as its manifest counts
    and its file has room for."""
    written, path = kept.get("written"), folder / ROWS
    size = path.stat().st_size if path.is_file() else 0
    whole = bisect_right(samples.offsets, size // plan.bytes_per_token) - 1
    return min(written, whole) if type(written) is int and written > 0 else 0


def plan_for(settings: Settings, dtype: str) -> CachePlan:
    """The plan of a run's cache. Reads the target's config and the digests of its files, no
    weights."""
    folder = locate(settings.target)
    text, samples = text_config(folder), Samples(Path(settings.samples))
    samples.check_vocabulary(int(text.vocab_size))
    layers = drafter_config(folder, text, settings).target_layer_ids
    return CachePlan.of(samples, fingerprint(folder), layers, int(text.hidden_size), dtype)


def make_cache(settings: Settings, plan: CachePlan, folder: Path) -> None:
    """Writes the missing rows of a run's cache. ConfigError if another process is writing them."""
    device = pick_device(settings.device, key="device")
    use(device)
    target = load_target(
        settings.target,
        dtype=torch.float32 if device.type == "cpu" else torch.bfloat16,
        device=device,
    )
    samples = Samples(Path(settings.samples))
    source = OnlineFeatures(target.model, plan.target_layer_ids)
    with only_writer(folder):
        remove_partial(folder / MANIFEST)
        write_cache(folder, plan, samples, source)
