"""Many sequences generated side by side: every row is at the same position, so nothing is padded.

A row may be forced to follow given tokens; otherwise it samples. Rows that end a document go on with a new
beginning, forced again, the way documents follow one another in training text.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from dspark.model.releases import cache_argument, returned_cache, takes_positions
from dspark.model.target import beyond_keys

# From the row's number to the tokens a new document of that row starts with.
Beginning = Callable[[int], list[int]]


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values in buffers that are allocated once: appending copies the new rows only."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.filled = room, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """keys, values [B, Hkv, T, hd] of the next T positions -> all of them so far."""
        batch, heads, new, size = key_states.shape
        if not self.filled:
            self.whole = key_states.new_empty(2, batch, heads, self.room, size)
            self.is_initialized = True
        end = self.filled + new
        self.whole[0, :, :, self.filled : end] = key_states
        self.whole[1, :, :, self.filled : end] = value_states
        self.filled = end
        self.keys, self.values = self.whole[0, :, :, :end], self.whole[1, :, :, :end]
        return self.keys, self.values


def roomy_cache(layers: int, room: int) -> Cache:
    cache = DynamicCache()
    cache.layers = [RoomyLayer(room) for _ in range(layers)]
    return cache


def _held(model: Any, total: int) -> Cache | None:
    """Room for keys and values; None where layers keep more than those, for which a model makes its own."""
    if beyond_keys(model) is not None:
        return None
    return roomy_cache(model.config.get_text_config().num_hidden_layers, total)


def draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row of logits [B, V]: the largest where the temperature is 0, else a draw at it. [B]"""
    laws = torch.softmax(logits.float() / torch.where(temperatures > 0, temperatures, 1.0).unsqueeze(-1), dim=-1)
    places = torch.rand(len(laws), 1, generator=generator) * laws.sum(dim=-1, keepdim=True)
    drawn = torch.searchsorted(laws.cumsum(dim=-1), places).squeeze(-1).clamp(max=laws.shape[-1] - 1)
    return torch.where(temperatures > 0, drawn, logits.argmax(dim=-1))


@torch.inference_mode()
def generate(
    model: Any,  # a causal language model of transformers
    *,
    prompts: Sequence[Sequence[int]],  # B rows, of any lengths
    total: int,
    temperatures: Tensor,  # [B]
    generator: torch.Generator,
    end_id: int,
    beginning: Beginning = lambda _row: [],
    pick: Callable[[Tensor, int], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Continues every prompt to `total` tokens: ids [B, total], and which of them were forced [B, total] bool.

    `pick` draws in place of the temperatures: logits [B, V] and the position they are for -> ids [B].
    """
    batch, given = len(prompts), min(map(len, prompts))
    ids = torch.zeros(batch, total, dtype=torch.int64)
    forced = torch.zeros(batch, total, dtype=torch.bool)
    ids[:, :given], forced[:, :given] = torch.tensor([list(p[:given]) for p in prompts]), True
    # What is left of the longer prompts is forced step by step while the shorter ones already sample.
    queues = [list(p[given:]) for p in prompts]
    name, held = cache_argument(model), _held(model, total)
    fresh = ids[:, :given]
    for place in range(given, total):
        told = {} if held is None else {name: held}
        if takes_positions(model):
            told["position_ids"] = torch.arange(place - fresh.shape[1], place).expand(batch, -1)
        out = model(input_ids=fresh, use_cache=True, logits_to_keep=1, **told)
        held, logits = held or returned_cache(out), out.logits[:, -1]
        token = draw(logits, temperatures, generator) if pick is None else pick(logits, place)
        ended = (ids[:, place - 1] == end_id) & ~forced[:, place - 1]
        for row in torch.nonzero(ended).flatten().tolist():
            queues[row] = list(beginning(row))
        for row, queue in enumerate(queues):
            if queue:
                token[row], forced[row, place] = queue.pop(0), True
        ids[:, place] = token
        fresh = token.unsqueeze(-1)
    return ids, forced
