"""Ways for a checkpoint to be wrong: each takes a copy of a sound folder and changes one thing."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.unit.model.golden import altered

# Sound folders, small enough to be spoiled and loaded a hundred times.
FOLDERS = Path(__file__).resolve().parents[1] / "data"
TARGET, DRAFTER = FOLDERS / "target_qwen3", FOLDERS / "dspark_vanilla"
Spoil = Callable[[Path], object]
Case = tuple[Spoil, str]  # and a pattern of what the refusal has to say
HEADER = struct.Struct("<Q")


def header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites the header of a weight file, whose tensors stay."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (length,) = HEADER.unpack_from(data)
    content = json.loads(data[8 : 8 + length])
    made = change(content)
    text = made if isinstance(made, bytes) else json.dumps(content).encode()
    file.write_bytes(HEADER.pack(len(text)) + text + data[8 + length :])


def first(held: dict[str, Any]) -> str:
    """A tensor that is no scalar."""
    return next(name for name in sorted(held) if name != "__metadata__" and _size(held[name]) > 1)


def _size(entry: Any) -> int:
    return math.prod(entry["shape"] if isinstance(entry, dict) else entry.shape)


def raw(change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return spoil


def _set(name: str, **fields: Any) -> Spoil:
    return lambda folder: header(folder, lambda held: held[name or first(held)].update(fields))


def _twice(folder: Path) -> None:
    def change(held: dict[str, Any]) -> bytes:
        text = json.dumps(held)
        name = first(held)
        again = json.dumps({name: held[name]})[1:-1]
        return f"{text[:-1]}, {again}}}".encode()

    header(folder, change)


def _config(**settings: Any) -> Spoil:
    return lambda folder: altered(folder, settings)


def _text(begins: str, size: int = 0, ends: str = "") -> Spoil:
    """A configuration of these characters, and so many between them."""
    return lambda folder: (folder / "config.json").write_text(begins + "x" * size + ends)


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    return lambda folder: altered(folder, tensors=change)


def _tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    def one(held: dict[str, torch.Tensor]) -> None:
        name = first(held)
        held[name] = change(held[name])

    return _tensors(one)


def _fill(value: float) -> Spoil:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.clone()
        made.view(-1)[0] = value
        return made

    return _tensor(change)


def _pickled(folder: Path) -> None:
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    listing = {"metadata": {}, "weight_map": {"x": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listing), encoding="utf-8")


def _linked(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "elsewhere.safetensors")


def _scalars(held: dict[str, torch.Tensor]) -> None:
    for name, tensor in held.items():
        held[name] = tensor.flatten()[0]


def _folder_in_place(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def _flood(held: dict[str, torch.Tensor]) -> None:
    held.update({f"flood.{n}": torch.zeros(0) for n in range(150_000)})


# Both parts of a pair are loaded by the same code; what differs is in their configurations, and in
# that a target knows its files by the shape of the embedding, which is its first tensor.
_SHAPE = r"wrong shape: confidence_head.proj|no tensor is \[512, 96\], as the embedding"
WEIGHTS: dict[str, Case] = {
    "empty file": (raw(lambda data: b""), "shorter than its header"),
    "no weights at all": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "neither model.safetensors nor",
    ),
    "header length 2^63": (
        raw(lambda data: HEADER.pack(1 << 63) + data[8:]),
        "shorter than its header of 9223372036854775808 bytes",
    ),
    "header length 0": (raw(lambda data: HEADER.pack(0) + data[8:]), "bad header"),
    "header longer than the file": (
        raw(lambda data: HEADER.pack(len(data)) + data[8:]),
        "shorter than its header",
    ),
    "header is no JSON": (raw(lambda data: data[:8] + b"x" * 20 + data[28:]), "bad header"),
    "header is bad UTF-8": (
        raw(lambda data: data[:10] + b"\xff\xfe" + data[12:]),
        "bad header .'utf-8'",
    ),
    "header is a list": (lambda folder: header(folder, lambda held: b"[]"), "bad header"),
    "no shape in it": (
        lambda folder: header(folder, lambda held: b'{"a":{"dtype":"F32"}'),
        "bad header",
    ),
    "deep JSON": (
        lambda folder: header(folder, lambda held: b'{"a":' * 5000 + b"1" + b"}" * 5000),
        "bad header .*recursion",
    ),
    "cut short": (raw(lambda data: data[:-100]), "not fully covered"),
    "trailing bytes": (raw(lambda data: data + b"\0" * 64), "not fully covered"),
    "a key twice": (_twice, "duplicate name"),
    "a key missing": (
        _tensors(lambda held: held.pop(first(held))),
        "missing: confidence_head.proj.weight|no tensor is .* as the embedding",
    ),
    "a layer's key missing": (
        _tensors(lambda held: held.pop(max(name for name in held if "up_proj" in name))),
        "missing.*up_proj.weight",
    ),
    "a key too many": (
        _tensors(lambda held: held.update(extra=torch.zeros(3))),
        "unexpected.*: extra",
    ),
    "150 000 empty tensors": (_tensors(_flood), "header of .* bytes, more than"),
    "offsets overlap": (_set("", data_offsets=[0, 4]), "offset"),
    "offsets backwards": (_set("", data_offsets=[8, 0]), "offset"),
    "offsets beyond the file": (_set("", data_offsets=[0, 1 << 40]), "offset"),
    "negative dimension": (_set("", shape=[-1, 4]), _SHAPE),
    "shape overflows": (_set("", shape=[1 << 32, 1 << 32]), _SHAPE),
    "shape without end": (_set("", shape=[math.inf]), "bad header .*infinity"),
    "no shape at all": (_tensors(_scalars), _SHAPE),
    "shape of other size": (_tensor(lambda tensor: tensor.reshape(-1)[:-1]), _SHAPE),
    "shape transposed": (
        _tensor(lambda tensor: tensor.reshape(*reversed(tensor.shape), 1)),
        _SHAPE,
    ),
    "integers": (_tensor(lambda tensor: tensor.to(torch.int32)), "weight I32"),
    "complex numbers": (_tensor(lambda tensor: tensor.to(torch.complex64)), "weight C64"),
    "truths": (_tensor(lambda tensor: tensor.bool()), "weight BOOL"),
    "unknown dtype": (_set("", dtype="F7"), "F7"),
    "NaN": (_fill(float("nan")), "NaN"),
    "infinity": (_fill(float("inf")), "infinite"),
    "infinity below": (_fill(float("-inf")), "infinite"),
    "pickled weights": (_pickled, "pickled"),
    "a folder in place of the file": (
        _folder_in_place,
        "neither model.safetensors nor",
    ),
    "index leaves the folder": (_outside, "outside.safetensors' leaves the folder"),
    "link leaves the folder": (_linked, "link that leaves the folder"),
}
CONFIGS: dict[str, Case] = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        "config.json: there is no such file",
    ),
    "config is no JSON": (_text("{"), "config.json: not readable as JSON"),
    "config is a list": (_text("[]"), "config.json: expected a JSON object"),
    "config of 100 MB": (_text('{"a": "', 100_000_000, '"}'), "config.json: 100000009 bytes, more"),
    "hidden size 0": (_config(hidden_size=0), "hidden_size"),
    "hidden size of other weights": (_config(hidden_size=128), "instead of .*128|hidden_size"),
    "a million layers": (_config(num_hidden_layers=1_000_000), "num_hidden_layers"),
    "negative vocabulary": (_config(vocab_size=-5), "vocab_size"),
    "vocabulary of other weights": (
        _config(vocab_size=64),
        "embed_tokens.weight .* instead of .64",
    ),
    "heads that do not divide": (
        _config(num_attention_heads=7),
        "num_attention_heads|q_proj.weight .* instead of .224",
    ),
    "unknown model": (
        _config(model_type="nonesuch", architectures=["Nonesuch"]),
        "model_type|model type",
    ),
    "remote code": (
        _config(
            model_type="evil",
            auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
        ),
        "model_type|custom code",
    ),
}
