"""Training text as token ids, made from regenerated conversations, in one file that is read in
slices.

A sample is one conversation: its ids, and which of them the target wrote. The file is safetensors
with `ids` int32 [all tokens], `supervised` uint8 [all tokens] and `offsets` int64 [samples + 1].
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.errors import ConfigError
from dspark.training.chat import Chat
from dspark.training.disk import content_digest, read_rows, save_tensors, write_whole
from dspark.training.split import are_ids
from dspark.whole_file import check_apart

MAX_LENGTH = 4096
MIN_SUPERVISED = 14  # a conversation with fewer tokens of the target teaches next to nothing


_KINDS = {"ids": torch.int32, "supervised": torch.uint8, "offsets": torch.int64}


class Sample(NamedTuple):
    """One conversation."""

    ids: Tensor  # [T] int64
    supervised: Tensor  # [T] bool


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Writes the file, whole or not at all. ConfigError if there is no sample."""
    ids, marks, offsets = [], [], [0]
    for sample in samples:
        ids.append(sample.ids.to(torch.int32))
        marks.append(sample.supervised.to(torch.uint8))
        offsets.append(offsets[-1] + len(sample.ids))
    if not ids:
        raise ConfigError(f"{path}: there is no sample to write")
    tensors = {
        "ids": torch.cat(ids),
        "supervised": torch.cat(marks),
        "offsets": torch.tensor(offsets),
    }
    save_tensors(path, tensors)


class Samples(Sequence[Sample]):
    """The samples of a file, checked as a whole; tokens are read on access. ConfigError says what
    is wrong with the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file: Any = safe_open(path, framework="pt")
            whole = [file.get_tensor(name) for name in _KINDS]
            self._ids, self._marks = file.get_slice("ids"), file.get_slice("supervised")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: not a file of samples: {error}") from None
        if problem := _problem(*whole):
            raise ConfigError(f"{path}: not a file of samples: {problem}")
        self.largest_id = int(whole[0].max())
        self.offsets: list[int] = whole[2].tolist()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Sample:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        part = slice(self.offsets[number], self.offsets[number + 1])
        return Sample(self._ids[part].long(), self._marks[part].bool())

    @property
    def tokens(self) -> int:
        return self.offsets[-1]

    def check_vocabulary(self, size: int) -> None:
        """Refuses samples of another tokenizer by a ConfigError now, not by an index error a
        thousand steps later."""
        if self.largest_id >= size:
            raise ConfigError(
                f"samples: {self.path} holds token {self.largest_id}, the target knows {size}"
            )

    def digest(self) -> str:
        """Digest of the file's content."""
        return content_digest(self.path)


def _problem(ids: Tensor, marks: Tensor, offsets: Tensor) -> str:
    """What is wrong with the tensors of a file; empty if nothing is."""
    for (name, kind), found in zip(_KINDS.items(), (ids, marks, offsets), strict=True):
        if found.dtype is not kind or found.dim() != 1:
            return f"{name} is {found.dtype} {list(found.shape)}, not a list of {kind}"
    if len(marks) != len(ids):
        return f"supervised has {len(marks)} marks for {len(ids)} ids"
    ascend = len(offsets) > 1 and bool((offsets[1:] > offsets[:-1]).all())
    if not ascend or offsets[0] != 0 or offsets[-1] != len(ids):
        return f"offsets do not ascend from 0 to {len(ids)}, the number of ids"
    if ids.min() < 0:
        return f"ids holds {int(ids.min())}"
    return "" if marks.any() else "supervised marks no token that the target wrote"


def encode_rows(
    rows: Path,
    path: Path,
    chat: Chat,
    *,
    max_length: int = MAX_LENGTH,
    min_supervised: int = MIN_SUPERVISED,
) -> dict[str, Any]:
    """Writes the samples of a regenerated file to `path`; returns counts of rows and tokens."""
    check_apart("out", path, rows)
    counts: Counter[str] = Counter()

    def samples() -> Iterator[Sample]:
        for row in read_rows(rows):
            counts["rows"] += 1
            where = f"{rows}: row {row.get('id', counts['rows'])!r}"
            if row.get("status", "success") != "success":
                counts["failed"] += 1
                continue
            turns = row.get("conversations")
            if not isinstance(turns, list) or not turns or not all(map(_is_turn, turns)):
                raise ConfigError(
                    f"{where} has no conversations whose turns have a role, content and ids for "
                    "token_ids"
                )
            try:
                ids, supervised = chat.learned(turns)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
            counts["cut"] += len(ids) > max_length
            sample = Sample(torch.tensor(ids[:max_length]), torch.tensor(supervised[:max_length]))
            if int(sample.supervised.sum()) < min_supervised:
                counts["short"] += 1
                continue
            counts["samples"] += 1
            counts["tokens"] += len(sample.ids)
            counts["supervised"] += int(sample.supervised.sum())
            yield sample

    write_samples(path, samples())
    return {
        name: counts[name]
        for name in ("rows", "samples", "tokens", "supervised", "cut", "short", "failed")
    }


def _is_turn(turn: object) -> bool:
    """Whether a turn has what a chat reads: role and content as text, and `token_ids` that are ids
    or absent."""
    return (
        isinstance(turn, dict)
        and all(isinstance(turn.get(name), str) for name in ("role", "content"))
        and (turn.get("token_ids") is None or are_ids(turn["token_ids"]))
    )


def most_written(samples: Path, count: int, path: Path) -> dict[str, Any]:
    """Writes the ids, ascending, of the `count` tokens the target wrote most often; returns their
    share of the text.

    `dspark train drafter --keep-tokens` trains with such a head, `dspark checkpoint convert
    --keep-tokens` cuts that of a trained drafter. Tokens that the head lacks are never drafted;
    answers stay the target's. ConfigError if the samples hold fewer different tokens.
    """
    check_apart("out", path, samples)
    read = Samples(samples)
    written = torch.zeros(read.largest_id + 1, dtype=torch.int64)
    for number in range(len(read)):
        sample = read[number]
        written += torch.bincount(sample.ids[sample.supervised], minlength=len(written))
    different = int((written > 0).sum())
    if not 0 < count <= different:
        raise ConfigError(
            f"tokens: {count} is not from 1 to {different}, the different tokens that {samples} "
            "holds"
        )
    kept = torch.argsort(written, descending=True, stable=True)[:count].sort().values
    write_whole(path, json.dumps(kept.tolist()) + "\n")
    share = float(written[kept].sum() / written.sum())
    return {"tokens": count, "of": different, "share_of_text": round(share, 6), "file": str(path)}
