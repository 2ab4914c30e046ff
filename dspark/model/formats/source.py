"""The tensors of a drafter's folder under the released names, whichever format stored them.

A draft vocabulary's two maps are taken out and checked. The speculators format also leaves out tables that are verbatim
copies of the target's; they are read from the target's own checkpoint, when one is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dspark.errors import CheckpointError
from dspark.model.config import CONFIG_NAME, DrafterConfig
from dspark.model.config_keys import read_json
from dspark.model.formats.library import language_entries, without_computed
from dspark.model.formats.speculators import is_speculators
from dspark.model.formats.vocabulary import DRAFTABLE, OFFSETS, DraftVocabulary, read_vocabulary
from dspark.model.weights_file import Entry, read_directory, read_tensors

SHARED = ("embed_tokens.weight", "lm_head.weight")
# Written by trainers for themselves; drafting needs none of them.
_TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight", "mask_embedding")


class Source(NamedTuple):
    """What a loader reads from."""

    entries: dict[str, Entry]
    vocabulary: DraftVocabulary | None  # of a head that speaks fewer tokens than the target


def open_source(folder: Path, config: DrafterConfig, *, target: Callable[[], Path] | None = None) -> Source:
    """The tensor directory of a drafter. `target` finds the target's folder and is asked where tables are left out."""
    entries = without_computed(read_directory(folder))
    if config.kind == "lm":
        return Source(language_entries(folder, entries, tied=config.tie_word_embeddings), None)
    if is_speculators(read_json(folder / CONFIG_NAME)):
        entries = {name: entry for name, entry in entries.items() if name not in _TRAINING_ONLY}
        entries |= _shared(folder, entries, config, target)
    maps = {name: entries.pop(name) for name in (OFFSETS, DRAFTABLE) if name in entries}
    if not config.draft_vocab_size:
        return Source(entries, None)
    read = dict(read_tensors(maps, sorted(maps)))
    vocabulary = read_vocabulary(
        folder,
        offsets=read.get(OFFSETS),
        draftable=read.get(DRAFTABLE),
        size=config.draft_vocab_size,
        vocab_size=config.vocab_size,
    )
    return Source(entries, vocabulary)


def _shared(
    folder: Path, entries: dict[str, Entry], config: DrafterConfig, target: Callable[[], Path] | None
) -> dict[str, Entry]:
    """The target's own tables for those that the file leaves out; a head of few tokens is never left out."""
    left_out = [name for name in SHARED if name not in entries]
    if config.draft_vocab_size:
        left_out = [name for name in left_out if name != "lm_head.weight"]
    if not left_out:
        return {}
    if target is None:
        raise CheckpointError(
            f"{folder}: {' and '.join(left_out)} are left out, they are the target's: name the target as well"
        )
    where = target()
    theirs = read_directory(where)
    # A target that ties its tables stores one, under either name.
    stored = {table: _one(theirs, where, table) for table in SHARED if any(name.endswith(table) for name in theirs)}
    embedding, head = (stored.get(table) for table in SHARED)
    either = embedding or head or _one(theirs, where, SHARED[0])
    found = dict(zip(SHARED, (embedding or either, head or either), strict=True))
    return {name: dataclasses.replace(theirs[found[name]], stored=found[name]) for name in left_out}


def _one(entries: dict[str, Entry], folder: Path, ending: str) -> str:
    names = [name for name in entries if name == ending or name.endswith("." + ending)]
    if len(names) != 1:
        raise CheckpointError(f"{folder}: expected one tensor that ends in {ending}, found {names[:4]}")
    return names[0]
