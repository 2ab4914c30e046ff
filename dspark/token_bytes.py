"""The bytes that each token of a checkpoint's tokenizer stands for, read from its files alone.

Entries of a vocabulary are bytes in a printable alphabet (byte-level BPE), pieces of text with `▁`
for a space and `<0x0A>` for single bytes (SentencePiece), or plain text: the tokenizer's decoder
says which, also for added tokens. Special tokens are no text and have no bytes here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError, in_short

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
MAP = "special_tokens_map.json"  # where older releases name special tokens
# Keys of a tokenizer's configuration that name special tokens.
SPECIAL = (
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_MORE = ("additional_special_tokens", "extra_special_tokens")
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """Letter -> byte of byte-level vocabularies (GPT-2): printable bytes are written as themselves,
    the others in order from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


def read_token_bytes(
    folder: Path, vocab_size: int, *, special_too: bool = False
) -> list[bytes] | None:
    """Bytes of tokens 0 .. vocab_size - 1, empty for special tokens and unused ids; None without a
    tokenizer file.

    special_too: special added tokens get bytes that no text has, 0xff 0xff and the id, so that they
    can be named. Raises ConfigError where the files cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        raw = json.loads(path.read_bytes())
        entries, spelled = raw["model"]["vocab"], spelling(raw.get("decoder"))
        pairs = (
            entries.items()
            if isinstance(entries, dict)
            else [(entry[0], at) for at, entry in enumerate(entries)]
        )
        added = raw.get("added_tokens") or []
        special = {each["content"] for each in added if each["special"]} | set(
            special_tokens(folder)
        )
        of = {token: spelled(name) for name, token in pairs if name not in special}
        for each in added:
            no_text = b"\xff\xff%d" % each["id"] if special_too else b""
            of[each["id"]] = no_text if each["content"] in special else spelled(each["content"])
    except (
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ConfigError(f"target: {path} cannot be read: {in_short(error)}") from error
    return [of.get(token, b"") for token in range(vocab_size)]


def special_tokens(folder: Path) -> list[str]:
    """Special tokens that a tokenizer's settings name; a vocabulary may lack some of them."""
    raw = tokenizer_settings(folder)
    try:
        more: list[Any] = [raw.get(key) or () for key in _MORE]
        named = [raw.get(key) for key in SPECIAL]
        named += [
            each for each in (raw.get("added_tokens_decoder") or {}).values() if each.get("special")
        ]
        named += [
            each for some in more for each in (some.values() if isinstance(some, dict) else some)
        ]
        texts = [each.get("content") if isinstance(each, dict) else each for each in named]
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"target: {folder}: special tokens in {CONFIG} or {MAP} cannot be read: {error}"
        ) from error
    return [text for text in texts if isinstance(text, str)]


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """A folder's settings of its tokenizer, empty where it has none. Raises ConfigError."""
    settings = _settings(folder / CONFIG)
    # as the library does: the other file counts where added tokens are not in the settings
    return settings if "added_tokens_decoder" in settings else settings | _settings(folder / MAP)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return {**json.loads(path.read_bytes())}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"target: {path} cannot be read: {in_short(error)}") from error


def spelling(decoder: Any) -> Callable[[str], bytes]:
    """The function from a vocabulary's entry to its bytes, by the `decoder` of `tokenizer.json`.

    Raises LookupError, TypeError or AttributeError for a malformed decoder.
    """
    steps = list(_steps(decoder))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    swaps = [
        (step.get("replacement", _SPACE), " ") for step in steps if step["type"] == "Metaspace"
    ]
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            swaps.append((step["pattern"]["String"], step["content"]))

    def pieces(name: str) -> bytes:
        single = _BYTE.fullmatch(name) if "ByteFallback" in kinds else None
        if single is not None:
            return bytes([int(single[1], 16)])
        for old, new in swaps:
            name = name.replace(old, new)
        return name.encode()

    return pieces


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    """The steps of a decoder, with nested sequences flattened."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for each in decoder["decoders"]:
            yield from _steps(each)
    else:
        yield decoder


def _byte_level(name: str) -> bytes:
    alphabet = byte_alphabet()
    return (
        bytes(alphabet[letter] for letter in name)
        if all(map(alphabet.__contains__, name))
        else name.encode()
    )
