"""Tokenizer: text to ids and back, incrementally, also where a character takes several tokens.
Needs only the library `tokenizers`.

Without a tokenizer, requests and answers are ids only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from dspark.errors import ConfigError, in_short
from dspark.runtime.device_worker import DeviceWorker
from dspark.targets import check_model, imported, is_imported
from dspark.token_bytes import CONFIG, FILE, MAP, special_tokens, spelling

_WINDOW = 4  # last prompt tokens, on which the text of the answer's first token depends
# Ids that are held back at most: a character has four bytes, and a token may end inside the next.
_HELD = 16


class Tokenizer:
    """A checkpoint's own tokenizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        # ids of the special tokens, which are no text, by how they are written
        self.special_ids: dict[str, int] = {
            each.content: token
            for token, each in backend.get_added_tokens_decoder().items()
            if each.special
        }
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
        _for_serving(backend, Path(folder))
        return Tokenizer(backend)

    def name_of(self, token: int) -> str | None:
        """The vocabulary entry of an id, as the vocabulary writes it."""
        return self._backend.id_to_token(token)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that the token stands for; empty for an unknown id."""
        name = self.name_of(token)
        return b"" if name is None else self._spelled(name)

    def id_of(self, text: str) -> int | None:
        """The id of the token written `text`; None for none."""
        return self._backend.token_to_id(text)

    def encode(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        """Ids of `text`. add_special: let the tokenizer put its own tokens around the text."""
        return tuple(self._backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, prompt: Sequence[int], *, skip_special: bool) -> TextStream:
        return TextStream(self, prompt[-_WINDOW:], skip_special)


def find_tokenizer(target: str | None, revision: str | None) -> Tokenizer | None:
    """The tokenizer of a folder or of a hub id; None when the target has none or none is named."""
    path = find_file(target, FILE, revision)
    if path is None:
        return None
    for name in (CONFIG, MAP):
        with contextlib.suppress(ConfigError):
            # may be missing in an offline cache; if found, it is in the folder of the other file
            find_file(target, name, revision)
    return Tokenizer.load(path.parent)


async def load_tokenizer(target: str | None, revision: str | None) -> Tokenizer | None:
    """`find_tokenizer` beside the event loop, as the hub may be tried for long. Its thread does not
    hold up the end of the process, as one of `asyncio.to_thread` would."""
    if not target:
        return None
    thread = DeviceWorker("tokenizer")
    try:
        return await thread.run(find_tokenizer, target, revision)
    finally:
        thread.close(wait_s=0.0)


def _for_serving(backend: Any, folder: Path) -> None:
    """Removes the training settings of a tokenizer file, and marks as special the tokens that
    the settings in its folder name.

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
    for text in special_tokens(folder):
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
    check_model("target", target)
    # comes with `tokenizers`; imported here, since most deployments name a folder
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").handlers.clear()  # the root's writes its lines, too
    try:
        return Path(hf_hub_download(target, name, revision=revision))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"target: {target} is no folder, and its {name} is not in the hub cache"
        ) from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, ValueError, OSError) as error:
        raise ConfigError(f"target: {target}: {in_short(error)}") from error


class TextStream:
    """The text of one answer as its ids arrive: what the text of the newest ids together has, and
    that of the ids before them has not."""

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int], skip_special: bool) -> None:
        self._decode = partial(tokenizer.decode, skip_special=skip_special)
        self._before = list(prefix)  # ids of the newest complete piece
        self._said = self._decode(self._before)
        self._pending: list[int] = []  # ids since then

    def push(self, token: int) -> str:
        """Adds a token; returns the text it completes, often none in the middle of a character."""
        self._pending.append(token)
        whole = self._whole()
        incomplete = whole.endswith("\ufffd") or len(whole) <= len(self._said)
        return "" if incomplete and len(self._pending) < _HELD else self._told(whole)

    def flush(self) -> str:
        """Returns the text of the ids that `push` still holds back, replacement characters
        included."""
        return self._told(self._whole()) if self._pending else ""

    def _whole(self) -> str:
        return self._decode([*self._before, *self._pending])

    def _told(self, whole: str) -> str:
        pending, self._pending = self._pending, []
        alone = self._decode(pending)
        # Bytes that are no character can change how the bytes before them are decoded.
        piece = whole[len(self._said) :] if whole.startswith(self._said) else alone
        if piece:
            self._before, self._said = pending, alone
        return piece
