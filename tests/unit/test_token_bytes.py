"""What entries of a vocabulary stand for is what the tokenizer itself makes of them, whatever its
decoder."""

import errno
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from dspark.errors import ConfigError
from dspark.token_bytes import read_token_bytes

WORDS = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁x", "a", "▁▁b", "süß", "🙂"]
FALLBACK = [decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "replaced": decoders.Sequence([decoders.Replace("▁", " "), *FALLBACK]),
    "replaced and stripped": decoders.Sequence(
        [decoders.Replace("▁", " "), *FALLBACK, decoders.Strip(" ", 1, 0)]
    ),
    "metaspace": decoders.Metaspace(prepend_scheme="never"),
    "metaspace and bytes": decoders.Sequence(
        [*FALLBACK[:1], decoders.Metaspace(prepend_scheme="never")]
    ),
    "byte level": decoders.ByteLevel(),
    "none": None,
}


def made(decoder: Any, folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(WORDS)}, [], unk_token="<unk>")
    )
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.add_tokens(
        [AddedToken("▁▁▁", normalized=False), AddedToken("\n\n", normalized=False)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_are_those_that_the_tokenizer_decodes(name: str, tmp_path: Path) -> None:
    tokenizer = made(DECODERS[name], tmp_path)
    words = read_token_bytes(tmp_path, len(WORDS) + 3)
    assert words is not None
    assert words[0] == words[-1] == b"", "special, and no entry"
    a = tokenizer.token_to_id("a")
    for token in range(1, len(WORDS) + 2):
        # Between two others, where nothing is stripped.
        text = tokenizer.decode([a, token, a])
        between = (
            text.removeprefix("a").removesuffix("a")
            if name != "none"
            else text.split(" ", 1)[1].rsplit(" ", 1)[0]
        )
        assert words[token].decode(errors="replace") == between, tokenizer.id_to_token(token)


@pytest.mark.parametrize("name", ["replaced", "replaced and stripped", "metaspace and bytes"])
def test_single_bytes_and_spaces_are_themselves(name: str, tmp_path: Path) -> None:
    made(DECODERS[name], tmp_path)
    words = read_token_bytes(tmp_path, len(WORDS))
    assert words is not None
    assert words[1:257] == [bytes([byte]) for byte in range(256)]
    assert words[257:] == [b" ", b" x", b"a", b"  b", "süß".encode(), "🙂".encode()]


def test_a_file_that_cannot_be_read_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    made(None, tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    file = tmp_path / "tokenizer.json"
    said = f"^target: {re.escape(str(file))} cannot be read: Permission denied$"
    with pytest.raises(ConfigError, match=said):
        read_token_bytes(tmp_path, len(WORDS))


def test_what_settings_alone_call_special_is_no_text(tmp_path: Path) -> None:
    made(None, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    words = read_token_bytes(tmp_path, len(WORDS))
    assert words is not None
    assert words[WORDS.index("a")] == b""
