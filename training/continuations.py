"""The drafter's training text: the target's own continuations of training prompts.

Written as shards; a shard is a pure function of (seed, number), so that a stopped run goes on with the next number.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from training import lockstep, record, tokens
from training.corpus import DOMAINS
from training.tokenizer import END_OF_TEXT_ID

ROWS = 192
NEW_TOKENS = (160, 320)
PROMPT_TOKENS = (16, 80)
TEMPERATURES = (0.0, 0.0, 0.3, 0.7, 1.0, 1.0)
# Every so many shards one of few, long rows, so that the drafter knows far positions.
LONG_EVERY, LONG_ROWS, LONG_TOTAL = 12, 24, 1800
NEW_BEGINNING = 24


def write(
    model: Qwen3ForCausalLM,
    streams: Mapping[str, tokens.Ids],
    folder: Path,
    *,
    minutes: float,
    seed: int,
    shards: int = 0,
) -> int:
    """Adds shards below `folder` until the time is over, or `shards` are there; returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("shard-*.safetensors")))
    start, written = time.perf_counter(), 0
    with record.progress() as bar:
        task = bar.add_task("continuations", total=shards or None, completed=number, note="")
        while number < shards if shards else time.perf_counter() - start < minutes * 60:
            written += write_shard(model, streams, folder, number=number, seed=seed)
            number += 1
            speed = written / (time.perf_counter() - start)
            bar.update(task, advance=1, note=f"{written:,} tokens, {speed:,.0f} a second")
            bar.console.print(f"shard {number}: {written:,} tokens, {speed:,.0f} a second")
    return number


def write_shard(
    model: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids], folder: Path, *, number: int, seed: int
) -> int:
    """Generates one shard: rows of one length, all domains and temperatures mixed. Returns its tokens."""
    rng = np.random.default_rng([seed, number])
    long = number % LONG_EVERY == LONG_EVERY - 1
    rows = LONG_ROWS if long else ROWS
    given = int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))
    total = LONG_TOTAL if long else given + int(rng.integers(NEW_TOKENS[0], NEW_TOKENS[1] + 1))
    # The shorter the prompt the more rows of it exist; domains take turns, so that each has a third.
    domains = [DOMAINS[row % len(DOMAINS)] for row in range(rows)]

    def beginning(row: int, length: int = NEW_BEGINNING) -> list[int]:
        stream = streams[f"{domains[row]}/train"]
        place = int(rng.integers(len(stream) - length))
        return [int(token) for token in stream[place : place + length]]

    temperatures = torch.tensor([TEMPERATURES[row // len(DOMAINS) % len(TEMPERATURES)] for row in range(rows)])
    ids, forced = lockstep.generate(
        model,
        prompts=[beginning(row, given) for row in range(rows)],
        total=total,
        temperatures=temperatures,
        generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
        end_id=END_OF_TEXT_ID,
        beginning=beginning,
    )
    tensors = {"ids": ids.to(torch.int16), "forced": forced, "temperatures": temperatures}
    partial = folder / f"partial-{number:05d}"
    save_file(tensors, partial)
    partial.replace(folder / f"shard-{number:05d}.safetensors")
    return int((~forced).sum())


def read(folder: Path) -> list[dict[str, torch.Tensor]]:
    """All shards in order: ids [rows, length] int64, forced [rows, length] bool, temperatures [rows]."""
    shards = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        shard = load_file(path)
        shards.append(shard | {"ids": shard["ids"].long()})
    return shards
