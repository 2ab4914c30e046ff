"""The tensor directory of a checkpoint folder, verified before any tensor is read.

Only safetensors: one file, or an index and its shards. Nothing is unpickled and no code of a
checkpoint runs. The format's own reader checks offsets and lengths but accepts duplicate names, NaN
and any number of empty tensors; those are refused here, by name.

Weights stored in few bits with scales are read as the numbers they stand for:

    float8 e4m3    one scale per block of 128 x 128 values; blocks at an edge are short
    bytes          two e2m1 values each along the input, the low four bits first; one scale per 32
                   values of a row

With scales that are powers of two every value is exact in bfloat16.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark.errors import CheckpointError, in_short
from dspark.model.config_keys import MOST_LISTING_BYTES, decode, listed, read_json_file, refuse
from dspark.whole_file import placed

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_ENTRIES = 100_000  # above the largest mixtures of experts; refuses a flood of names
MAX_HEADER_BYTES = 8 << 20  # of one file; some 60,000 tensors
FLOATS = ("F64", "F32", "F16", "BF16")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
SQUARE, ROW = 128, 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as its file's header describes it."""

    file: Path
    stored: str  # its name in the file; loaders may use another
    dtype: str  # safetensors' spelling: F32, BF16, ...
    shape: tuple[int, ...]
    # int64, rows of the stored tensor to read; None: all
    rows: Tensor | None = field(default=None, compare=False)
    # of values stored in few bits; `dtype` and `shape` are then those of the values
    scale: TensorEntry | None = None


def read_directory(folder: Path) -> dict[str, TensorEntry]:
    """Name -> entry over all weight files of a folder."""
    entries: dict[str, TensorEntry] = {}
    files = weight_files(folder)
    for file in files:
        for name, entry in _read_header(file).items():
            if name in entries:
                raise CheckpointError(f"{file}: {name} is also in {entries[name].file.name}")
            entries[name] = entry
    if len(entries) > MAX_ENTRIES:
        raise CheckpointError(f"{folder}: {len(entries)} tensors, more than {MAX_ENTRIES}")
    if files != [folder / SINGLE_NAME]:
        _check_index(folder / INDEX_NAME, entries)
    return entries


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in name order."""
    if (folder / SINGLE_NAME).is_file():
        _stays(folder, folder / SINGLE_NAME)
        return [folder / SINGLE_NAME]
    if (folder / INDEX_NAME).is_file():
        return _indexed_files(folder)
    pickled = sorted(p.name for p in folder.glob("*") if p.suffix in _PICKLED)
    if pickled:
        raise CheckpointError(f"{folder}: pickled weights are refused ({listed(pickled)})")
    raise CheckpointError(f"{folder}: neither {SINGLE_NAME} nor {INDEX_NAME} is there")


def check_shapes(
    folder: Path, entries: Mapping[str, TensorEntry], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises one CheckpointError with all wrong names unless names and shapes are as expected and
    all are floating point."""
    shared = sorted(expected.keys() & entries.keys())
    complaints = {
        "missing": sorted(expected.keys() - entries.keys()),
        "unexpected": sorted(entries.keys() - expected.keys()),
        "wrong shape": misshapen(entries, expected),
        "wrong dtype": [
            f"{name} {entries[name].dtype}" for name in shared if entries[name].dtype not in FLOATS
        ],
    }
    refuse(folder, complaints)


def misshapen(
    entries: Mapping[str, TensorEntry], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Describes the tensors whose shape is not the expected one."""
    return [
        f"{name} {list(entries[name].shape)} instead of {list(expected[name])}"
        for name in sorted(expected.keys() & entries.keys())
        if entries[name].shape != expected[name]
    ]


def read_tensors(
    entries: Mapping[str, TensorEntry], names: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, CPU tensor in the file's dtype), each checked to be finite."""
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(entries[name].file, []).append(name)
    for file, inside in by_file.items():
        try:
            with safe_open(file, framework="pt", device="cpu") as reader:
                for name in inside:
                    entry = entries[name]
                    tensor = reader.get_tensor(entry.stored)
                    if entry.scale is not None:
                        tensor = values(tensor, _scale(entry.scale))
                    if entry.rows is not None:
                        tensor = tensor.index_select(0, entry.rows)
                    check_finite(f"{file}: {name}", tensor)
                    yield name, tensor
        except SafetensorError as error:
            raise CheckpointError(f"{file}: {error}") from error


def _scale(entry: TensorEntry) -> Tensor:
    with safe_open(entry.file, framework="pt", device="cpu") as reader:
        found: Tensor = reader.get_tensor(entry.stored)
    check_finite(f"{entry.file}: {entry.stored}", found.float())
    return found


def read_file(file: Path) -> dict[str, Tensor]:
    """All tensors of one file, under the same checks as weights."""
    entries = _read_header(file)
    return dict(read_tensors(entries, sorted(entries)))


def write_file(
    file: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    lasts: bool = False,
) -> None:
    """Writes tensors, whole or not at all; `lasts` as for `placed`. Raises OSError."""
    with placed(file, lasts=lasts) as draft:
        try:
            save_file(dict(tensors), draft, metadata=None if metadata is None else {**metadata})
        except SafetensorError as error:  # of a full disk too, with the system's number in its text
            if (number := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `out` after the block and is deleted if the block
    fails."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: there already; name a folder that is not")
    partial: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        partial.chmod(0o755)
        yield partial
        partial.rename(out)
    except (OSError, SafetensorError) as error:
        strerror, filename = (getattr(error, name, None) for name in ("strerror", "filename"))
        said = f"{strerror or error}" + (f" ({filename})" if filename else "")
        raise CheckpointError(f"{out}: cannot be written: {said}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuses NaN and infinities without a temporary of the tensor's size."""
    if not tensor.numel() or not tensor.is_floating_point():
        return
    low, high = torch.aminmax(tensor.detach())  # NaN propagates into both
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise CheckpointError(f"{name} holds NaN or infinite values")


def _indexed_files(folder: Path) -> list[Path]:
    path = folder / INDEX_NAME
    shards = sorted(set(_read_index(path).values()))
    for name in shards:
        if name != Path(name).name or name in ("", ".", "..") or "\\" in name:
            raise CheckpointError(f"{path}: {name!r} leaves the folder")
        if not name.endswith(".safetensors"):
            raise CheckpointError(f"{path}: {name!r} is not a safetensors file")
        if not os.path.isfile(folder / name):  # also for a name that is too long
            raise CheckpointError(f"{path}: {name!r} is not there")
        _stays(folder, folder / name)
    return [folder / name for name in shards]


def _read_index(path: Path) -> dict[str, str]:
    """Tensor -> file, as the index lists them."""
    try:
        weight_map = read_json_file(path, most=MOST_LISTING_BYTES)["weight_map"]
        return {name: str(file) for name, file in weight_map.items()}
    except (OSError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a weight index ({error!r})") from error


def _check_index(path: Path, entries: Mapping[str, TensorEntry]) -> None:
    """Refuses an index that names other tensors than the files, or in other files."""
    said = _read_index(path)
    placed = {name: entry.file.name for name, entry in entries.items()}
    wrong = sorted(
        name for name in said.keys() | placed.keys() if said.get(name) != placed.get(name)
    )
    if wrong:
        raise CheckpointError(f"{path}: says otherwise than the files of {listed(wrong)}")


def _stays(folder: Path, file: Path) -> None:
    """Refuses links that lead out of the folder, unless to the store of the hub cache that the
    folder belongs to."""
    home, real = folder.resolve(), file.resolve()
    stores = (home, home.parent.parent / "blobs") if home.parent.name == "snapshots" else (home,)
    if not any(real.is_relative_to(store) for store in stores):
        raise CheckpointError(f"{file}: a link that leaves the folder")


def _read_header(file: Path) -> dict[str, TensorEntry]:
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > file.stat().st_size - 8:
                raise CheckpointError(f"{file}: shorter than its header of {size} bytes")
            if size > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{file}: header of {size} bytes, more than {MAX_HEADER_BYTES}"
                )
            header = decode(stream.read(size))
        header.pop("__metadata__", None)
        if len(header) > MAX_ENTRIES:
            raise CheckpointError(f"{file}: {len(header)} tensors, more than {MAX_ENTRIES}")
        return {
            name: TensorEntry(
                file, name, str(value["dtype"]), tuple(int(size) for size in value["shape"])
            )
            for name, value in header.items()
        }
    except (
        OSError,
        ArithmeticError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise CheckpointError(f"{file}: bad header ({in_short(error)})") from error


def values(stored: Tensor, scale: Tensor) -> Tensor:
    """Values [out, in] bfloat16 of a quantised weight and its scale."""
    factors = scale.float()
    if stored.dtype in (torch.int8, torch.uint8):
        table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
        codes = stored.view(torch.uint8).int()
        both = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
        return (table[both] * factors.repeat_interleave(ROW, dim=-1)).bfloat16()
    rows, columns = stored.shape
    spread = factors.repeat_interleave(SQUARE, 0)[:rows].repeat_interleave(SQUARE, 1)[:, :columns]
    return (stored.float() * spread).bfloat16()
