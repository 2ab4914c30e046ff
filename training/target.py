"""The demo target: a small Qwen3 language model, deep and thin, trained from scratch.

Training is a function of (tokens, recipe, step): batches and learning rates depend on the step alone,
so a resumed run ends in the same parameters as an uninterrupted one.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from training import checkpoint, record, tokens
from training.corpus import DOMAINS
from training.optimisers import muon_and_adamw, set_rates
from training.schedule import rate, steps_within
from training.tokenizer import END_OF_TEXT_ID, PAD_ID


@dataclass(frozen=True, slots=True)
class Recipe:
    """One target run. `steps` 0 means: as many as fit into `minutes`, measured at the start."""

    seed: int = 0
    steps: int = 0
    minutes: float = 40.0
    hidden: int = 256
    layers: int = 12
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 704
    context: int = 4096
    rows: int = 32
    length: int = 256
    # The last steps read long sequences, as many tokens a step, so that far positions are trained too.
    long_length: int = 2048
    long_share: float = 0.12
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    warmup: int = 40
    decay_from: float = 0.5
    evaluate_every: int = 100
    save_every_s: float = 120.0
    compile: bool = False


def build(recipe: Recipe, vocabulary: int) -> Qwen3ForCausalLM:
    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=64,
        intermediate_size=recipe.mlp,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=PAD_ID,
    )
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        # A residual branch starts as nothing: a deep, thin model trains faster from there.
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def optimizers_of(model: Qwen3ForCausalLM, recipe: Recipe) -> dict[str, Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    return muon_and_adamw(model.parameters(), matrices, matrix_rate=recipe.matrix_rate, vector_rate=recipe.vector_rate)


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of `hidden` [n, d] against `labels` [n] under the tied head `weight` [v, d]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.float(), labels)


def loss_of(model: Qwen3ForCausalLM, ids: Tensor, head: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Next-token loss on ids [rows, length]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    flat = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    return head(flat, model.model.embed_tokens.weight, ids[:, 1:].reshape(-1))


def shape_at(step: int, steps: int, recipe: Recipe) -> tuple[int, int]:
    """(rows, length) of a step: long sequences at the end, the same number of tokens."""
    if step < (1 - recipe.long_share) * steps:
        return recipe.rows, recipe.length
    return max(1, recipe.rows * recipe.length // recipe.long_length), recipe.long_length


@torch.no_grad()
def held_out_losses(model: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids], recipe: Recipe) -> dict[str, float]:
    """Mean next-token loss of each domain on fixed held-out rows, by its name."""
    model.eval()
    losses = {}
    for domain in DOMAINS:
        ids = tokens.held_out_rows(streams, domain, rows=recipe.rows, length=recipe.length)
        losses[domain] = float(loss_of(model, ids, head_loss))
    model.train()
    return losses


def measured_steps(model: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids], recipe: Recipe, head: object) -> int:
    """Steps that fit into the recipe's minutes, from a few timed ones of both lengths that change nothing."""
    assert callable(head)
    seconds = []
    for step in (0, 1):
        rows, length = shape_at(step, 1, recipe)
        ids = tokens.batch(streams, seed=recipe.seed, step=0, rows=rows, length=length)
        for _ in range(2 if step else 5):
            start = time.perf_counter()
            loss_of(model, ids, head).backward()  # type: ignore[no-untyped-call]
            last = time.perf_counter() - start
        seconds.append(last)
    model.zero_grad()
    # The optimisers, the evaluations and a busy machine take their share on top.
    step_s = 1.15 * ((1 - recipe.long_share) * seconds[0] + recipe.long_share * seconds[1])
    return steps_within(recipe.minutes, step_s)


def train(streams: Mapping[str, tokens.Ids], tokenizer: PreTrainedTokenizerFast, recipe: Recipe, folder: Path) -> Path:
    """Trains or resumes below `folder`; returns the folder of the exported model."""
    model = build(recipe, len(tokenizer))
    optimizers = optimizers_of(model, recipe)
    head = head_loss
    if recipe.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        head = torch.compile(head_loss, dynamic=False)
    facts = checkpoint.load(folder, "state", model, optimizers)
    done = facts["step"] if facts else 0
    steps = recipe.steps or (facts["steps"] if facts else measured_steps(model, streams, recipe, head))
    peaks = {"muon": recipe.matrix_rate, "adamw": recipe.vector_rate}
    log = record.Log(folder / "log.csv")
    start = saved = time.perf_counter()
    before = facts["seconds"] if facts else 0.0
    loss = torch.zeros(())
    with record.progress() as bar:
        task = bar.add_task("target", total=steps, completed=done, note="")
        for step in range(done, steps):
            set_rates(optimizers, peaks, rate(step, steps, warmup=recipe.warmup, decay_from=recipe.decay_from))
            rows, length = shape_at(step, steps, recipe)
            ids = tokens.batch(streams, seed=recipe.seed, step=step, rows=rows, length=length)
            loss = loss_of(model, ids, head)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            now = time.perf_counter()
            bar.update(task, advance=1, note=f"loss {loss.item():.3f}")
            if (step + 1) % recipe.evaluate_every == 0 or step + 1 == steps:
                values = {"step": step + 1, "seconds": before + now - start, "train": loss.item()}
                values |= held_out_losses(model, streams, recipe)
                log.row(values)
                bar.console.print("  ".join(f"{key} {value:.4g}" for key, value in values.items()))
            if now - saved > recipe.save_every_s or step + 1 == steps:
                state = {"step": step + 1, "steps": steps, "seconds": before + now - start, "recipe": asdict(recipe)}
                checkpoint.save(folder, "state", model, optimizers, state)
                saved = now
    record.draw(log, {"held-out loss": DOMAINS}, folder / "loss.png")
    return export(model, tokenizer, folder / "model")


def export(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """The released format: bf16 weights, configuration and tokenizer in one folder."""
    released = Qwen3ForCausalLM(model.config)
    released.load_state_dict(model.state_dict())
    released.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
