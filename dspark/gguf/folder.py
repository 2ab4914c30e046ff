"""Converts a GGUF file to a checkpoint folder: config, bfloat16 weights, tokenizer, chat template,
generation settings.

The folder is made beside its final place and moved there when everything in it has been read back,
so a reader sees all of it or nothing. Tensors are read, converted and written one at a time.
"""

from __future__ import annotations

import errno
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dspark.errors import CheckpointError
from dspark.gguf.architectures import (
    DIVISORS,
    Architecture,
    architecture_of,
    config_of,
    expected,
    restored,
    scaling_of,
    token_id,
)
from dspark.gguf.file import GgufFile
from dspark.model.config_keys import CONFIG_NAME, refuse
from dspark.model.target_check import check_target_config, check_target_headers
from dspark.model.weights_file import SINGLE_NAME, check_finite, new_folder, read_directory
from dspark.progress import progress
from dspark.whole_file import flush_to_disk

_ENDS = ("eos", "eot", "eom")  # tokens that end an answer, as a file may name them
# Ends of a turn: files of chat models need not name them, and llama.cpp goes by the text, too.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_SPARE_BYTES = 32 << 20  # besides the weights: the tokenizer, and what a file system reserves
# How texts are split before merges: rules that the library does not name. GPT-2's is its default.
_SINGLE_DIGITS = (
    "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
)  # fmt: skip
_AS_GPT2 = (
    "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "trillion", "granite-docling",
)  # fmt: skip


def import_gguf(file: str | Path, out: str | Path) -> None:
    """Writes the model in `file` as a new folder `out`, with a progress bar where stderr is a
    terminal. Raises CheckpointError, and leaves nothing then."""
    with GgufFile(file) as source, new_folder(Path(out)) as folder:
        try:
            _fill(folder, source)
        except CheckpointError as error:
            said = str(error).removeprefix(f"{source.path}: ").replace(str(folder), str(out))
            raise CheckpointError(f"{source.path}: {said}") from error


def _fill(folder: Path, source: GgufFile) -> None:
    made = architecture_of(source.settings)
    config = config_of(source.settings, source.tensors)
    if DIVISORS in source.tensors:
        config["rope_scaling"] = scaling_of(source.values(DIVISORS), config)
    places = _places(source, config)
    _put_json(folder / CONFIG_NAME, config)
    _put_json(folder / "generation_config.json", _generation(source.settings, config))
    save_tokenizer(source.path, source.settings, folder)
    _write_weights(folder / SINGLE_NAME, source, places, config, made)
    entries = read_directory(folder)
    check_target_config(folder, entries)
    check_target_headers(folder, entries)


def _places(source: GgufFile, config: Mapping[str, Any]) -> dict[str, str]:
    """Tensor names in the file -> the library's names; refuses missing and unexpected tensors."""
    wanted = expected(config, source.settings["general.architecture"])
    complaints = {
        "missing": sorted(wanted.keys() - source.tensors.keys()),
        "unexpected in this architecture": sorted(
            source.tensors.keys() - wanted.keys() - {DIVISORS}
        ),
    }
    refuse(source.path, complaints)
    return wanted


def _generation(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    ends = [token_id(settings, end) for end in _ENDS]
    tokens = settings["tokenizer.ggml.tokens"]
    ends += [tokens.index(end) for end in _TURN_ENDS if end in tokens]
    stops = list(dict.fromkeys(end for end in ends if end is not None))
    said = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": stops,
        "pad_token_id": config["pad_token_id"],
    }
    return {key: value for key, value in said.items() if value not in (None, [])}


def _write_weights(
    path: Path,
    source: GgufFile,
    places: Mapping[str, str],
    config: Mapping[str, Any],
    made: Architecture,
) -> None:
    """Writes a safetensors file with values rounded to bfloat16, in the order of the GGUF file."""
    names = [name for name in source.tensors if name in places]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        shape = source.tensors[name].shape
        end = place + 2 * torch.Size(shape).numel()
        header[places[name]] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    free = shutil.disk_usage(path.parent).free
    if free < place + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"{place + _SPARE_BYTES} bytes wanted, {free} free")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    title = f"importing {source.path.name}"
    with (
        path.open("wb") as stream,
        progress(title, len(names), shown=sys.stderr.isatty()) as tell,
    ):
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            values = torch.from_numpy(restored(name, source.values(name), config, made).copy())
            check_finite(name, values)
            stream.write(values.to(torch.bfloat16).view(torch.uint8).numpy().data)
            tell(advance=1)
    flush_to_disk(path)


def _put_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    flush_to_disk(path)


def save_tokenizer(file: Path, settings: Mapping[str, Any], folder: Path) -> None:
    """Writes the tokenizer's files to `folder`; raises CheckpointError for a vocabulary it cannot
    read."""
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.utils import logging

    logging.set_verbosity_error()
    pre = str(settings.get("tokenizer.ggml.pre", ""))
    if settings.get("tokenizer.ggml.model") == "gpt2" and not (
        pre in _SINGLE_DIGITS or pre in _AS_GPT2 or pre in GGUF_PRE_TOKENIZER_SPLITS
    ):  # any other would give prompts ids that the target has not learned
        raise CheckpointError(f"tokenizer.ggml.pre: {pre[:64]!r} is no rule known here")
    try:
        with tempfile.TemporaryDirectory() as alone:  # files beside it would be read too
            (Path(alone) / file.name).symlink_to(file.resolve())
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
                alone, gguf_file=file.name, local_files_only=True
            )
        tokenizer.save_pretrained(folder)
        if pre in _SINGLE_DIGITS:
            _split_digits(folder / "tokenizer.json")
    except OSError:
        raise
    # of any type, for a strange vocabulary
    except Exception as error:
        raise CheckpointError(f"tokenizer.ggml: {type(error).__name__}: {error}") from error


def _split_digits(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [digits, content["pre_tokenizer"]],
    }
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
