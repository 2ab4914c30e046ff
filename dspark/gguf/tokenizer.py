"""The tokenizer of a GGUF file, as the library makes it: tokenizer.json, its settings, the chat template."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError

# Vocabularies whose merges were learned with every digit alone; the library knows no rule of theirs.
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")


def save_tokenizer(file: Path, settings: Mapping[str, Any], folder: Path) -> None:
    """Writes the tokenizer's files."""
    if not settings.get("tokenizer.ggml.tokens"):
        raise CheckpointError("tokenizer.ggml.tokens: not there")
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        with tempfile.TemporaryDirectory() as alone:  # files beside it would be read too
            (Path(alone) / file.name).symlink_to(file.resolve())
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(alone, gguf_file=file.name, local_files_only=True)
        tokenizer.save_pretrained(folder)
        if settings.get("tokenizer.ggml.pre") in _SINGLE_DIGITS:
            _split_digits(folder / "tokenizer.json")
    except OSError:
        raise
    except Exception as error:  # what the library makes of a strange vocabulary has no type of its own
        raise CheckpointError(f"tokenizer.ggml: {type(error).__name__}: {error}") from error


def _split_digits(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
