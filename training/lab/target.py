"""The lab's target: a deep, thin Qwen3 language model, trained from scratch on the text of the demo pair.

Deep, because what a drafter has to imitate is depth; thin and with a small vocabulary, because thirty drafters are
trained for it on one core. In fp32 throughout: a processor without bf16 units is ten times slower at bf16.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from training import corpus, tokenizer, tokens
from training.corpus import DOMAINS
from training.lab.loop import Figures, Pace, Trained, train
from training.tokenizer import END_OF_TEXT_ID, PAD_ID


@dataclass(frozen=True, slots=True)
class Shape:
    """Width is shared by every drafter of the lab."""

    vocabulary: int = 1024
    hidden: int = 96
    mlp: int = 256
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 32
    layers: int = 6
    # The final norm is scaled by this after training: a temperature of 1 then has the entropy of a target
    # that was tuned on answers, and not of one that has seen text alone.
    sharpness: float = 1.6


SHAPE = Shape()
PACE = Pace(steps=1000, matrix_rate=0.02, vector_rate=6e-3, warmup=30, decay_from=0.4, probes=15)
ROWS, LENGTH = 16, 192


def build(shape: Shape, *, layers: int, seed: int) -> Qwen3ForCausalLM:
    """A fresh model of the lab's width; output matrices of residual branches start at zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=shape.vocabulary,
                hidden_size=shape.hidden,
                num_hidden_layers=layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                intermediate_size=shape.mlp,
                max_position_embeddings=512,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                tie_word_embeddings=True,
                attn_implementation="sdpa",
                bos_token_id=END_OF_TEXT_ID,
                eos_token_id=END_OF_TEXT_ID,
                pad_token_id=PAD_ID,
            )
        )
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def next_token_loss(model: Qwen3ForCausalLM, ids: Tensor, supervised: Tensor | None = None) -> Tensor:
    """Mean loss of ids [B, T], of the tokens that `supervised` [B, T] marks if it is given."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    labels = ids[:, 1:]
    if supervised is not None:
        hidden, labels = hidden[supervised[:, 1:]], labels[supervised[:, 1:]]
    return F.cross_entropy(model.lm_head(hidden).flatten(0, -2), labels.flatten())


def read_corpus(folder: Path, shape: Shape) -> tuple[PreTrainedTokenizerFast, dict[str, tokens.Ids]]:
    """The tokenizer of the lab and its token streams, made once."""
    path = folder / "tokens.safetensors"
    if not path.exists():
        documents = corpus.collect(seed=0)
        if not (folder / "tokenizer").exists():
            tokenizer.train(documents, shape.vocabulary).save_pretrained(folder / "tokenizer")
        tokens.save(tokens.encode(documents, tokenizer.load(folder / "tokenizer")), path)
    return tokenizer.load(folder / "tokenizer"), tokens.load(path)


def held_out_losses(model: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids]) -> Figures:
    rows = {d: tokens.held_out_rows(streams, d, rows=16, length=LENGTH) for d in DOMAINS}
    return {domain: float(next_token_loss(model, ids)) for domain, ids in rows.items()}


def prepare(folder: Path, shape: Shape = SHAPE, pace: Pace = PACE) -> tuple[Qwen3ForCausalLM, dict[str, tokens.Ids]]:
    """The trained target, frozen, and the streams of its corpus; trains or resumes where it is not there yet."""
    own, streams = read_corpus(folder, shape)
    if (folder / "model").exists():
        found = Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
        return found.eval().requires_grad_(False), streams
    model = build(shape, layers=shape.layers, seed=0)
    _train(model, streams, pace, folder, shape)
    with torch.no_grad():
        model.model.norm.weight.mul_(shape.sharpness)
    partial = folder / "model.partial"
    model.save_pretrained(partial)
    own.save_pretrained(partial)
    partial.rename(folder / "model")
    return model.eval().requires_grad_(False), streams


def _train(
    model: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids], pace: Pace, folder: Path, shape: Shape
) -> Trained:
    return train(
        model,
        lambda step: next_token_loss(model, tokens.batch(streams, seed=0, step=step, rows=ROWS, length=LENGTH)),
        lambda: held_out_losses(model, streams),
        pace,
        folder,
        facts={"shape": {k: v for k, v in asdict(shape).items() if k != "sharpness"}},
        label="target",
    )
