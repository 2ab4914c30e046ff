"""Tokenizer: text to ids and back, incrementally, also where a character takes several tokens.
Needs only the library `tokenizers`.

Without a tokenizer, requests and answers are ids only.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from dspark.errors import ConfigError
from dspark.targets import imported, is_imported
from dspark.token_bytes import CONFIG, FILE, special_tokens, spelling

_WINDOW = 4  # last prompt tokens, on which the text of the answer's first token depends


class Tokenizer:
    """A checkpoint's own tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        decoder = backend.decoder
        self._spelled = spelling(None if decoder is None else json.loads(decoder.__getstate__()))

    @staticmethod
    def load(folder: str | Path) -> Tokenizer | None:
        """The tokenizer in a checkpoint's folder; None when it has none."""
        path = Path(folder) / FILE
        if not path.is_file():
            return None
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"target: {path} is not a tokenizer: {error}") from error
        _for_serving(backend, Path(folder) / CONFIG)
        return Tokenizer(backend)

    def name_of(self, token: int) -> str | None:
        """The vocabulary entry of an id, as the vocabulary writes it."""
        name: str | None = self._backend.id_to_token(token)
        return name

    def bytes_of(self, token: int) -> bytes:
        """The bytes that the token stands for; empty for an unknown id."""
        name = self.name_of(token)
        return b"" if name is None else self._spelled(name)

    def id_of(self, text: str) -> int | None:
        """The id of the token written `text`; None for none."""
        token: int | None = self._backend.token_to_id(text)
        return token

    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens, which are no text, by how they are written."""
        return {
            each.content: token
            for token, each in self._backend.get_added_tokens_decoder().items()
            if each.special
        }

    def encode(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        """Ids of `text`. add_special: let the tokenizer put its own tokens around the text."""
        return tuple(self._backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def stream(self, prompt: Sequence[int], *, skip_special: bool) -> TextStream:
        return TextStream(self, self._backend, prompt[-_WINDOW:], skip_special)


def find_tokenizer(target: str | None, revision: str | None) -> Tokenizer | None:
    """The tokenizer of a folder or of a hub id; None when the target has none or none is named."""
    path = find_file(target, FILE, revision)
    if path is None:
        return None
    with contextlib.suppress(ConfigError):
        # may be missing in an offline cache; if found, it is in the folder of the other file
        find_file(target, CONFIG, revision)
    return Tokenizer.load(path.parent)


def _for_serving(backend: Any, config: Path) -> None:
    """Removes the training settings of a tokenizer file, and marks as special the tokens that the
    file `config` lists.

    Truncation and padding are for training batches; dropout of merges and sampling among pieces
    would give one text different ids. The post-processor stays: with it the library puts its own
    tokens around a text.
    """
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    for name in ("alpha", "nbest_size"):
        if getattr(backend.model, name, None) is not None:
            setattr(backend.model, name, None)
    added = backend.get_added_tokens_decoder()
    for text in special_tokens(config):
        token = backend.token_to_id(text)
        if token is None:
            continue
        known = added.get(token, AddedToken(text, normalized=False))
        if token not in added or not known.special:
            flags = {
                name: getattr(known, name)
                for name in ("single_word", "lstrip", "rstrip", "normalized")
            }
            backend.add_special_tokens([AddedToken(text, special=True, **flags)])


def find_file(target: str | None, name: str, revision: str | None) -> Path | None:
    """A file of a target's folder, imported target or hub id; None when there is none."""
    if not target:
        return None
    if is_imported(target):
        target = str(imported(target))
    if os.path.isdir(target):
        path = Path(target) / name
        return path if path.is_file() else None
    # comes with `tokenizers`; imported here, since most deployments name a folder
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(target, name, revision=revision))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"target: {target} is no folder, and its {name} is not in the hub cache"
        ) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, ValueError, OSError) as error:
        raise ConfigError(f"target: {target}: {error}") from error


class TextStream:
    """The text of one answer as its ids arrive."""

    def __init__(
        self, tokenizer: Tokenizer, backend: Any, prefix: Sequence[int], skip_special: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._backend = backend
        self._skip_special = skip_special
        self._stream: Any = DecodeStream(list(prefix), skip_special)
        self._before = list(prefix)  # ids of the newest complete piece
        self._pending: list[int] = []  # ids since then

    def push(self, token: int) -> str:
        """Adds a token; returns the text it completes, often none in the middle of a character."""
        self._pending.append(token)
        piece = self._step(token)
        if not piece:
            return ""
        if self._pending:
            self._before, self._pending = self._pending, []
        return piece

    def _step(self, token: int) -> str | None:
        try:
            piece: str | None = self._stream.step(self._backend, token)
        except Exception:
            # the library fails on some malformed byte sequences; the text continues after them
            flushed = list(self._pending)
            piece = self.flush()
            self._stream = DecodeStream(flushed[-_WINDOW:], self._skip_special)
            self._before = flushed
        return piece

    def flush(self) -> str:
        """Returns the text of the ids that `push` still holds back, replacement characters
        included."""
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._before, skip_special=self._skip_special)
        whole = self._tokenizer.decode(
            [*self._before, *self._pending], skip_special=self._skip_special
        )
        alone = self._tokenizer.decode(self._pending, skip_special=self._skip_special)
        self._pending = []
        # Bytes that are no character can change how the bytes before them are decoded.
        return whole[len(before) :] if whole.startswith(before) else alone
