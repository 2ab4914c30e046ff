"""Training of the DSpark drafter on the target's own continuations.

The target runs frozen beside the drafter and its features are used as they come; nothing is cached. Which rows a
step reads and where its blocks start depend on (seed, step) alone, so a resumed run equals an uninterrupted one.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import Qwen3ForCausalLM

from dspark.model.checkpoint import load_drafter, save_drafter
from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.fresh import fresh_drafter
from dspark.model.target import TargetTaps
from training import checkpoint, record
from training.anchors import draw_anchors, label_blocks
from training.continuations import Shard
from training.lean_loss import LeanLoss, lean_block_loss
from training.loss import LossSums, LossWeights, figures
from training.schedule import rate, steps_within
from training.target import set_rates
from training.tokenizer import MASK_ID


@dataclass(frozen=True, slots=True)
class Recipe:
    """One drafter run. `steps` 0 means: as many as fit into `minutes`, measured at the start."""

    seed: int = 0
    steps: int = 0
    minutes: float = 40.0
    layers: int = 2
    taps: int = 5
    block_size: int = 7
    loss_decay: float = 4.0  # of the weights of slots; longer blocks want a slower one
    markov_rank: int = 64
    start: str = ""  # folder of a released drafter to go on from, whatever its block size; empty: from scratch
    # Of a step, over all its rows; rows of long shards are fewer and have more blocks each.
    tokens: int = 4800
    anchors: int = 1024
    matrix_rate: float = 0.02
    vector_rate: float = 2e-3
    warmup: int = 30
    decay_from: float = 0.4
    log_every: int = 20
    held_out_shards: int = 1
    save_every_s: float = 120.0


def tap_layers(layers: int, taps: int) -> tuple[int, ...]:
    """Evenly spaced layer ids from 1 on; the last layer is left out, its raw output is not public everywhere."""
    return tuple(int(place) for place in np.linspace(1, layers - 2, taps).round())


def build(target: Qwen3ForCausalLM, recipe: Recipe) -> BlockDrafter:
    shape = target.config
    config = DrafterConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_parameters["rope_theta"],
        max_position_embeddings=shape.max_position_embeddings,
        block_size=recipe.block_size,
        mask_token_id=MASK_ID,
        target_layer_ids=tap_layers(shape.num_hidden_layers, recipe.taps),
        num_target_layers=shape.num_hidden_layers,
        markov_rank=recipe.markov_rank,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        num_anchors=recipe.anchors * 300 // recipe.tokens,
    )
    drafter = fresh_drafter(
        config,
        embedding=target.model.embed_tokens.weight.float(),
        lm_head=target.lm_head.weight.float(),
        generator=torch.Generator().manual_seed(recipe.seed),
    )
    if recipe.start:  # no tensor knows how long a block is
        drafter.load_state_dict(load_drafter(recipe.start).state_dict())
    return as_block(drafter)


def optimizers_of(drafter: BlockDrafter, recipe: Recipe) -> dict[str, Optimizer]:
    """Muon for the projection and the matrices of the layers, AdamW for norms and the two heads."""
    matrices = [drafter.fc.weight, *(p for p in drafter.layers.parameters() if p.ndim == 2)]
    inside = {id(p) for p in matrices}
    rest = [p for p in drafter.parameters() if p.requires_grad and id(p) not in inside]
    return {
        "muon": Muon(matrices, lr=recipe.matrix_rate, momentum=0.95, weight_decay=0.02),
        "adamw": AdamW(rest, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    }


def pick_rows(shards: Sequence[Shard], recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """(ids [B, T], supervised [B, T]) of a step: rows of one shard, every shard row once an epoch."""
    groups = []
    for number, shard in enumerate(shards):
        rows, length = shard["ids"].shape
        at_once = max(1, recipe.tokens // length)
        groups += [(number, first, min(rows, first + at_once)) for first in range(0, rows, at_once)]
    epoch, place = divmod(step, len(groups))
    order = np.random.default_rng([recipe.seed, epoch]).permutation(len(groups))
    number, first, end = groups[int(order[place])]
    shard = shards[number]
    return shard["ids"][first:end], ~shard["forced"][first:end]


def loss_of(
    drafter: BlockDrafter,
    target: Qwen3ForCausalLM,
    ids: Tensor,
    supervised: Tensor,
    *,
    anchors: int,
    generator: torch.Generator,
    decay: float = 4.0,
) -> LeanLoss:
    """The loss of `anchors` blocks spread over the rows ids [B, T]."""
    size, mask = drafter.config.block_size, supervised.long()
    drawn = draw_anchors(mask, max(1, anchors // len(ids)), generator=generator)
    labels = label_blocks(input_ids=ids, loss_mask=mask, anchors=drawn, block_size=size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad(), TargetTaps(target, drafter.config.target_layer_ids) as taps:
            last = target.model(input_ids=ids, use_cache=False).last_hidden_state
            features = taps.collect()
        hidden = drafter.forward_hidden(
            features=features, input_ids=ids, anchor_positions=drawn.positions, block_keep_mask=drawn.keep
        )
        return lean_block_loss(
            drafter,
            hidden=hidden,
            previous_ids=drafter.previous_ids(ids, drawn.positions),
            target_ids=labels.target_ids,
            eval_mask=labels.eval_mask,
            anchor_positions=drawn.positions,
            last_hidden=last,
            target_head=target.lm_head.weight,
            weights=LossWeights(decay=decay),
        )


def train(target: Qwen3ForCausalLM, shards: Sequence[Shard], recipe: Recipe, folder: Path) -> Path:
    """Trains or resumes below `folder`; returns the folder of the exported drafter."""
    drafter = build(target, recipe)
    optimizers = optimizers_of(drafter, recipe)
    facts = checkpoint.load(folder, "state", drafter, optimizers)
    done = facts["step"] if facts else 0
    kept_out, used = shards[: recipe.held_out_shards], shards[recipe.held_out_shards :]

    def backward(step: int) -> LossSums:
        ids, supervised = pick_rows(used, recipe, step)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        loss = loss_of(
            drafter, target, ids, supervised, anchors=recipe.anchors, generator=generator, decay=recipe.loss_decay
        )
        (loss.objective / (loss.sums.denominator + 1e-6)).backward()  # type: ignore[no-untyped-call]
        return loss.sums

    steps = recipe.steps or (facts["steps"] if facts else 0)
    if not steps:
        for trial in range(4):
            began = time.perf_counter()
            backward(trial)
            step_s = time.perf_counter() - began
        drafter.zero_grad()
        steps = steps_within(recipe.minutes, 1.15 * step_s)
    peaks = {"muon": recipe.matrix_rate, "adamw": recipe.vector_rate}
    log = record.Log(folder / "log.csv")
    start = saved = time.perf_counter()
    before = facts["seconds"] if facts else 0.0
    with record.progress() as bar:
        task = bar.add_task("drafter", total=steps, completed=done, note="")
        for step in range(done, steps):
            set_rates(optimizers, peaks, rate(step, steps, warmup=recipe.warmup, decay_from=recipe.decay_from))
            sums = backward(step)
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            now = time.perf_counter()
            bar.update(task, advance=1)
            if (step + 1) % recipe.log_every == 0 or step + 1 == steps:
                values = {"step": step + 1, "seconds": before + now - start} | figures(sums)
                values |= {f"held_out_{key}": value for key, value in held_out(drafter, target, kept_out).items()}
                log.row(values)
                bar.update(task, note=f"tau {values['tau_probabilistic']:.2f}")
                bar.console.print("  ".join(f"{key} {values[key]:.4g}" for key in SHOWN))
            if now - saved > recipe.save_every_s or step + 1 == steps:
                state = {"step": step + 1, "steps": steps, "seconds": before + now - start, "recipe": asdict(recipe)}
                checkpoint.save(folder, "state", drafter, optimizers, state)
                export(drafter, folder / "model")
                saved = now
    record.draw_curves(log, ["tau_probabilistic", "held_out_tau"], folder / "tau.png", "tau at T=1")
    return export(drafter, folder / "model")


SHOWN = ("step", "seconds", "ce_loss", "l1_loss", "accept_rate@0", "tau_probabilistic", "held_out_tau")


@torch.no_grad()
def held_out(drafter: BlockDrafter, target: Qwen3ForCausalLM, shards: Sequence[Shard]) -> dict[str, float]:
    """Expected tau on continuations that are not trained on, on the same blocks every time."""
    taus = []
    for shard in shards:
        generator = torch.Generator().manual_seed(1)
        rows, supervised = shard["ids"][:18], ~shard["forced"][:18]
        loss = loss_of(drafter, target, rows, supervised, anchors=720, generator=generator)
        taus.append(figures(loss.sums)["tau_probabilistic"])
    return {"tau": sum(taus) / max(1, len(taus))}


def export(drafter: BlockDrafter, folder: Path) -> Path:
    """The released format: bf16 weights and configuration."""
    save_drafter(drafter, folder, dtype=torch.bfloat16)
    return folder
