"""A language model's tensors under the names it would be saved with, whatever way of saving the library takes.

The library reads more than it writes: buffers of older releases, models saved without their head or inside another
module, one table of two tied ones under either name, or both. None of it changes a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from dspark.errors import CheckpointError
from dspark.model.weights_file import TensorEntry, read_tensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_COMPUTED = "rotary_emb.inv_freq"  # older releases stored the frequencies of each layer
_INSIDE = "model."


def without_computed(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """All but what follows from the configuration, which the library leaves alone too."""
    return {name: entry for name, entry in entries.items() if _COMPUTED not in name}


def language_entries(folder: Path, entries: Mapping[str, TensorEntry], *, tied: bool) -> dict[str, TensorEntry]:
    """Names as in `LanguageDrafter.stored_names`; a tied head that is stored beside its table must be equal to it."""
    inner = [name for name in entries if name != HEAD]
    while inner and all(name.startswith(2 * _INSIDE) or name == _INSIDE + HEAD for name in inner):
        entries = {_shorter(name): _renamed(entry, name) for name, entry in entries.items()}
        inner = [name for name in entries if name != HEAD]
    if not any(name.startswith(_INSIDE) for name in inner):
        entries = {name if name == HEAD else _INSIDE + name: _renamed(entry, name) for name, entry in entries.items()}
    found = dict(entries)
    if tied and HEAD in found:
        head = found.pop(HEAD)
        if EMBEDDING in found:
            check_equal(folder, (EMBEDDING, found[EMBEDDING]), (HEAD, head))
        else:
            found[EMBEDDING] = _renamed(head, HEAD)
    return found


def _shorter(name: str) -> str:
    return name.removeprefix(_INSIDE)


def _renamed(entry: TensorEntry, name: str) -> TensorEntry:
    """The same tensor, which its file knows by this name."""
    return entry if entry.stored else dataclasses.replace(entry, stored=name)


def check_equal(folder: Path, table: tuple[str, TensorEntry], head: tuple[str, TensorEntry]) -> None:
    """Refuses a head that differs from the table it is tied to; each with its name."""
    both = dict(read_tensors(dict((table, head)), (table[0], head[0])))
    if not torch.equal(both[table[0]], both[head[0]]):
        raise CheckpointError(
            f"{folder}: {head[0]} differs from {table[0]}, and config.json ties them (tie_word_embeddings)"
        )
