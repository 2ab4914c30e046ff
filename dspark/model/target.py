"""Taps on a target: the raw output of chosen decoder layers, collected while it runs.

Layer id L is decoder layer L's residual stream after the layer, before any norm (the library's
`hidden_states[L+1]`, except for the last layer, where that entry is normed already and a hook is
the only way). Id -1 is the embedding output. The target's code is not changed.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dspark.errors import CheckpointError

# Kinds of cache layers. The last: of a layer that reads another's keys, or has no attention.
_KEYS_AND_VALUES = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
_STACKS = ("layers", "h", "blocks")  # names of the list of layers in the library's models
_CACHES = ("cache", "past_key_values", "cache_params")  # names under which models return it


class TargetTaps:
    """Forward hooks that keep the outputs of the tapped layers of the last pass.

    Use as a context manager, or `attach` once and `detach` at the end. Run one forward, then one
    `collect`; a forward that is not collected is overwritten by the next.
    """

    def __init__(self, model: Any, layer_ids: tuple[int, ...]) -> None:
        layers = decoder_layers(model)
        wrong = [i for i in layer_ids if not -1 <= i < len(layers)]
        if wrong or list(layer_ids) != sorted(set(layer_ids)):
            raise CheckpointError(
                f"target_layer_ids {list(layer_ids)} do not fit a target of {len(layers)} layers"
            )
        self.layer_ids = layer_ids
        self._layers = layers
        # Axis of a token's streams: Gemma3n's is before all tokens, DeepSeek-V4's within each.
        self._streams = 0 if hasattr(model.config.get_text_config(), "altup_num_inputs") else -2
        self._seen: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def attach(self) -> TargetTaps:
        """Registers the hooks; attaching twice is harmless."""
        if self._handles:
            return self
        for layer_id in self.layer_ids:
            if layer_id < 0:
                # The input of layer 0 is the embedding output, scaling included.
                handle = self._layers[0].register_forward_pre_hook(self._enter, with_kwargs=True)
            else:
                handle = self._layers[layer_id].register_forward_hook(self._leave(layer_id))
            self._handles.append(handle)
        return self

    def detach(self) -> None:
        """Removes the hooks and drops the outputs of the last pass."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def collect(self) -> Tensor:
        """Returns and drops the features of the last pass, [..., T, m*H]."""
        missing = [i for i in self.layer_ids if i not in self._seen]
        if missing:
            raise RuntimeError(f"no forward pass has reached tapped layers {missing}")
        # Several streams of one token are averaged.
        taps = [
            tap.mean(self._streams) if tap.dim() > 3 else tap
            for tap in (self._seen[i] for i in self.layer_ids)
        ]
        self._seen.clear()
        return torch.cat(taps, dim=-1)

    def __enter__(self) -> TargetTaps:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen[-1] = args[0] if args else kwargs["hidden_states"]

    def _leave(self, layer_id: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            # Layers return a tensor today and a tuple in older releases.
            self._seen[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook


def tapped(model: Any, ids: Tensor, layer_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Runs one pass over ids [B, T] without the head: (features [B, T, m*H], final-normed hidden
    states [B, T, H])."""
    with TargetTaps(model, layer_ids) as taps:
        last: Tensor = _decoder(model)(input_ids=ids, use_cache=False).last_hidden_state
        return taps.collect() if layer_ids else last[..., :0], last


def _decoder(model: Any) -> Any:
    """The model without its head; Llama4 says that its decoder is itself, the head included."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return getattr(model, "model", model) if decoder is model else decoder


def decoder_layers(model: Any) -> nn.ModuleList:
    """The decoder layers of a causal language model, multimodal wrappers included."""
    decoder = _decoder(model)
    for candidate in (
        decoder,
        getattr(decoder, "language_model", None),
        getattr(model, "model", None),
    ):
        for name in _STACKS:
            if isinstance(layers := getattr(candidate, name, None), nn.ModuleList):
                return layers
    raise CheckpointError(f"{type(model).__name__}: no list of decoder layers to tap")


def beyond_keys(model: Any) -> str | None:
    """Names the first layer whose state is more than keys and values, which can be cut, or None."""
    for index, layer in enumerate(cache_layers(model)):
        if (kind := type(layer).__name__) not in _KEYS_AND_VALUES:
            return f"layer {index} keeps more than keys and values ({kind})"
    return None


def cache_layers(model: Any) -> list[Any]:
    """The layers of the library's cache for this configuration."""
    from transformers import DynamicCache

    return list(DynamicCache(config=model.config).layers)


def returned_cache(output: Any) -> Any:
    """The cache in a model's output, or None."""
    return next((output[name] for name in _CACHES if output.get(name) is not None), None)


def takes_positions(model: Any) -> bool:
    """Whether the model's forward takes positions: not all derive them from a cache whose first
    layer counts no tokens."""
    return "position_ids" in inspect.signature(model.forward).parameters


def cache_argument(model: Any) -> str:
    """The name under which the model's forward takes a cache of keys and values."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"
