"""The drafter's training text: the target's own continuations of training prompts.

Written as shards; a shard is a pure function of (seed, number), so that a stopped run goes on with the next number.
"""

import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from training import lockstep, record, tokens
from training.corpus import DOMAINS
from training.tokenizer import END_OF_TEXT_ID

NEW_TOKENS = (160, 320)
PROMPT_TOKENS = (16, 80)
TEMPERATURES = (0.0, 0.0, 0.3, 0.7, 1.0, 1.0)
# Every so many shards one of few, long rows, so that the drafter knows far positions.
LONG_EVERY, LONG_TOTAL = 13, 1800
NEW_BEGINNING = 24

Shard = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sources:
    """What a worker process opens for itself."""

    target: Path
    tokens: Path
    folder: Path
    seed: int
    rows: int = 192  # of a shard; a long shard has an eighth

    def shard(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.safetensors"


def write(sources: Sources, *, minutes: float, workers: int, shards: int = 0) -> int:
    """Adds shards until the time is over, or `shards` are there; returns how many tokens were written.

    One thread per worker: side by side they do more than one process with as many threads.
    """
    sources.folder.mkdir(parents=True, exist_ok=True)
    missing = (
        (n for n in range(shards) if not sources.shard(n).exists()) if shards else count(len(read(sources.folder)))
    )
    start, written = time.perf_counter(), 0
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=open_sources, initargs=(sources,))
    with pool, record.progress() as bar:
        task = bar.add_task("continuations", total=shards or None, note="")
        running: set[Future[int]] = set()
        over = False
        while running or not over:
            over = over or (not shards and time.perf_counter() - start > minutes * 60)
            while not over and len(running) < workers:
                number = next(missing, None)
                if number is None:
                    over = True
                else:
                    running.add(pool.submit(write_shard, number))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            written += sum(future.result() for future in done)
            note = f"{written:,} tokens, {written / (time.perf_counter() - start):,.0f} a second"
            bar.update(task, advance=len(done), note=note)
            bar.console.print(note)
    return written


# A worker's own: set once when the process starts.
_opened: tuple[Qwen3ForCausalLM, Mapping[str, tokens.Ids], Sources] | None = None


def open_sources(sources: Sources) -> None:
    global _opened
    torch.set_num_threads(1)
    model = Qwen3ForCausalLM.from_pretrained(sources.target, dtype=torch.bfloat16).eval()
    _opened = (model, tokens.load(sources.tokens), sources)


def write_shard(number: int) -> int:
    """Generates one shard: rows of one length, all domains and temperatures mixed. Returns its sampled tokens."""
    assert _opened is not None
    model, streams, sources = _opened
    rng = np.random.default_rng([sources.seed, number])
    long = number % LONG_EVERY == LONG_EVERY - 1
    rows = max(1, sources.rows // 8) if long else sources.rows
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
    partial = sources.folder / f"partial-{number:05d}"
    save_file(tensors, partial)
    partial.replace(sources.shard(number))
    return int((~forced).sum())


def read(folder: Path) -> list[Shard]:
    """All shards in order: ids [rows, length] int64, forced [rows, length] bool, temperatures [rows]."""
    shards = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        shard = load_file(path)
        shards.append(shard | {"ids": shard["ids"].long()})
    return shards


def corpus_shards(streams: Mapping[str, tokens.Ids], *, shards: int, rows: int, length: int, seed: int) -> list[Shard]:
    """Training text in the form of shards, all of it supervised.

    The loss compares two laws given a prefix, and a prefix of the corpus is one the target knows well: a part of
    such rows shows the drafter more contexts than there is time to generate.
    """
    nothing = torch.zeros(rows, length, dtype=torch.bool)
    batches = (tokens.batch(streams, seed=seed, step=step, rows=rows, length=length) for step in range(shards))
    return [{"ids": ids, "forced": nothing} for ids in batches]
