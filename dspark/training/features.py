"""What a drafter learns from: the target's tapped layers and its last hidden state, for every token of a conversation.

Hidden states, never logits: the vocabulary is only touched where a slot needs it. They come from the target as it runs
beside the drafter, or from a cache that was written before; both answer the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dspark.model.target import TargetTaps
from dspark.training.samples import Sample


class Features(NamedTuple):
    """Of one conversation."""

    taps: Tensor  # [T, m*H]
    last: Tensor  # [T, H] after the final norm


class FeatureSource(Protocol):
    """Where features come from."""

    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        """The features of samples, in their order."""


class OnlineFeatures:
    """Runs the target, padded behind the end: a causal model does not see what comes later."""

    def __init__(self, model: Any, layer_ids: tuple[int, ...]) -> None:
        self._model, self._layer_ids = model, layer_ids

    @torch.no_grad()
    def of(self, numbers: Sequence[int], samples: Sequence[Sample]) -> list[Features]:
        lengths = [len(sample.ids) for sample in samples]
        ids = torch.nn.utils.rnn.pad_sequence([sample.ids for sample in samples], batch_first=True)
        ids = ids.to(self._model.device)
        with TargetTaps(self._model, self._layer_ids) as taps:
            decoder = self._model.get_decoder()
            last = decoder(input_ids=ids, use_cache=False).last_hidden_state
            tapped = taps.collect() if self._layer_ids else last[..., :0]
        return [Features(tapped[row, :n], last[row, :n]) for row, n in enumerate(lengths)]
