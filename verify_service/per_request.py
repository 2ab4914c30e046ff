"""One pass per sequence over the library's own caches: slower than packing, and right for more models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.releases import cache_argument
from dspark.model.target import TargetTaps
from verify_service import rotation
from verify_service.page_pool import Slots
from verify_service.passes import Pass
from verify_service.plan import Segment


class _Call(NamedTuple):
    """One call of the model on tokens of one sequence; the last `own` of them are new."""

    segment: Segment
    own: int
    cache: int  # which of the sequence's caches


class PerRequestRunner:
    """One pass per segment over the library's own caches: slower, and right for more models.

    A model that computes its whole context again past a border (see `rotation`) has two caches per sequence around it:
    tokens before the border belong to the first, and those behind it to the second, which begins with all others.
    """

    path = "stateful"
    make = "library"

    def __init__(self, model: Any, taps: TargetTaps | None, reason: str = "") -> None:
        self.reason = reason
        use_own_attention(model)
        self.device: torch.device = next(model.parameters()).device
        self.rotation = rotation.find(model)
        self._model, self._cache = model, cache_argument(model)
        self._taps = taps
        self._caches: dict[int, dict[int, Any]] = {}
        self._token_ids: dict[int, list[int]] = {}  # of sequences that may have to be computed again

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        logits, taps = [], []
        wanted = set(rows) if rows is not None else None
        first = 0
        for call in (call for segment in segments for call in self._calls(segment)):
            keep = [j for j in range(call.own) if wanted is None or first + j in wanted]
            first += call.own
            made, tapped = self._run(call, keep)
            if keep:
                logits.append(made)
            if tapped is not None:
                taps.append(tapped)
        vocab = self._model.config.get_text_config().vocab_size
        none = torch.empty(0, vocab, device=self.device)
        return Pass(torch.cat(logits) if logits else none, torch.cat(taps) if taps else None)

    def release(self, key: int) -> None:
        self._caches.pop(key, None)
        self._token_ids.pop(key, None)

    @torch.inference_mode()
    def fill(self, key: int, slots: Slots | Sequence[int], length: int) -> None:
        have = max(self._length(key, which) for which in (0, 1))
        if (missing := length - have) > 0:
            self.run([Segment(key, have, [0] * missing, range(length), length)], [])

    def reset(self) -> None:
        self._caches.clear()
        self._token_ids.clear()

    def _run(self, call: _Call, keep: list[int]) -> tuple[Tensor, Tensor | None]:
        """Logits of the rows kept, or of one where there are none, and taps of the segment's own tokens."""
        segment, before = call.segment, len(call.segment.token_ids) - call.own
        cache = self._cache_at(segment.key, call.cache, segment.start)
        with self._turned(segment):
            output = self._model(
                input_ids=torch.tensor([list(segment.token_ids)], device=self.device),
                use_cache=True,
                # Something must be kept for the pass to have a last row.
                logits_to_keep=torch.tensor([before + j for j in keep or [call.own - 1]], device=self.device),
                **{self._cache: cache},
            )
        taps = self._taps.collect()[0][before:] if self._taps is not None else None
        return output.logits[0], taps

    def _turned(self, segment: Segment) -> contextlib.AbstractContextManager[None]:
        if self.rotation is None:
            return contextlib.nullcontext()
        if self.rotation.switches_at is not None:  # all of a cache alike
            segment = Segment(segment.key, segment.start, segment.token_ids, (), max(segment.prompt, segment.length))
        return self.rotation.told(self.rotation.of_tokens([segment]))

    def _calls(self, segment: Segment) -> Iterator[_Call]:
        """The segment as it is; where the model switches, its tokens before the border and those behind it."""
        count = len(segment.token_ids)
        border = self.rotation.switches_at if self.rotation is not None else None
        if border is None:
            yield _Call(segment, count, 0)
            return
        key, ids = segment.key, self._token_ids.setdefault(segment.key, [])
        ids[segment.start :] = segment.token_ids
        if (surplus := self._length(key, 1) - segment.start) > 0:  # of a draft, perhaps of one that was not kept
            self._caches[key][1].crop(-surplus)
        if segment.prompt > border:
            yield _Call(segment, count, 1)
            return
        if early := max(min(border - segment.start, count), 0):
            yield _Call(Segment(key, segment.start, segment.token_ids[:early], (), segment.prompt), early, 0)
        else:
            self._caches.get(key, {}).pop(0, None)  # what is committed has left it behind
        if early < count:
            have = self._length(key, 1)
            yield _Call(Segment(key, have, ids[have:], (), segment.prompt), count - early, 1)

    def _length(self, key: int, which: int) -> int:
        cache = self._caches.get(key, {}).get(which)
        return int(cache.get_seq_length()) if cache is not None else 0

    def _cache_at(self, key: int, which: int, start: int) -> Any:
        """One of the sequence's caches, cut back to `start` tokens."""
        from transformers import DynamicCache

        caches = self._caches.setdefault(key, {})
        if start == 0 or which not in caches:
            # Without a config every layer keeps all tokens, so that any of them can be taken back.
            caches[which] = DynamicCache()
        cache = caches[which]
        if (surplus := self._length(key, which) - start) > 0:
            cache.crop(-surplus)
        if self._length(key, which) != start:
            raise CheckpointError(
                f"a cache of {self._length(key, which)} tokens could not be brought to {start}: "
                f"{type(self._model).__name__} cannot take tokens back"
            )
        return cache


def use_own_attention(model: Any) -> None:
    """The library's attention for this model: fused where it has that, else by its own formula."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # caps on scores and sinks have no fused form
        model.set_attn_implementation("eager")
