"""Generates many sequences in a batch: every row is at the same position, so nothing is padded.

The rest of a longer prompt is fed token by token while shorter ones already sample. No row ends
early.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from dspark.model.target import beyond_keys, cache_argument, returned_cache, takes_positions

Pick = Callable[[Tensor, int], Tensor]  # logits [B, V] and their position -> tokens [B]


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer in buffers that are allocated once: appending copies the new rows only."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.filled = room, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values [B, Hkv, T, hd], of different hd in some families, of the next T
        positions; returns all so far."""
        if not self.filled:
            self.whole = [
                new.new_empty(*new.shape[:2], self.room, new.shape[3])
                for new in (key_states, value_states)
            ]
            self.is_initialized = True
        end = self.filled + key_states.shape[2]
        for whole, new in zip(self.whole, (key_states, value_states), strict=True):
            whole[:, :, self.filled : end] = new
        self.filled = end
        self.keys, self.values = (whole[:, :, :end] for whole in self.whole)
        return self.keys, self.values


def _held(model: Any, total: int) -> Cache | None:
    """A cache of `total` positions; None for a model that keeps more than keys and values, which
    makes its own."""
    if beyond_keys(model) is not None:
        return None
    cache = DynamicCache()
    cache.layers = [
        PreallocatedLayer(total) for _ in range(model.config.get_text_config().num_hidden_layers)
    ]
    return cache


def greedy(logits: Tensor, place: int) -> Tensor:
    """The likeliest tokens, a `Pick`."""
    return logits.argmax(dim=-1)


@torch.inference_mode()
def generate(
    model: Any,  # a causal language model of transformers
    *,
    prompts: Sequence[Sequence[int]],  # B rows, of any lengths
    total: int,
    pick: Pick = greedy,
) -> Tensor:
    """Continues every prompt to `total` tokens: ids [B, total]."""
    batch, given = len(prompts), min(map(len, prompts))
    ids = torch.zeros(batch, total, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(list(prompt))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    name, held = cache_argument(model), _held(model, total)
    fresh = ids[:, :given]
    for place in range(given, total):
        told = {} if held is None else {name: held}
        if takes_positions(model):
            told["position_ids"] = torch.arange(place - fresh.shape[1], place).expand(batch, -1)
        out = model(input_ids=fresh, use_cache=True, logits_to_keep=1, **told)
        held, logits = held or returned_cache(out), out.logits[:, -1]
        ids[:, place] = torch.where(lengths > place, ids[:, place], pick(logits, place))
        fresh = ids[:, place : place + 1]
    return ids
