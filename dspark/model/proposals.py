"""What blocks of several families share: how sure a slot without a confidence head is, and growing token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.attention import for_padded_context
from dspark.model.family import Entries


def sureness(logits: Tensor) -> Tensor:
    """logits [..., V] of slots -> [...] fp32: the log-odds of each slot's likeliest token.

    The confidence of drafters without a head for it. It is made of what was drafted before the slot and never of the
    slot's own token: that token's probability would let a draft decide whether it is verified.
    """
    wide = logits.float()
    log_q = (wide.amax(dim=-1) - wide.logsumexp(dim=-1)).clamp(max=-1e-6)  # at q = 1 the odds are still a number
    return log_q - torch.log(-torch.expm1(log_q))


class GrownProposal:
    """A block that grows a token per step; its own entries stand behind those of the context."""

    def __init__(self, context: Entries, slots: int) -> None:
        keys, values = context.keys, context.values
        self._positions = context.lengths  # [n] of the step to come
        self._mask: Tensor | None = None  # [n, 1, 1, S + slots]
        if keys.shape[1] == 1 and keys.device.type == "cpu":  # of a card it would be a wait
            rows = int(context.lengths[0])
            keys, values = keys[:, :, :rows], values[:, :, :rows]
        else:
            self._mask = for_padded_context(context.lengths, keys.shape[2], slots)
        self._keys, self._values = list(keys.unbind()), list(values.unbind())  # per layer [n, S, Hkv, hd]
        self._hidden: list[Tensor] = []
        self._sureness: list[Tensor] = []

    def _grow(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Appends [n, 1, Hkv, hd] of the step's token -> a layer's keys and values so far, and the mask over them."""
        self._keys[layer] = keys = torch.cat((self._keys[layer], key), dim=1)
        self._values[layer] = values = torch.cat((self._values[layer], value), dim=1)
        return keys, values, None if self._mask is None else self._mask[..., : keys.shape[1]]

    def _stepped(self, hidden: Tensor, logits: Tensor) -> Tensor:
        """Ends a step: hidden [n, H] after the final norm, logits [n, V] -> the logits in fp32."""
        logits = logits.float()
        self._positions = self._positions + 1
        self._hidden.append(hidden)
        self._sureness.append(sureness(logits))
        return logits

    def confidence_logits(self, previous_ids: Tensor) -> Tensor:
        """[n, k] of the k slots stepped; these families have no head that would read the ids."""
        return torch.stack(self._sureness, dim=1)

    @property
    def hidden(self) -> Tensor:
        return torch.stack(self._hidden, dim=1)
