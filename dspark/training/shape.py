"""Makes a fresh drafter for a target: shaped after the target, with the family's initial
weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspark.errors import ConfigError
from dspark.model.checkpoint import LoadedTarget, context_length, load_drafter
from dspark.model.config import DrafterConfig, HeadType, Kind
from dspark.model.families import fresh_drafter
from dspark.model.family import Drafter
from dspark.model.formats import deepseek_v4
from dspark.model.formats.vocabulary import DraftVocabulary, read_ids
from dspark.training.chat import Chat
from dspark.training.settings import Settings

TAPS = 5
SHALLOW = 8  # a target with fewer layers is shallow
STAGES = 3  # stages of a DeepSeek-V4 module, and number of last layers that it reads
# By family, the kind and the number of layers that a run gets which names none.
_SHAPES: dict[str, tuple[Kind, int]] = {
    "dspark": ("block", 5),
    "dflash": ("block", 5),
    "eagle3": ("eagle3", 1),
    "mtp": ("mtp", 1),
    "lm": ("lm", 2),
}


HEAD_DIM, ROPE_THETA = 64, 10000.0  # for a target without heads, or without rotation
# What the weights of `start` were trained with and no setting says.
_FOLLOWED = ("mask_token_id", "rms_norm_eps", "rope_theta", "rotary_fraction", "yarn")
_COMPARED = (
    "family",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "stage",
    "target_layer_ids",
    "markov_head_type",
    "markov_rank",
    "sample_from_anchor",
    "logit_softcap",
)
_ALSO_CALLED = {
    "rms_norm_eps": ("norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "intermediate_size": ("ffn_dim", "n_inner"),
}


def drafter_config(folder: Path, text: Any, settings: Settings) -> DrafterConfig:
    """The config of the run's drafter, for the target in a folder and its text model's config.
    ConfigError names a setting that does not fit the family or the target."""
    if settings.family == "dspark" and text.model_type == deepseek_v4.MODEL_TYPE:
        return _staged(folder, text, settings)
    kind, layers = _SHAPES[settings.family]
    layers = settings.layers or layers
    if kind in ("eagle3", "mtp") and layers != 1:
        raise ConfigError(
            f"layers: a drafter of the family {settings.family} has one, not {layers}"
        )
    common: dict[str, Any] = _target_shape(text, kind)
    common |= {"kind": kind, "num_hidden_layers": layers, "block_size": settings.block_size}
    if (kept := _kept(settings, common["vocab_size"])) is not None:
        if kind == "lm":
            raise ConfigError(
                "keep_tokens: the head of a language model is its embedding, and says every token"
            )
        common["draft_vocab_size"] = len(kept.target_ids)
    if kind == "lm":
        return DrafterConfig(
            **_language_shape(common, settings), target_layer_ids=(), num_target_layers=0
        )
    depth = int(text.num_hidden_layers)
    common |= {"target_layer_ids": tap_layers(depth, settings, kind), "num_target_layers": depth}
    if kind != "block":
        return DrafterConfig(**common)
    head: HeadType = "none"
    if settings.family == "dspark":
        head = settings.head if settings.markov_rank else "none"  # type: ignore[assignment]
    return DrafterConfig(
        **common,
        mask_token_id=mask_token(folder, common["vocab_size"]),
        markov_rank=settings.markov_rank if head != "none" else 0,
        markov_head_type=head,
        enable_confidence_head=settings.family == "dspark",
        confidence_head_with_markov=head != "none",
        num_anchors=settings.anchors,
    )


def _staged(folder: Path, text: Any, settings: Settings) -> DrafterConfig:
    """Config of the module in DeepSeek-V4 releases, shaped like this target's own layers."""
    if settings.head != "vanilla" or not settings.markov_rank:
        raise ConfigError(
            f"head: {settings.head} of rank {settings.markov_rank}; a DeepSeek-V4 target's module "
            "has a vanilla one"
        )
    if settings.keep_tokens:
        raise ConfigError(
            "keep_tokens: the head of a DeepSeek-V4 module is the target's own, and says every "
            "token"
        )
    depth, stages = int(text.num_hidden_layers), settings.layers or STAGES
    last = range(max(0, depth - STAGES), depth)
    config = deepseek_v4.parse(
        text.to_dict()
        | {
            "dtype": DrafterConfig.dtype,
            "compress_ratios": [0] * (depth + stages),
            "dspark_block_size": settings.block_size,
            "dspark_markov_rank": settings.markov_rank,
            "dspark_noise_token_id": mask_token(folder, int(text.vocab_size)),
            "dspark_target_layer_ids": list(
                tap_layers(depth, settings, "block") if settings.taps else last
            ),
        }
    )
    return replace(config, num_anchors=settings.anchors)


def tap_layers(layers: int, settings: Settings, kind: Kind) -> tuple[int, ...]:
    """The layers in `taps`, else evenly spread ones from 1 on (mtp: the last one). ConfigError if
    `taps` do not fit."""
    if settings.taps:
        least = -1 if kind == "block" else 0  # -1: the embeddings
        wrong = [i for i in settings.taps if not least <= i < layers]
        if wrong or list(settings.taps) != sorted(set(settings.taps)):
            raise ConfigError(
                f"taps: {list(settings.taps)} are no ascending layers of a target with {layers}"
            )
        if kind == "mtp" and len(settings.taps) > 1:
            raise ConfigError(
                f"taps: a drafter of the family mtp reads one layer, not {len(settings.taps)}"
            )
        return settings.taps
    if kind == "mtp":
        return (layers - 1,)
    # The published choice for targets of 36 and 40 layers; a shallow one has few to leave out.
    last = layers - 3 if layers >= SHALLOW else max(0, layers - 2)
    places = np.linspace(min(1, last), last, TAPS).round()
    return tuple(sorted({int(place) for place in places}))


def mask_token(folder: Path, vocab_size: int) -> int:
    """The token in the slots of a block behind the anchor: the tokenizer's mask token, else the
    first id that no text holds (the vocabulary of most models is padded behind its last token),
    else the last id."""
    last, tokenizer = vocab_size - 1, Chat(folder).tokenizer
    if tokenizer is None:
        return last
    found = tokenizer.mask_token_id
    return min(len(tokenizer) if found is None else int(found), last)


def make_drafter(target: LoadedTarget, settings: Settings) -> Drafter:
    """A fresh drafter, or one with the weights of `start`, whose block size may differ. It is in
    training mode, fp32, on the CPU."""
    model = target.model
    config = drafter_config(target.folder, model.config.get_text_config(), settings)
    given = load_drafter(settings.start, target=target.folder) if settings.start else None
    if given is not None:
        config = replace(config, **{name: getattr(given.config, name) for name in _FOLLOWED})
    own, kept = config.kind == "lm", _kept(settings, target.vocab_size)
    head = model.get_output_embeddings().weight
    drafter = fresh_drafter(
        config,
        embedding=None if own else model.get_input_embeddings().weight.float().cpu(),
        lm_head=None
        if own
        else (head if kept is None else head[kept.target_ids.to(head.device)]).float().cpu(),
        generator=torch.Generator().manual_seed(settings.seed),
    )
    drafter.draft_vocabulary = kept
    if given is not None:
        _start_from(drafter, given, settings.start)
    return drafter


def _kept(settings: Settings, vocab_size: int) -> DraftVocabulary | None:
    """The tokens of the drafter's head; None: the whole vocabulary."""
    return (
        DraftVocabulary.of(read_ids(Path(settings.keep_tokens)), vocab_size)
        if settings.keep_tokens
        else None
    )


def _start_from(drafter: Drafter, given: Drafter, folder: str) -> None:
    """Copies the weights of the drafter in `folder`. ConfigError names the first thing in which the
    two differ."""
    for name in _COMPARED:
        theirs, ours = getattr(given.config, name), getattr(drafter.config, name)
        if theirs != ours:
            raise ConfigError(
                f"start: {name} of {folder} is {theirs!r}, this run trains a drafter with {ours!r}"
            )
    weights, wanted = given.state_dict(), drafter.state_dict()
    for name in sorted(weights.keys() | wanted.keys()):
        shapes = [list(some[name].shape) if name in some else None for some in (weights, wanted)]
        if shapes[0] != shapes[1]:
            said = [f"of shape {shape}" if shape is not None else "missing" for shape in shapes]
            raise ConfigError(
                f"start: {name} of {folder} is {said[0]}, and {said[1]} in the drafter of this run"
            )
    says = [
        None if each.kept_tokens is None else each.kept_tokens.tolist() for each in (given, drafter)
    ]
    if says[0] != says[1]:
        raise ConfigError(
            f"start: the head of {folder} says other tokens than keep_tokens of this run"
        )
    drafter.load_state_dict(weights)


def _target_shape(text: Any, kind: Kind) -> dict[str, Any]:
    """Config values that a drafter takes from its target; for Gemma4 from its full-attention
    layers. The layers of a language model are Qwen3's for every target."""
    hidden_size, layer = int(text.hidden_size), _global_layer(text)
    rope = getattr(text, "rope_parameters", None) or {}
    heads = _said(text, "num_attention_heads") or max(1, hidden_size // HEAD_DIM)
    shape = {
        "hidden_size": hidden_size,
        "intermediate_size": _said(text, "intermediate_size") or 4 * hidden_size,
        "num_attention_heads": heads,
        "vocab_size": int(text.vocab_size),
        "rms_norm_eps": _said(text, "rms_norm_eps") or 1e-6,
        "max_position_embeddings": context_length(text),
        "initializer_range": _said(text, "initializer_range") or 0.02,
    }
    if str(text.model_type).startswith("gemma4") and kind != "lm":
        full, shared = rope["full_attention"], bool(text.attention_k_eq_v)
        # older releases name the sizes of these layers apart
        kv_heads = getattr(text, "num_global_key_value_heads", None) if shared else None
        return shape | {
            "model_type": "gemma4_text",
            "num_key_value_heads": kv_heads or layer.num_key_value_heads,
            "head_dim": getattr(text, "global_head_dim", None) or layer.head_dim,
            "attention_k_eq_v": shared,
            "rope_theta": full["rope_theta"],
            "rotary_fraction": full.get("partial_rotary_factor", 1.0),
            "logit_softcap": text.final_logit_softcapping,
        }
    bases = [
        part["rope_theta"]
        for part in (rope, *rope.values())
        if isinstance(part, dict) and "rope_theta" in part
    ]
    head_dim = _said(layer, "head_dim") or hidden_size // heads
    return shape | {
        "num_key_value_heads": _said(layer, "num_key_value_heads") or heads,
        "head_dim": head_dim + head_dim % 2,
        "rope_theta": max(bases, default=ROPE_THETA),
    }


def _global_layer(text: Any) -> Any:
    """The config of a layer that sees everything, if it can be had; newer releases of the library
    have one for each layer of a target whose layers differ, and refuse to tell sizes of all."""
    if not getattr(text, "is_heterogeneous", False):
        return text
    kinds = enumerate(getattr(text, "layer_types", None) or ())
    return text.per_layer_config[next((n for n, kind in kinds if kind == "full_attention"), 0)]


def _said(text: Any, name: str) -> Any:
    """A value of the target's config under any of its names; None if it is absent or no plain
    number."""
    for each in (name, *_ALSO_CALLED.get(name, ())):
        value = getattr(text, each, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _language_shape(common: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Config values of a narrower decoder over the same vocabulary, with embedding and head tied;
    attention heads keep the target's size."""
    width = settings.width or common["hidden_size"] // 2
    head_dim = common["head_dim"]
    heads = max(1, width // head_dim)
    return common | {
        "hidden_size": width,
        "intermediate_size": common["intermediate_size"] * width // common["hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": max(
            n for n in range(1, heads + 1) if heads % n == 0 and n <= -(-heads // 2)
        ),
        "tie_word_embeddings": True,
    }
