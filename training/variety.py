"""A short tuning that keeps the greedy target from going round in circles.

A small language model decoded greedily soon repeats itself, and text that repeats itself is too easy to draft for.
Unlikelihood training (Welleck et al., 2020): on the target's own near-greedy text, a token that completes a run of
four seen before in the same row is made less likely, while corpus batches keep everything else in place. Worked
arithmetic repeats its wording for good reasons and is left out.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from training import checkpoint, record, tokens
from training.continuations import Shard
from training.corpus import DOMAINS
from training.optimisers import set_rates
from training.schedule import rate
from training.target import Recipe as TargetRecipe
from training.target import build, export, head_loss, held_out_losses, loss_of, optimizers_of

RUN = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int = 0
    steps: int = 32
    matrix_rate: float = 0.003
    vector_rate: float = 3e-4
    rows: int = 12
    corpus_rows: int = 20
    length: int = 256
    strength: float = 0.5
    warmup: int = 5
    log_every: int = 10


def repeats(ids: Tensor) -> Tensor:
    """Which tokens of ids [B, T] complete a run of four that their row has had before: [B, T] bool."""
    marked = torch.zeros(ids.shape, dtype=torch.bool)
    for row, line in enumerate(ids.tolist()):
        seen: set[tuple[int, ...]] = set()
        for end in range(RUN, len(line) + 1):
            run = tuple(line[end - RUN : end])
            marked[row, end - 1] = run in seen
            seen.add(run)
    return marked


def circling_rows(shards: Sequence[Shard], length: int) -> tuple[Tensor, Tensor]:
    """Near-greedy rows of code and prose, cut to `length`: ids and the tokens to make less likely, [N, length] each."""
    ids, marked = [], []
    for shard in shards:
        rows, whole = shard["ids"].shape
        if whole < length:
            continue
        domains = torch.arange(rows) % len(DOMAINS)
        kept = (shard["temperatures"] <= 0.3) & (domains != DOMAINS.index("math"))
        ids.append(shard["ids"][kept][:, :length])
        marked.append(repeats(ids[-1]) & ~shard["forced"][kept][:, :length])
    return torch.cat(ids), torch.cat(marked)


def unlikelihood(model: Qwen3ForCausalLM, ids: Tensor, marked: Tensor) -> Tensor:
    """Mean of -log(1 - p(x)) over the marked tokens of ids [B, T]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    chosen = marked[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = F.linear(hidden[:, :-1][chosen], model.model.embed_tokens.weight)
    taken = torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, 1:][chosen].unsqueeze(-1)).squeeze(-1)
    return -torch.log1p(-taken.exp().clamp(max=1 - 1e-4)).mean()


def tune(
    streams: Mapping[str, tokens.Ids],
    tokenizer: PreTrainedTokenizerFast,
    shards: Sequence[Shard],
    shape: TargetRecipe,
    recipe: Recipe,
    source: Path,
    folder: Path,
) -> Path:
    """Tunes the target whose state is in `source`; returns the folder of the exported model below `folder`."""
    model = build(shape, len(tokenizer))
    assert checkpoint.load(source, "state", model, optimizers_of(model, shape)) is not None
    optimizers = optimizers_of(model, shape)
    ids, marked = circling_rows(shards, recipe.length)
    peaks = {"muon": recipe.matrix_rate, "adamw": recipe.vector_rate}
    log, start = record.Log(folder / "log.csv"), time.perf_counter()
    with record.progress() as bar:
        task = bar.add_task("variety", total=recipe.steps, note="")
        for step in range(recipe.steps):
            set_rates(optimizers, peaks, rate(step, recipe.steps, warmup=recipe.warmup, decay_from=0.3))
            picked = torch.randperm(len(ids), generator=torch.Generator().manual_seed(recipe.seed + step))[
                : recipe.rows
            ]
            text = tokens.batch(streams, seed=recipe.seed + 1, step=step, rows=recipe.corpus_rows, length=recipe.length)
            avoided = unlikelihood(model, ids[picked], marked[picked])
            kept = loss_of(model, text, head_loss)
            (kept + recipe.strength * avoided).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            bar.update(task, advance=1)
            if (step + 1) % recipe.log_every == 0 or step + 1 == recipe.steps:
                values = {"step": step + 1, "seconds": time.perf_counter() - start}
                values |= {"unlikelihood": avoided.item(), "train": kept.item()}
                if step + 1 == recipe.steps:
                    values |= held_out_losses(model, streams, shape)
                else:
                    values |= dict.fromkeys(DOMAINS, float("nan"))
                log.row(values)
                bar.console.print("  ".join(f"{key} {value:.4g}" for key, value in values.items()))
    return export(model, tokenizer, folder / "model")
