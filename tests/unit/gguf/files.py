"""Tiny GGUF files, written the way llama.cpp's converter does, from random models of the
library."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

Kind = gguf.GGMLQuantizationType

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, BETWEEN, LAYERS = 64, 4, 2, 32, 96, 2
# Every byte as byte-level vocabularies write it, two merges, and the tokens of a chat.
_BYTES = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
_BYTES += [chr(256 + n) for n in range(256 - len(_BYTES))]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTE_TOKENS = [*SPECIAL, *_BYTES, "Ġt", "Ġth", *(f"[PAD{n}]" for n in range(27))]
MERGES = ["Ġ t", "Ġt h"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)

_SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": BETWEEN,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 512,
    "vocab_size": len(BYTE_TOKENS),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
_GEMMA = {**_SHAPE, "query_pre_attn_scalar": HEAD_DIM, "sliding_window": 64}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SHAPE, rope_theta=100_000.0, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(
        **{k: v for k, v in _SHAPE.items() if k != "head_dim"}, tie_word_embeddings=False
    ),
    "qwen3": lambda: Qwen3Config(**_SHAPE, tie_word_embeddings=False),
    "gemma2": lambda: Gemma2Config(**_GEMMA),
    "gemma3": lambda: Gemma3TextConfig(**_GEMMA),
}


def random_model(architecture: str) -> Any:
    """A model whose values bfloat16 holds exactly, norms included."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture]())
    for parameter in model.parameters():
        parameter.data = (
            (parameter.data + 0.05 * torch.randn_like(parameter)).to(torch.bfloat16).float()
        )
    return model.eval().requires_grad_(False)


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    *,
    kinds: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray]], None] | None = None,
) -> Path:
    """`kinds`: storage of a place, such as attn_q; F32 otherwise. `settings` override the file's
    own, None leaves one out. `change` works on the tensors before they are written."""
    tensors = dict(_tensors(model, architecture))
    if change is not None:
        change(tensors)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in ({**_settings(model.config, architecture), **(settings or {})}).items():
        add = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            bool: writer.add_bool,
        }
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            add[type(value)](key, value)
    for name, values in tensors.items():
        kind = (kinds or {}).get(name.split(".")[-2], Kind.F32)
        stored = values if kind is Kind.F32 else gguf.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=None if kind is Kind.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _settings(config: Any, architecture: str) -> dict[str, Any]:
    theta = config.to_dict()["rope_parameters"]
    said = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(
            theta["full_attention"]["rope_theta"]
            if "full_attention" in theta
            else theta["rope_theta"]
        ),
        "vocab_size": config.vocab_size,
    }
    if architecture == "llama":
        said["rope.dimension_count"] = config.head_dim
    elif architecture != "qwen2":
        said["attention.key_length"] = config.head_dim
    if architecture.startswith("gemma"):
        said["attention.sliding_window"] = config.sliding_window
    return {
        **{f"{architecture}.{key}": value for key, value in said.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": BYTE_TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(BYTE_TOKENS) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _tensors(model: Any, architecture: str) -> Any:
    gemma = architecture.startswith("gemma")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], LAYERS)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        theirs = names.get_name(name, (".weight", ".bias"))
        values = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = HEADS if "q_proj" in name else KV_HEADS
            values = (
                values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            )
        yield theirs, np.ascontiguousarray(values + 1 if gemma and "norm" in theirs else values)
