"""Features for training: the target's tapped layers and last hidden state, for every token of a
sample.

They are hidden states, never logits: a vocabulary product is computed only where a slot needs it.
They come from the target, run beside the drafter, or from a cache, so that the target runs once and
not once an epoch.

A cache is a folder of `manifest.json` and shards of whole samples: safetensors with `taps` [tokens,
m*H], `last` [tokens, H]. Which sample is in which shard follows from the lengths alone, so a writer
that was killed resumes with the missing shards; a damaged one is missing, too. The manifest names
the file of samples, the target and the layers; a reader refuses any other cache.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.errors import ConfigError
from dspark.model.checkpoint import fingerprint, load_target
from dspark.model.location import locate
from dspark.model.pairing import text_config
from dspark.model.placement import pick_device, use
from dspark.model.target import tapped
from dspark.training import record
from dspark.training.disk import only_writer, save_tensors, write_whole
from dspark.training.samples import Sample, Samples
from dspark.training.settings import Settings
from dspark.training.shape import drafter_config
from dspark.whole_file import remove_partial

VERSION = 1
MANIFEST = "manifest.json"
SHARD_BYTES = 1 << 30
_OPEN_SHARDS = 4
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
    shards: tuple[int, ...]  # first sample of each

    @property
    def bytes_per_token(self) -> int:
        """Bytes of m taps and the last hidden state."""
        width = self.hidden_size * (len(self.target_layer_ids) + 1)
        return width * _DTYPES[self.hidden_dtype].itemsize

    @property
    def bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    def members(self, shard: int) -> range:
        """Numbers of the samples in a shard."""
        ends = (*self.shards[1:], self.num_samples)
        return range(self.shards[shard], ends[shard])

    def to_json(self) -> dict[str, Any]:
        """The manifest; also the estimate shown before a run."""
        lists = {"target_layer_ids": list(self.target_layer_ids), "shards": list(self.shards)}
        sizes = {"bytes_per_token": self.bytes_per_token, "bytes": self.bytes}
        return {"version": VERSION, **asdict(self), **lists, **sizes}


def plan_cache(
    samples: Samples,
    *,
    target: str,
    target_layer_ids: tuple[int, ...],
    hidden_size: int,
    dtype: str = "bfloat16",
    shard_bytes: int = SHARD_BYTES,
) -> CachePlan:
    """Lays the samples out in shards of about `shard_bytes`; a longer sample has a shard of its
    own."""
    plan = CachePlan(
        samples.digest(),
        len(samples),
        samples.tokens,
        target,
        target_layer_ids,
        hidden_size,
        dtype,
        (0,),
    )
    starts, room = [0], shard_bytes
    for number in range(len(samples)):
        size = samples.length(number) * plan.bytes_per_token
        if size > room and number > starts[-1]:
            starts.append(number)
            room = shard_bytes
        room -= size
    return replace(plan, shards=tuple(starts))


def write_cache(
    folder: Path,
    plan: CachePlan,
    samples: Samples,
    source: FeatureSource,
    done: Callable[[int], None] | None = None,
) -> None:
    """Writes the missing shards; `done` is called with the number of samples written so far.

    ConfigError if the folder holds another cache, or the disk has no room for this one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / MANIFEST
    if manifest.exists():
        if read_manifest(folder) != plan.to_json():
            raise ConfigError(
                f"{folder}: holds a cache of other samples, another target or other layers"
            )
    else:
        write_whole(manifest, json.dumps(plan.to_json(), indent=2) + "\n")
    missing = _missing(folder, plan, samples)
    needed = sum(samples.length(i) for n in missing for i in plan.members(n)) * plan.bytes_per_token
    if needed > (free := shutil.disk_usage(folder).free) * _ROOM_LEFT:
        raise ConfigError(f"{folder}: {needed:,} bytes are needed and {free:,} are free")
    finished = sum(len(plan.members(n)) for n in range(len(plan.shards)) if n not in missing)
    for number in missing:
        found: list[Features] = []
        for member in plan.members(number):
            found += source.of([member], [samples[member]])
            if done:
                done(finished + len(found))
        finished += len(found)
        kind = _DTYPES[plan.hidden_dtype]
        tensors = {
            "taps": torch.cat([one.taps for one in found]).to("cpu", kind),
            "last": torch.cat([one.last for one in found]).to("cpu", kind),
        }
        save_tensors(_shard(folder, number), tensors)


class CachedFeatures:
    """Reads what `write_cache` wrote. ConfigError if it is incomplete or does not fit `expect`."""

    def __init__(self, folder: Path, expect: CachePlan, samples: Samples) -> None:
        kept = read_manifest(folder)
        wanted = expect.to_json()
        for name in ("version", "samples", "target", "target_layer_ids", "hidden_size"):
            if kept.get(name) != wanted[name]:
                raise ConfigError(
                    f"cache: {name} of {folder} is {kept.get(name)!r}, this run needs "
                    f"{wanted[name]!r}"
                )
        self._folder, self._samples = folder, samples
        self._starts: list[int] = kept.get("shards", [])
        if not _ascend(self._starts, len(samples)):
            raise ConfigError(
                f"cache: shards of {folder / MANIFEST} do not ascend from 0 below {len(samples)}, "
                "the number of samples"
            )
        missing = _missing(folder, replace(expect, shards=tuple(self._starts)), samples)
        if missing:
            raise ConfigError(
                f"cache: {folder} lacks {len(missing)} of {len(self._starts)} shards, or has them "
                "in part; write it first"
            )
        self._open = lru_cache(maxsize=_OPEN_SHARDS)(self._open_shard)

    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        return [self._one(number) for number in numbers]

    def _one(self, number: int) -> Features:
        shard = bisect_right(self._starts, number) - 1
        first = self._samples.offsets[self._starts[shard]]
        part = slice(
            self._samples.offsets[number] - first, self._samples.offsets[number + 1] - first
        )
        taps, last = self._open(shard)
        return Features(taps[part], last[part])

    def _open_shard(self, shard: int) -> tuple[Any, Any]:
        path = _shard(self._folder, shard)
        try:
            file: Any = safe_open(path, framework="pt")
            return file.get_slice("taps"), file.get_slice("last")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cache: {path}: {error}") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a cache; ConfigError where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cache: {folder} holds no cache ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise ConfigError(f"cache: {folder} was written by another version")
    return manifest


def _shard(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.safetensors"


def _ascend(starts: Any, end: int) -> bool:
    """Whether a manifest's shards are numbers that ascend from 0 and stay below `end`."""
    if not isinstance(starts, list) or any(type(start) is not int for start in starts):
        return False
    return starts[:1] == [0] and sorted({*starts}) == starts and starts[-1] < end


def _missing(folder: Path, plan: CachePlan, samples: Samples) -> list[int]:
    """Numbers of the shards that are not there with all their rows."""
    widths = (plan.hidden_size * len(plan.target_layer_ids), plan.hidden_size)
    missing = []
    for number in range(len(plan.shards)):
        rows = sum(map(samples.length, plan.members(number)))
        try:
            file: Any = safe_open(_shard(folder, number), framework="pt")
            found = [file.get_slice(name).get_shape() for name in ("taps", "last")]
        except (OSError, SafetensorError):
            found = []
        if found != [[rows, width] for width in widths]:
            missing.append(number)
    return missing


def plan_for(settings: Settings, dtype: str) -> CachePlan:
    """The plan of a run's cache. Reads the target's config and the digests of its files, no
    weights."""
    folder = locate(settings.target)
    text, samples = text_config(folder), Samples(Path(settings.samples))
    samples.check_vocabulary(int(text.vocab_size))
    return plan_cache(
        samples,
        target=fingerprint(folder),
        target_layer_ids=drafter_config(folder, text, settings).target_layer_ids,
        hidden_size=int(text.hidden_size),
        dtype=dtype,
    )


def make_cache(settings: Settings, plan: CachePlan, folder: Path) -> None:
    """Writes the missing shards of a run's cache, with a progress bar. ConfigError if another
    process is writing them."""
    device = pick_device(settings.device, key="device")
    use(device)
    target = load_target(
        settings.target,
        dtype=torch.float32 if device.type == "cpu" else torch.bfloat16,
        device=device,
    )
    samples = Samples(Path(settings.samples))
    source = OnlineFeatures(target.model, plan.target_layer_ids)
    with only_writer(folder), record.progress() as bar:
        remove_partial(folder / "shard-*.safetensors")
        task = bar.add_task("cache", total=plan.num_samples, note=f"{plan.bytes / 1e9:.2f} GB")
        write_cache(folder, plan, samples, source, lambda done: bar.update(task, completed=done))
