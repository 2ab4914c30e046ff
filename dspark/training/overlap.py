"""Counts evaluation prompts that overlap with training text, and leaves them out.

Two texts overlap if they share a run of `RUN` words; a shorter prompt counts as one run.
Words are compared in lower case without punctuation, and every number is the same word: a worksheet
with other figures is the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError
from dspark.training.disk import read_rows, write_rows
from dspark.training.split import conversation_of
from dspark.whole_file import check_apart

RUN = 13
_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*")

Run = tuple[str, ...]


def words_of(text: str) -> list[str]:
    """Lower-case words; a number is `0`, whatever its value."""
    return ["0" if word[0].isdigit() else word for word in _WORD.findall(text.lower())]


def runs_of(words: Sequence[str], size: int) -> Iterator[Run]:
    """Every run of `size` words."""
    return (tuple(words[n : n + size]) for n in range(len(words) - size + 1))


def separate(
    prompts: Sequence[Path], training: Sequence[Path], *, out: Path | None = None
) -> dict[str, Any]:
    """Counts, for each file of prompts, the rows that share a run with the training files; `out`
    gets the others.

    Rows have any shape that `split` reads, and every turn of a row counts. ConfigError if a row is
    no text, or if two files of prompts have one name.
    """
    names = [path.name for path in prompts]
    if len(set(names)) < len(names):
        raise ConfigError(f"prompts: two files are named {max(names, key=names.count)}")
    if out is not None:
        for name in names:
            check_apart("out", out / name, *prompts, *training)
    asked = {path: list(_read(path)) for path in prompts}
    wanted = {run for rows in asked.values() for _, texts in rows for run in _marks(texts)}
    seen = set(_shared(wanted, training))
    files: dict[str, Any] = {}
    totals: Counter[str] = Counter()
    for path, rows in asked.items():
        kept = [row for row, texts in rows if seen.isdisjoint(_marks(texts))]
        told = {"prompts": len(rows), "shared": len(rows) - len(kept), "kept": len(kept)}
        files[path.name] = told
        totals.update(told)
        if out is not None:
            write_rows(out / path.name, kept)
    return {**totals, "files": files}


def _marks(texts: Iterable[Sequence[str]]) -> Iterator[Run]:
    """The runs of a prompt, given the words of its turns, that are searched for."""
    return (run for words in texts if words for run in runs_of(words, min(RUN, len(words))))


def _shared(wanted: set[Run], training: Sequence[Path]) -> Iterator[Run]:
    sizes = {len(run) for run in wanted}
    for path in training:
        for _, texts in _read(path):
            for words in texts:
                for size in sizes:
                    yield from wanted.intersection(runs_of(words, size))


def _read(path: Path) -> Iterator[tuple[dict[str, Any], list[list[str]]]]:
    """The rows of a file, each with the words of its turns."""
    for number, row in enumerate(read_rows(path), start=1):
        try:
            turns = conversation_of(row)
        except ConfigError as error:
            raise ConfigError(f"{path}: row {number}: {error}") from None
        if any("token_ids" in turn for turn in turns):
            raise ConfigError(
                f"{path}: row {number}: token_ids cannot be compared by words; give the text"
            )
        yield row, [words_of(turn["content"]) for turn in turns]
