"""One pass per sequence over the library's own caches: slower than packing, and right for more models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dspark.errors import CheckpointError
from dspark.model.library import cache_argument
from dspark.model.target import TargetTaps
from verify_service.page_pool import Slots
from verify_service.passes import Pass
from verify_service.plan import Segment


class PerRequestRunner:
    """One pass per segment over the library's own caches: slower, and right for more models."""

    path = "per_request"
    make = "library"

    def __init__(self, model: Any, taps: TargetTaps | None) -> None:
        use_own_attention(model)
        self.device: torch.device = next(model.parameters()).device
        self._model = model
        self._taps = taps
        self._cache_argument = cache_argument(model)
        self._caches: dict[int, Any] = {}

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        logits, taps = [], []
        wanted = set(rows) if rows is not None else None
        first = 0
        for segment in segments:
            count = len(segment.token_ids)
            keep = [j for j in range(count) if wanted is None or first + j in wanted]
            first += count
            cache = self._cache_at(segment.key, segment.start)
            output = self._model(
                input_ids=torch.tensor([list(segment.token_ids)], device=self.device),
                use_cache=True,
                # Something must be kept for the pass to have a last row.
                logits_to_keep=torch.tensor(keep or [count - 1], device=self.device),
                **{self._cache_argument: cache},
            )
            if keep:
                logits.append(output.logits[0])
            if self._taps is not None:
                taps.append(self._taps.collect()[0])
        vocab = self._model.config.get_text_config().vocab_size
        none = torch.empty(0, vocab, device=self.device)
        return Pass(torch.cat(logits) if logits else none, torch.cat(taps) if taps else None)

    def release(self, key: int) -> None:
        self._caches.pop(key, None)

    @torch.inference_mode()
    def fill(self, key: int, slots: Slots | Sequence[int], length: int) -> None:
        if (missing := length - self._length(key)) > 0:
            self.run([Segment(key, self._length(key), [0] * missing, range(length))], [])

    def reset(self) -> None:
        self._caches.clear()

    def _length(self, key: int) -> int:
        cache = self._caches.get(key)
        return int(cache.get_seq_length()) if cache is not None else 0

    def _cache_at(self, key: int, start: int) -> Any:
        """The sequence's cache, cut back to `start` tokens."""
        from transformers import DynamicCache

        if start == 0 or key not in self._caches:
            # Without a config every layer keeps all tokens, so that any of them can be taken back.
            self._caches[key] = DynamicCache()
        cache = self._caches[key]
        if (surplus := self._length(key) - start) > 0:
            cache.crop(-surplus)
        if self._length(key) != start:
            raise CheckpointError(
                f"a cache of {self._length(key)} tokens could not be brought to {start}: "
                f"{type(self._model).__name__} cannot take tokens back"
            )
        return cache


def use_own_attention(model: Any) -> None:
    """The library's attention for this model: fused where it has that, else by its own formula."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # caps on scores and sinks have no fused form
        model.set_attn_implementation("eager")
