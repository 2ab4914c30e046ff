"""Token streams by domain and the order in which training reads them.

A batch is a pure function of (stream, seed, step), so that resuming at a step needs no reader state.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerFast

from training.corpus import DOMAINS, Document
from training.tokenizer import END_OF_TEXT_ID

Ids = npt.NDArray[np.uint16]
# Shares of a batch by tokens.
MIX = {"code": 0.45, "prose": 0.25, "math": 0.30}


def encode(documents: list[Document], tokenizer: PreTrainedTokenizerFast) -> dict[str, Ids]:
    """One stream per domain and split, "code/train" and so on; every document ends with the end of text."""
    streams: dict[str, list[int]] = {f"{d}/{s}": [] for d in DOMAINS for s in ("train", "held-out")}
    encoded = tokenizer([d.text for d in documents], verbose=False)["input_ids"]
    for document, ids in zip(documents, encoded, strict=True):
        stream = streams[f"{document.domain}/{'held-out' if document.held_out else 'train'}"]
        stream.extend(ids)
        stream.append(END_OF_TEXT_ID)
    return {name: np.array(ids, dtype=np.uint16) for name, ids in streams.items()}


def save(streams: Mapping[str, Ids], path: Path) -> None:
    save_file(dict(streams), path)


def load(path: Path) -> dict[str, Ids]:
    return dict(load_file(path))


def rows_by_domain(rows: int) -> dict[str, int]:
    """Whole rows of a batch for each domain; what rounding leaves over goes to the first domain."""
    counts = {domain: int(rows * share) for domain, share in MIX.items()}
    counts[DOMAINS[0]] += rows - sum(counts.values())
    return counts


@lru_cache(maxsize=8)
def reading_order(seed: int, domain: int, length: int, chunks: int, epoch: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Where an epoch's first chunk starts, and the order of its chunks."""
    rng = np.random.default_rng([seed, domain, length, epoch])
    return int(rng.integers(length)), rng.permutation(chunks)


def batch(streams: Mapping[str, Ids], *, seed: int, step: int, rows: int, length: int) -> torch.Tensor:
    """Training ids [rows, length] of a step: each domain's stream in chunks, freshly cut and shuffled every epoch."""
    picked = []
    for domain, count in rows_by_domain(rows).items():
        stream = streams[f"{domain}/train"]
        chunks = len(stream) // length - 1
        for number in range(step * count, (step + 1) * count):
            epoch, place = divmod(number, chunks)
            shift, order = reading_order(seed, DOMAINS.index(domain), length, chunks, epoch)
            start = shift + int(order[place]) * length
            picked.append(stream[start : start + length])
    return torch.from_numpy(np.stack(picked).astype(np.int64))


def held_out_rows(streams: Mapping[str, Ids], domain: str, *, rows: int, length: int) -> torch.Tensor:
    """Evenly spread held-out ids [rows, length] of one domain."""
    stream = streams[f"{domain}/held-out"]
    starts = np.linspace(0, len(stream) - length, rows).astype(int)
    return torch.from_numpy(np.stack([stream[s : s + length] for s in starts]).astype(np.int64))
