"""Rotary embedding that depends on sequence length, applied per token as for one sequence alone.

Some rotary modules choose frequencies by the largest position of a call: `longrope` (Phi-3 to
Phi-4-mini) has two sets, `dynamic` one for every length. In a packed pass, or with drafted tokens,
that position belongs to another sequence or is too large. The reference is the library's `generate`
for one sequence: the prompt is one call, each later token is one, and a key keeps its rotation. So
a token uses the frequencies of length max(prompt, position + 1), set here token by token.

Some models (Phi-3's) recompute the whole context with the other set when it grows past the border.
Their keys have no single rotation: `switches_at` is that border, and only `stateful.StatefulRunner`
serves them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dspark.model.target import cache_argument
from verify_service.plan import Segment

Lengths = npt.NDArray[np.int64]

SHORT = 1  # stands for all lengths up to the border


class LengthRotation:
    """Replaces a model's rotary modules by ones that use a given length per token."""

    def __init__(self, model: Any, parts: list[_RotationPart]) -> None:
        self._parts = parts
        self._told: Lengths | None = None
        for part in parts:
            own = [each for each in parts if each.module is part.module]
            part.module.forward = _Forward(self, own)
        borders = [part.border for part in parts if part.kind == "longrope"]
        again = bool(borders) and _computes_again(model, min(borders))
        self.switches_at = min(borders) if again else None

    def of(self, length: int) -> int:
        """Representative of a length; lengths with equal frequencies have the same one."""
        return max(part.of(length) for part in self._parts)

    def of_tokens(self, segments: Sequence[Segment]) -> Lengths:
        """Representative length of every token of a pass: [T]."""
        return np.array(
            [
                self.of(max(segment.prompt, position + 1))
                for segment in segments
                for position in range(segment.start, segment.length)
            ],
            np.int64,
        )

    @contextlib.contextmanager
    def told(self, lengths: Lengths) -> Iterator[None]:
        """Context in which calls of T tokens use `lengths` [T]; outside, a call has one length."""
        self._told = lengths
        try:
            yield
        finally:
            self._told = None

    @contextlib.contextmanager
    def lowered(self, border: int) -> Iterator[None]:
        """Context with the border lowered to `border`, so that a test can cross it quickly."""
        before, switches = [part.border for part in self._parts], self.switches_at
        if switches is not None:
            self.switches_at = border
        for part in self._parts:
            part.move_border(border)
        try:
            yield
        finally:
            self.switches_at = switches
            for part, own in zip(self._parts, before, strict=True):
                part.move_border(own)

    def rotate(
        self, part: _RotationPart, x: Tensor, positions: Tensor, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """cos and sin, [B, T, D] each. Raises ValueError if T is not the number of lengths."""
        told = self._told
        if told is None:
            return part.at(self.of(int(positions.max()) + 1), x, positions, more)
        if positions.shape[-1] != len(told):
            raise ValueError(f"{len(told)} lengths for {positions.shape[-1]} tokens")
        found = np.unique(told).tolist()
        if len(found) == 1:
            return part.at(found[0], x, positions, more)
        rows = [torch.from_numpy(np.flatnonzero(told == length)) for length in found]
        rows = [each.to(positions.device) for each in rows]
        turned = [
            part.at(length, x, positions.index_select(-1, own), more)
            for length, own in zip(found, rows, strict=True)
        ]
        back = torch.cat(rows).argsort()
        cos, sin = (torch.cat(each, dim=-2) for each in zip(*turned, strict=True))
        return cos.index_select(-2, back), sin.index_select(-2, back)


class _RotationPart:
    """A rotary module, or its part for one layer type."""

    def __init__(self, module: Any, kind: str, layer_type: str | None) -> None:
        self.module, self.kind, self.layer_type = module, kind, layer_type
        self._stock: Callable[..., tuple[Tensor, Tensor]] = type(module).forward.__get__(module)

    @property
    def border(self) -> int:
        """The longest length with the first set of frequencies."""
        if self.kind != "longrope":
            return int(self.module.original_max_seq_len)
        return int(self._settings()["original_max_position_embeddings"])

    def of(self, length: int) -> int:
        if length <= self.border:
            return SHORT
        return self.border + 1 if self.kind == "longrope" else length

    def at(
        self, length: int, x: Tensor, positions: Tensor, more: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """cos and sin as in a call whose largest position is `length` - 1."""
        self._forget(x, positions, more)
        last = positions.new_full((*positions.shape[:-1], 1), length - 1)
        cos, sin = self._stock(x, torch.cat((positions, last), dim=-1), **more)
        return cos[..., :-1, :], sin[..., :-1, :]

    def move_border(self, border: int) -> None:
        config = self.module.config
        if self.kind == "longrope":
            self._settings()["original_max_position_embeddings"] = border
            if hasattr(config, "original_max_position_embeddings"):  # it takes precedence
                config.original_max_position_embeddings = border
            return
        more = {} if self.layer_type is None else {"layer_type": self.layer_type}
        weights: Tensor = next(
            each for name, each in self.module.named_buffers() if name.endswith("inv_freq")
        )
        self._forget(weights, torch.zeros(1, 1, dtype=torch.int64, device=weights.device), more)
        config.max_position_embeddings = border
        self.module.original_max_seq_len = self.module.max_seq_len_cached = border
        if self.layer_type is not None:
            setattr(self.module, f"{self.layer_type}_max_seq_len_cached", border)

    def _forget(self, x: Tensor, positions: Tensor, more: dict[str, Any]) -> None:
        """Resets the longest length that a dynamic module has seen, by a call within the border."""
        if self.kind != "longrope":
            self._stock(x, positions.new_zeros(*positions.shape[:-1], 1), **more)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.module.config.rope_parameters
        return settings if self.layer_type is None else settings[self.layer_type]


class _Forward:
    """Replacement for a rotary module's `forward`."""

    def __init__(self, rotation: LengthRotation, parts: Sequence[_RotationPart]) -> None:
        self.rotation = rotation
        self._module = parts[0].module
        self._parts = {part.layer_type: part for part in parts}

    def __call__(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        more = {} if layer_type is None else {"layer_type": layer_type}
        part = self._parts.get(layer_type)
        if part is None:  # a layer type whose rotation depends on positions only
            made: tuple[Tensor, Tensor] = type(self._module).forward(
                self._module, x, position_ids, **more
            )
            return made
        return self.rotation.rotate(part, x, position_ids, **more)


def find(model: nn.Module) -> LengthRotation | None:
    """The model's length-dependent rotation, installed if it is not yet; None for most models."""
    parts: list[_RotationPart] = []
    for module in model.modules():
        stands = module.__dict__.get("forward")
        if isinstance(stands, _Forward):
            return stands.rotation
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            # the library's own criterion
            if isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind):
                parts.append(_RotationPart(module, kind, layer_type))
    return LengthRotation(model, parts) if parts else None


@torch.inference_mode()
def _computes_again(model: Any, border: int) -> bool:
    """Whether `generate` drops its cache when the context grows past `border`."""
    from transformers import DynamicCache

    prepare = model.prepare_inputs_for_generation
    name = cache_argument(model)
    full = DynamicCache()
    full.update(torch.zeros(1, 1, border, 1), torch.zeros(1, 1, border, 1), 0)
    ids = torch.zeros(1, border + 1, dtype=torch.int64)
    made = prepare(ids, **{name: full}, attention_mask=torch.ones_like(ids), use_cache=True)
    return made.get(name) is None
