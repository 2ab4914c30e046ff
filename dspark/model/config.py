"""What a draft checkpoint's config.json says, checked by schema.

Knows keys and values only; no tensor is looked at here. Every complaint names the key and
the value that was found. Families that are not built are refused by name, so that a caller
can tell "not yet" from "broken".
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any, Literal, cast

from dspark.errors import CheckpointError, UnsupportedFamily

HeadType = Literal["none", "vanilla", "gated", "rnn"]
HEAD_TYPES = ("vanilla", "gated", "rnn")
CONFIG_NAME = "config.json"
_LARGEST_DIMENSION = 1 << 24  # keeps products of two dimensions far from overflow


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    """Shape and meaning of one block drafter (DSpark, or DFlash when it has no heads)."""

    hidden_size: int  # H, equal to the target's
    intermediate_size: int
    num_hidden_layers: int  # L, draft depth
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # V, equal to the target's
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    block_size: int  # k, drafted tokens per round
    mask_token_id: int  # fills slots 1..k-1 of the query block
    target_layer_ids: tuple[int, ...]  # m taps, ascending; -1 is the embedding output
    num_target_layers: int
    markov_rank: int = 0  # r; 0 means no sequential head
    markov_head_type: HeadType = "none"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    num_anchors: int = 512  # training only
    initializer_range: float = 0.02
    dtype: str = "bfloat16"

    @property
    def feature_size(self) -> int:
        """m*H, the width of one row of concatenated taps."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def family(self) -> str:
        """`dspark` or `dflash`: only the heads tell them apart."""
        return "dspark" if self.markov_rank or self.enable_confidence_head else "dflash"


def read_drafter_config(folder: Path) -> DrafterConfig:
    """Parse `folder/config.json`; every error carries the file's path."""
    path = folder / CONFIG_NAME
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    try:
        return parse_drafter_config(raw)
    except UnsupportedFamily as error:
        raise UnsupportedFamily(f"{path}: {error}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_drafter_config(raw: Any) -> DrafterConfig:
    """Check a decoded config.json key by key. The released key set: Qwen3 DSpark and DFlash."""
    if not isinstance(raw, dict):
        raise CheckpointError(f"expected a JSON object, found {_show(raw)}")
    _refuse_other_families(raw)
    keys = _Keys(raw)
    keys.must_equal("model_type", "qwen3")
    keys.must_equal("hidden_act", "silu", absent_is_fine=True)
    for flag in ("attention_bias", "tie_word_embeddings", "use_sliding_window"):
        keys.must_equal(flag, False, absent_is_fine=True)
    layers = keys.count("num_hidden_layers", most=1024)
    _check_layer_types(raw.get("layer_types"), layers)
    heads, kv_heads = keys.count("num_attention_heads"), keys.count("num_key_value_heads")
    if heads % kv_heads:
        raise CheckpointError(f"num_attention_heads: {heads} is not a multiple of num_key_value_heads {kv_heads}")
    head_dim = keys.count("head_dim")
    if head_dim % 2:
        raise CheckpointError(f"head_dim: {head_dim} is odd, rotary positions need pairs")
    vocab = keys.count("vocab_size")
    rank = keys.count("markov_rank", default=0, least=0)
    confident = keys.flag("enable_confidence_head", default=False)
    with_markov = confident and keys.flag("confidence_head_with_markov", default=False)
    if with_markov and not rank:
        raise CheckpointError("confidence_head_with_markov: true needs markov_rank above 0")
    num_target_layers = keys.count("num_target_layers")
    return DrafterConfig(
        hidden_size=keys.count("hidden_size"),
        intermediate_size=keys.count("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=keys.positive("rms_norm_eps"),
        rope_theta=_rope_theta(raw),
        max_position_embeddings=keys.count("max_position_embeddings"),
        block_size=keys.count("block_size", most=256),
        mask_token_id=keys.count("mask_token_id", least=0, most=vocab - 1),
        target_layer_ids=_layer_ids(raw.get("target_layer_ids"), num_target_layers),
        num_target_layers=num_target_layers,
        markov_rank=rank,
        markov_head_type=_head_type(raw.get("markov_head_type", "vanilla")) if rank else "none",
        enable_confidence_head=confident,
        confidence_head_with_markov=with_markov,
        num_anchors=keys.count("num_anchors", default=512),
        initializer_range=keys.positive("initializer_range", default=0.02),
        dtype=_dtype(raw.get("dtype", raw.get("torch_dtype", "bfloat16"))),
    )


def config_to_json(config: DrafterConfig) -> dict[str, Any]:
    """The released spelling of a config: `parse_drafter_config` of the result gives it back."""
    raw = dataclasses.asdict(config)
    raw["target_layer_ids"] = list(config.target_layer_ids)
    raw["rope_parameters"] = {"rope_theta": raw.pop("rope_theta"), "rope_type": "default"}
    if not config.markov_rank:
        del raw["markov_head_type"]
    if not config.enable_confidence_head:
        del raw["confidence_head_with_markov"]
    raw |= {
        # Both block families carry this class name; heads alone tell them apart.
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
    }
    return dict(sorted(raw.items()))


class _Keys:
    """Typed look-ups whose errors name the key and the value."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def count(self, key: str, *, default: int | None = None, least: int = 1, most: int = _LARGEST_DIMENSION) -> int:
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise CheckpointError(f"{key}: expected an integer from {least} to {most}, found {_show(value)}")
        return value

    def positive(self, key: str, *, default: float | None = None) -> float:
        return _positive(key, self._get(key, default))

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{key}: expected true or false, found {_show(value)}")
        return value

    def must_equal(self, key: str, wanted: object, *, absent_is_fine: bool = False) -> None:
        if key not in self.raw and absent_is_fine:
            return
        if (value := self.raw.get(key)) != wanted:
            raise CheckpointError(f"{key}: expected {_show(wanted)}, found {_show(value)}")

    def _get(self, key: str, default: object) -> object:
        # An explicit null counts as absent: that is how the format spells "not set".
        value = self.raw.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{key}: missing")
        return default if value is None else value


def _refuse_other_families(raw: dict[str, Any]) -> None:
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    model_type = str(raw.get("model_type", ""))
    if any(key.startswith("dspark_") for key in raw) or "deepseek" in model_type.lower():
        raise UnsupportedFamily(
            "this is a DeepSeek-V4 style checkpoint (dspark_* keys or mtp.* stages inside the "
            "target); that family is not supported, use a Qwen3 DSpark or DFlash drafter"
        )
    if "Eagle3" in name or "ttt_length" in raw:
        raise UnsupportedFamily(f"architectures: {name or 'Eagle3'} drafters are not supported")
    if name.startswith("Gemma4") or model_type.startswith("gemma4"):
        raise UnsupportedFamily(f"architectures: {name or model_type} drafters are not supported")
    if "block_size" not in raw or "target_layer_ids" not in raw:
        raise CheckpointError(
            f"architectures: {_show(names)} is no block drafter (block_size and target_layer_ids are missing)"
        )


def _check_layer_types(value: object, layers: int) -> None:
    if value is not None and value != ["full_attention"] * layers:
        raise CheckpointError(f"layer_types: expected {layers} times full_attention, found {_show(value)}")


def _layer_ids(value: object, num_target_layers: int) -> tuple[int, ...]:
    fits = (
        isinstance(value, list)
        and bool(value)
        and all(type(i) is int and -1 <= i < num_target_layers for i in value)
        and all(a < b for a, b in itertools.pairwise(value))
    )
    if not fits:
        raise CheckpointError(
            f"target_layer_ids: expected ascending layer ids from -1 to {num_target_layers - 1}, found {_show(value)}"
        )
    return tuple(cast(list[int], value))


def _rope_theta(raw: dict[str, Any]) -> float:
    """Current files keep RoPE in `rope_parameters`, older ones in a bare `rope_theta`."""
    parameters = raw.get("rope_parameters")
    if parameters is None:
        if raw.get("rope_scaling") is not None:
            raise CheckpointError(f"rope_scaling: {_show(raw['rope_scaling'])} is not supported")
        return _positive("rope_theta", raw.get("rope_theta"))
    if not isinstance(parameters, dict):
        raise CheckpointError(f"rope_parameters: expected an object, found {_show(parameters)}")
    if (kind := parameters.get("rope_type", "default")) != "default":
        raise CheckpointError(f"rope_parameters.rope_type: {_show(kind)} is not supported")
    return _positive("rope_parameters.rope_theta", parameters.get("rope_theta"))


def _head_type(value: object) -> HeadType:
    if value not in HEAD_TYPES:
        raise CheckpointError(f"markov_head_type: expected one of {', '.join(HEAD_TYPES)}, found {_show(value)}")
    return cast(HeadType, value)


def _dtype(value: object) -> str:
    if value not in ("float32", "bfloat16", "float16"):
        raise CheckpointError(f"dtype: expected a floating type, found {_show(value)}")
    return value


def _positive(key: str, value: object) -> float:
    number = float(value) if isinstance(value, int | float) and type(value) is not bool else 0.0
    if not (math.isfinite(number) and number > 0):
        raise CheckpointError(f"{key}: expected a positive number, found {_show(value)}")
    return number


def _show(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
