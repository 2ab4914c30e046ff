"""Files that cannot be served are refused by name, and leave nothing behind."""

import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark.errors import CheckpointError
from dspark.gguf.folder import import_gguf
from dspark.gguf.wheel import import_target
from tests.unit.gguf.files import random_model, write_gguf


def _head(keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, keys) + rest


def _key(name: str, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


def _array(kind: int, count: int, name: str = "a") -> bytes:
    """The head of a file whose one setting is an array."""
    return _head(1, _key(name, 9) + struct.pack("<IQ", kind, count))


FOREIGN: dict[str, tuple[Any, str]] = {
    "empty": (b"", "does not begin with GGUF"),
    "another format": (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
    "magic alone": (b"GGUF", "truncated"),
    "an old version": (_head(0, version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "a million settings": (_head(1 << 40), "more than"),
    "a string longer than the file": (_head(1, struct.pack("<Q", 1 << 60)), "truncated"),
    "an array longer than the file": (_array(0, 1 << 20), "truncated"),
    "strings longer than the file": (_array(8, 1 << 20), "truncated"),
    "an array longer than any": (_array(0, 1 << 62), "more than 4194304"),
    "an unknown type": (_head(1, _key("a", 77)), "type 77"),
    "arrays in arrays": (_array(9, 1), "type 9"),
    "text that is none": (_head(1, struct.pack("<Q", 2) + b"\xff\xff" + bytes(8)), "not readable"),
    "one key twice": (_head(2, (_key("a", 0) + b"\x01") * 2), "a: there twice"),
    "no model": (_head(0), "general.architecture: None"),
    "several models": (
        _array(0, 1, "general.architecture") + b"\x07",
        r"general.architecture: \[7\] is none",
    ),
}


@pytest.fixture(scope="module")
def llama() -> Any:
    return random_model("llama")


@pytest.fixture
def file(llama: Any, tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "bad.gguf", llama, "llama")


def _without(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.__delitem__(name)


def _put(name: str, values: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: values.astype(np.float32)})


def _spoil(name: str, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[5] = value

    return change


TENSORS = {
    "blk.1.ffn_up.weight": (_without("blk.1.ffn_up.weight"), "missing: blk.1.ffn_up.weight"),
    "a tensor of nobody": (
        _put("blk.0.extra.weight", np.ones(4)),
        "unexpected.*blk.0.extra.weight",
    ),
    "frequencies": (
        _put("rope_freqs.weight", np.ones(16)),
        "rope_freqs.weight: these frequencies are of no rule",
    ),
    "shape": (
        _put("blk.0.attn_v.weight", np.ones((32, 64))),
        "v_proj.weight .32, 64. instead of .64, 64.",
    ),
    "NaN": (_spoil("blk.0.attn_q.weight", np.nan), "blk.0.attn_q.weight holds NaN"),
    "infinity": (_spoil("output_norm.weight", np.inf), "output_norm.weight holds NaN or infinite"),
    "rows of no head": (
        _put("blk.1.attn_k.weight", np.zeros((63, 64))),
        "blk.1.attn_k.weight: 63 rows are not 2 heads of an even size",
    ),
}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "depth": ({"llama.block_count": 3}, "missing: blk.2"),
    "more layers than any": ({"llama.block_count": 1 << 31}, "block_count: .*found 2147483648"),
    "layers and a half": ({"llama.block_count": 2.5}, "llama.block_count: .*found 2.5"),
    "heads": ({"llama.attention.head_count": 0}, "llama.attention.head_count: .*found 0"),
    "no heads of keys": ({"llama.attention.head_count_kv": 0}, "head_count_kv: .*found 0"),
    "heads by layer": (
        {"llama.attention.head_count_kv": [2, 2]},
        r"head_count_kv: .*found \[2, 2\]",
    ),
    "head size": ({"llama.attention.key_length": 0}, "llama.attention.key_length: .*found 0"),
    "part of a head rotates": (
        {"llama.attention.key_length": 32, "llama.rope.dimension_count": 16},
        "llama.rope.dimension_count: 16 of a head's 32 values",
    ),
    "epsilon": (
        {"llama.attention.layer_norm_rms_epsilon": -1.0},
        "layer_norm_rms_epsilon: .*found -1.0",
    ),
    "base": ({"llama.rope.freq_base": "x"}, 'llama.rope.freq_base: .*found "x"'),
    "scale": ({"llama.logit_scale": 0.5}, "llama.logit_scale: 0.5 is not supported"),
    "a list for a token": ({"tokenizer.ggml.eot_token_id": [1]}, r"eot_token_id: .*found \[1\]"),
    "a token of nobody": (
        {"tokenizer.ggml.eos_token_id": 288},
        "eos_token_id: .*to 287, found 288",
    ),
    "one token": ({"tokenizer.ggml.tokens": 5}, "tokenizer.ggml.tokens: no list of tokens"),
    "alignment": ({"general.alignment": 24}, "general.alignment: 24 is no power of two"),
    "heads that do not divide": (
        {"llama.attention.head_count": 3},
        r"llama: .* hidden size \(64\) is not a multiple of the number of attention heads \(3\)",
    ),
    "no width": ({"llama.embedding_length": None}, "llama.embedding_length: missing"),
    "words for a number": (
        {"llama.context_length": "long"},
        'llama.context_length: .*found "long"',
    ),
    "scaling": ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type: 'yarn'"),
    "no vocabulary": ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens: no list of tokens"),
    "tokenizer": ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml: .*bert"),
}


def _behind(name: bytes, skip: int, value: bytes) -> Callable[[bytes], bytes]:
    """These bytes, so many behind a name."""

    def change(whole: bytes) -> bytes:
        at = whole.index(name) + len(name) + skip
        return whole[:at] + value + whole[at + len(value) :]

    return change


NORM, TABLE = b"blk.0.attn_norm.weight", 4 + 8  # the number of dimensions, and one of them
OVERLAP = "begins at byte .*, the tensor before it ends at"
BYTES = {
    "architecture": (
        _behind(b"general.architecture", 4 + 8, b"mamba"),
        "'mamba' is none of llama, qwen2, qwen3, gemma2, gemma3",
    ),
    "format": (_behind(NORM, TABLE, struct.pack("<I", 99)), "storage format 99"),
    "another format, half as long": (
        _behind(NORM, TABLE, struct.pack("<I", 1)),
        f"blk.0.* {OVERLAP}",
    ),
    "over another one": (
        _behind(NORM, TABLE + 4, struct.pack("<Q", 0)),
        f"{NORM.decode()} {OVERLAP}",
    ),
    **{
        f"cut at {share}": (lambda held, share=share: held[: int(share * len(held))], "truncated")
        for share in (0.02, 0.3, 0.7, 0.999)
    },
}


HOW = {"content": FOREIGN, "change": TENSORS, "settings": SETTINGS, "spoil": BYTES}
CASES = {name: (how, *case) for how, cases in HOW.items() for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_file_that_is_not_what_it_says_is_refused(name: str, llama: Any, tmp_path: Path) -> None:
    how, told, wanted = CASES[name]
    file = tmp_path / "bad.gguf"
    if how == "content":
        file.write_bytes(told)
    elif how == "spoil":
        file.write_bytes(told(write_gguf(file, llama, "llama").read_bytes()))
    else:
        write_gguf(file, llama, "llama", **{how: told})
    with pytest.raises(CheckpointError, match=wanted) as caught:
        import_gguf(file, tmp_path / "out")
    assert str(caught.value).startswith(f"{file}: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf"]


@pytest.mark.parametrize("name", ["pipe.gguf", "pipe.whl"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name}: not a regular file"):
        import_target(str(tmp_path / name), tmp_path / "out")


@pytest.fixture
def _small_files() -> Iterator[None]:
    """No file may grow beyond 50 kB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("_small_files")
def test_a_full_disk_is_told_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )
    with pytest.raises(CheckpointError, match="cannot be written: File too large"):
        import_gguf(file, tmp_path / "place" / "out")
    assert not list((tmp_path / "place").iterdir())


def test_too_little_space_is_told_before_the_weights_are_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.gguf.folder._SPARE_BYTES", 1 << 60)
    with pytest.raises(
        CheckpointError, match=r"cannot be written: [0-9]+ bytes wanted, [0-9]+ free"
    ):
        import_gguf(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_in_use_is_left_alone(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    with pytest.raises(CheckpointError, match="there already"):
        import_gguf(file, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
