"""Reads prompts of any common shape as conversations, and splits them into a training and a
held-out part.

A row may hold `conversations` or `messages` (turns with `role`/`content` or `from`/`value`),
`turns` (the user's texts, or lists of ids), `prompt` (one text) or `token_ids` (one prompt as ids,
for targets without a tokenizer). Answers in a row are kept here and dropped by `regenerate`. Bad
rows are dropped and counted by reason; a file without a good row is refused.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError
from dspark.training.disk import read_rows, write_rows
from dspark.whole_file import check_apart

SEED = 42
HELD_OUT = 0.05
MOST_IDS = 1 << 31  # ids are int32 in files of samples
PARTS = ("train", "calibrate", "evaluate")
_ROLES = dict.fromkeys(("human", "user"), "user") | dict.fromkeys(
    ("gpt", "chatgpt", "bing", "bard", "assistant"), "assistant"
)
# half of a character, which JSON can hold and no tokenizer takes
_LONE = re.compile("[\ud800-\udfff]")

Conversation = list[dict[str, Any]]


def conversation_of(row: Mapping[str, Any]) -> Conversation:
    """The user's and assistant's turns of a row, without other roles; the first is the user's.
    ConfigError says what is wrong with it."""
    row = _said(row)
    given = row.get("conversations", row.get("messages"))
    asked = row.get("turns", [row["prompt"]] if "prompt" in row else None)
    if isinstance(row.get("token_ids"), list):
        given, asked = None, [row["token_ids"]]
    if given is None and isinstance(asked, list):
        given = [
            {"role": "user", "token_ids" if isinstance(turn, list) else "content": turn}
            for turn in asked
        ]
    if not isinstance(given, list) or not all(isinstance(turn, dict) for turn in given):
        raise ConfigError("no conversations, messages, turns, prompt or token_ids")
    turns = []
    for turn in map(_said, given):
        role = _ROLES.get(str(turn.get("role", turn.get("from"))))
        content = turn.get("content", turn.get("value"))
        if role is None:
            continue
        if role == "user" and "token_ids" in turn:  # a row that was split before
            if not turn["token_ids"] or not are_ids(turn["token_ids"]):
                raise ConfigError("token_ids is not a list of ids")
            turns.append({"role": role, "content": "", "token_ids": turn["token_ids"]})
            continue
        if not isinstance(content, str) or not content.strip():
            raise ConfigError("an empty turn")
        turns.append({"role": role, "content": _LONE.sub("\ufffd", content)})
    if not turns or turns[0]["role"] != "user":
        raise ConfigError("the first turn is not the user's")
    return turns


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without its nulls: tables have them for what only other rows say."""
    return {name: value for name, value in row.items() if value is not None}


def are_ids(given: Any) -> bool:
    """Whether it is a list of token ids, or an empty one."""
    return isinstance(given, list) and all(
        type(token) is int and 0 <= token < MOST_IDS for token in given
    )


def split_prompts(
    prompts: Path,
    folder: Path,
    *,
    held_out: float = HELD_OUT,
    seed: int = SEED,
    limit: int = 0,
    check: Callable[[Conversation], bool] = lambda turns: True,
) -> dict[str, Any]:
    """Writes `train.jsonl` ({id, conversations}) and, of the held-out part, half to
    `calibrate.jsonl` and half to `evaluate.jsonl` ({id, turns}) below `folder`; returns counts and
    files.

    The part of a row depends on the seed and its place among the conversations. `limit` keeps so
    many rows, drawn with the same seed; 0 keeps all. `check` says whether a row may be held out,
    and raises ConfigError for one to drop, the same for one reason; it is asked of no more rows
    than are needed. A row's `domain` is kept. No row of the training part asks what a held-out one
    does.
    """
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out: {held_out} is no share from 0 to 1")
    for name in PARTS:
        check_apart("out", folder / f"{name}.jsonl", prompts)
    said, refused = _conversations(read_rows(prompts))
    order = list(range(len(said)))
    random.Random(seed).shuffle(order)
    kept, fit = list[int](), list[int]()  # fit: may be held out
    for number in order:
        if limit and len(kept) == limit:
            break
        try:
            fits = check(said[number]["conversations"])
        except ConfigError as error:
            refused[str(error)] += 1
            continue
        kept.append(number)
        fit += [number] if fits else []
    if not kept:
        raise ConfigError(f"{prompts}: no row is a prompt ({dict(refused) or 'the file is empty'})")
    away = round(len(kept) * held_out)
    away = min(max(away, 1 if held_out else 0), len(kept) - 1)
    tests = sorted(fit[:away])
    held = {_asked(said[n]) for n in tests}
    rest = sorted(set(kept) - set(tests))
    trains = [n for n in rest if _asked(said[n]) not in held]
    if repeats := len(rest) - len(trains):
        refused["repeats a held-out prompt"] = repeats
    if not trains:
        raise ConfigError(f"{prompts}: every prompt repeats a held-out one")
    away_rows = [_as_test(said[n]) for n in tests]
    parts = [said[n] for n in trains], away_rows[::2], away_rows[1::2]
    told: dict[str, Any] = {"refused": dict(sorted(refused.items()))}
    for name, rows in zip(PARTS, parts, strict=True):
        path = folder / f"{name}.jsonl"
        write_rows(path, rows)
        told |= {name: len(rows), f"{name}_file": str(path)}
    return told


def _conversations(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Those of rows that hold one, and how many do not, by reason."""
    good: list[dict[str, Any]] = []
    refused: Counter[str] = Counter()
    seen: set[str] = set()
    for number, row in enumerate(map(_said, rows)):
        try:
            turns = conversation_of(row)
        except ConfigError as error:
            refused[str(error)] += 1
            continue
        name = str(row.get("id", f"row-{number}"))
        if name in seen:  # regeneration tells rows apart by their ids
            name = f"{name}#{number}"
        seen.add(name)
        kept: dict[str, Any] = {"id": name, "conversations": turns}
        if isinstance(row.get("domain"), str):
            kept["domain"] = row["domain"]
        good.append(kept)
    return good, refused


def _turns(row: Mapping[str, Any]) -> list[Any]:
    users = [turn for turn in row["conversations"] if turn["role"] == "user"]
    return [turn.get("token_ids") or turn["content"] for turn in users]


def _asked(row: Mapping[str, Any]) -> str:
    """What a row asks, the same for rows that ask the same."""
    return json.dumps(_turns(row))


def _as_test(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key != "conversations"}
    return kept | {"turns": _turns(row)}
