"""Reads the tensors of a drafter's folder under the released names, from any format or way of
saving.

A draft vocabulary's two maps are taken out and checked. A file may leave out the tables that are
verbatim copies of the target's; they are read from the target's own checkpoint, when one is named:
of its head the rows of the tokens that can be drafted.

The library reads more than it writes: buffers of older releases, models saved without their head or
inside another module, one table of two tied ones under either name, or both. None of it changes a
number. Heads whose rotating pairs are neighbours are reordered so that pairs lie half a head apart:
value 2i of a head becomes value i, and 2i + 1 becomes i + hd/2. The scores of queries and keys stay
the same, and everything after the loader has one rotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from dspark.errors import CheckpointError
from dspark.model.config import CONFIG_NAME, DrafterConfig
from dspark.model.config_keys import read_json
from dspark.model.formats.quantised import module_entries
from dspark.model.formats.speculators import is_speculators
from dspark.model.formats.vocabulary import DRAFTABLE, OFFSETS, DraftVocabulary, read_vocabulary
from dspark.model.weights_file import TensorEntry, read_directory, read_tensors

SHARED = ("embed_tokens.weight", "lm_head.weight")
# Tensors that only trainers use.
_TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight", "mask_embedding")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_COMPUTED = "rotary_emb.inv_freq"  # older releases stored the frequencies of each layer
_INSIDE = "model."


class TensorSource(NamedTuple):
    """The tensors that a loader reads."""

    entries: dict[str, TensorEntry]
    vocabulary: DraftVocabulary | None  # of a head of fewer tokens than the target's


def open_source(
    folder: Path, config: DrafterConfig, *, target: Callable[[], Path] | None = None
) -> TensorSource:
    """The tensor directory of a drafter. `target` finds the target's folder, and is called only if
    tables are left out."""
    entries = without_computed(read_directory(folder))
    if config.stage is not None:
        return TensorSource(_module(folder, entries, config), None)
    if config.kind == "lm":
        entries = _language_entries(folder, entries, tied=config.tie_word_embeddings)
        return TensorSource(reordered(entries, config), None)
    if is_speculators(read_json(folder / CONFIG_NAME)):
        entries = {name: entry for name, entry in entries.items() if name not in _TRAINING_ONLY}
    maps = {name: entries.pop(name) for name in (OFFSETS, DRAFTABLE) if name in entries}
    vocabulary = None
    if config.draft_vocab_size or maps:
        read = dict(read_tensors(maps, sorted(maps)))
        vocabulary = read_vocabulary(
            folder,
            offsets=read.get(OFFSETS),
            draftable=read.get(DRAFTABLE),
            size=config.head_size,
            vocab_size=config.vocab_size,
        )
        if torch.equal(vocabulary.target_ids, torch.arange(config.vocab_size)):
            vocabulary = None
    if config.tie_word_embeddings:
        entries = _tied(folder, entries)
    entries |= _shared(folder, entries, config, vocabulary, target)
    return TensorSource(reordered(entries, config), vocabulary)


def left_out(folder: Path, config: DrafterConfig) -> list[str]:
    """Names of the tables that a drafter's folder leaves to its target."""
    if config.kind == "lm" or config.stage is not None:
        return []
    absent = _absent(read_directory(folder))
    return absent if len(absent) == len(SHARED) or not config.tie_word_embeddings else []


def projection_entries(folder: Path, config: DrafterConfig) -> dict[str, TensorEntry]:
    """The tensor directory for reading the projection alone."""
    entries = read_directory(folder)
    return entries if config.stage is None else _module(folder, entries, config)


def _module(
    folder: Path, entries: dict[str, TensorEntry], config: DrafterConfig
) -> dict[str, TensorEntry]:
    try:
        return module_entries(entries, config.num_hidden_layers)
    except CheckpointError as error:
        raise type(error)(f"{folder}: {error}") from error


def _tied(folder: Path, entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Both names for a tied table, whichever the file has; if it has both, they must be equal."""
    here = [name for name in SHARED if name in entries]
    if len(here) == len(SHARED):
        _check_equal(folder, entries, *SHARED)
    return {name: entries[here[0]] for name in SHARED if here} | entries


def _absent(entries: Mapping[str, TensorEntry]) -> list[str]:
    return [name for name in SHARED if name not in entries]


def _shared(
    folder: Path,
    entries: Mapping[str, TensorEntry],
    config: DrafterConfig,
    vocabulary: DraftVocabulary | None,
    target: Callable[[], Path] | None,
) -> dict[str, TensorEntry]:
    """Entries of the target's tables for those that the file leaves out."""
    absent = _absent(entries)
    if not absent:
        return {}
    if target is None:
        raise CheckpointError(
            f"{folder}: {' and '.join(absent)} are left out, they are the target's, and no "
            "target is named"
        )
    where = target()
    theirs = target_tables(where)
    whole = (config.vocab_size, config.hidden_size)
    for name in absent:
        if theirs[name].shape != whole:
            raise CheckpointError(
                f"{folder}: {name} is left out, it is the target's: {list(whole)} is wanted, "
                f"{where} has {list(theirs[name].shape)}"
            )
    found = {name: theirs[name] for name in absent}
    head = SHARED[1]
    if vocabulary is not None and head in found:
        rows = vocabulary.target_ids
        found[head] = dataclasses.replace(
            found[head], shape=(len(rows), config.hidden_size), rows=rows
        )
    return found


def target_tables(folder: Path) -> dict[str, TensorEntry]:
    """A target's embedding and head under the drafter's names; tied ones are stored once, under
    either name."""
    theirs = read_directory(folder)
    stored = {
        table: _one(theirs, folder, table)
        for table in SHARED
        if any(name.endswith(table) for name in theirs)
    }
    either = next(iter(stored.values()), None) or _one(theirs, folder, SHARED[0])
    return {table: theirs[stored.get(table, either)] for table in SHARED}


def _one(entries: dict[str, TensorEntry], folder: Path, ending: str) -> str:
    names = [name for name in entries if name == ending or name.endswith("." + ending)]
    if len(names) != 1:
        raise CheckpointError(
            f"{folder}: expected one tensor that ends in {ending}, found {names[:4]}"
        )
    return names[0]


def without_computed(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The entries without what follows from the configuration, which the library ignores too."""
    return {name: entry for name, entry in entries.items() if _COMPUTED not in name}


def _language_entries(
    folder: Path, entries: Mapping[str, TensorEntry], *, tied: bool
) -> dict[str, TensorEntry]:
    """Names as in `LanguageDrafter.stored_names`; a tied head that is stored beside its table must
    equal it."""
    inner = [name for name in entries if name != HEAD]
    while inner and all(name.startswith(2 * _INSIDE) or name == _INSIDE + HEAD for name in inner):
        entries = {name.removeprefix(_INSIDE): entry for name, entry in entries.items()}
        inner = [name for name in entries if name != HEAD]
    if not any(name.startswith(_INSIDE) for name in inner):
        entries = {
            name if name == HEAD else _INSIDE + name: entry for name, entry in entries.items()
        }
    found = dict(entries)
    if tied and HEAD in found:
        if EMBEDDING in found:
            _check_equal(folder, found, EMBEDDING, HEAD)
        found.setdefault(EMBEDDING, found.pop(HEAD))
    return found


def _check_equal(folder: Path, entries: Mapping[str, TensorEntry], table: str, head: str) -> None:
    """Refuses a head that differs from the table it is tied to."""
    both = dict(read_tensors(entries, (table, head)))
    if not torch.equal(both[table], both[head]):
        raise CheckpointError(
            f"{folder}: {head} differs from {table}, and config.json ties them "
            "(tie_word_embeddings)"
        )


def reordered(entries: dict[str, TensorEntry], config: DrafterConfig) -> dict[str, TensorEntry]:
    """The same entries; where pairs are neighbours, those of queries and keys with reordered
    rows."""
    if not config.interleaved:
        return entries
    one = torch.cat((torch.arange(0, config.head_dim, 2), torch.arange(1, config.head_dim, 2)))
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
        "q_norm": 1,
        "k_norm": 1,
    }
    made = dict(entries)
    for name, entry in entries.items():
        count = next(
            (count for part, count in heads.items() if name.endswith(f".{part}.weight")), 0
        )
        if count and entry.shape and entry.shape[0] == count * config.head_dim:
            rows = (torch.arange(count).unsqueeze(1) * config.head_dim + one).flatten()
            made[name] = dataclasses.replace(entry, rows=rows)
    return made
