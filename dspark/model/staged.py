"""The DSpark module of a DeepSeek-V4 checkpoint: a block drafter whose layers are stages of that
architecture.

Three stages of attention and mixture, with hyper-connections around both. A block sees the last
`window` rows of its context and all of itself. Its hidden states are those before the final norm:
the confidence head reads them so, and `base_logits` norms them.

Symbols: `drafter.py`, `stage.py`; W window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter
from dspark.model.family import Anchors, ContextTokens, Entries
from dspark.model.products import Product
from dspark.model.rotary import Rotary, rms_norm
from dspark.model.stage import Stage, exact, summed_up


class StagedDrafter(BlockDrafter):
    """A drafter of stages, which serves and trains as every block drafter does."""

    stages: nn.ModuleList

    def _make_layers(self, config: DrafterConfig) -> None:
        shape = config.stage
        assert shape is not None
        self._shape = shape
        self.stages = nn.ModuleList(Stage(config, shape) for _ in range(config.num_hidden_layers))
        self.hc_head_fn = nn.Parameter(
            torch.empty(shape.streams, shape.streams * config.hidden_size)
        )
        self.hc_head_base = nn.Parameter(torch.empty(shape.streams))
        self.hc_head_scale = nn.Parameter(torch.empty(1))
        self.rotary = Rotary(head_dim=shape.rope_dim, theta=config.rope_theta)

    @property
    def window(self) -> int:
        return self._shape.window

    def wide(self, name: str) -> bool:
        last = name.rpartition(".")[2]
        return (
            last.startswith(("hc_", "attn_sink"))
            or name.endswith("gate.bias")
            or name.startswith("confidence_head")
        )

    def confidence_of(self, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
        """Confidence logits in fp32, as the head was trained."""
        assert embedded is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return super().confidence_of(hidden.float(), embedded.float())

    def headed(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed

    # -- serving --------------------------------------------------------------------------

    def serve(self) -> None:
        self.markov_head.serve()
        self._served_head = Product([self.lm_head])

    def room(self, slots: int) -> int:
        return 0

    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """Entries of rows; keys are the values: the same tensor twice, [L, ..., 1, hd]."""
        assert tokens.rows is not None
        return (self._keys(tokens.rows, tokens.positions).unsqueeze(-2),) * 2

    def _keys(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Keys of rows [..., H] at positions [...] -> [L, ..., hd]."""
        angles = self.rotary.at(positions)
        return torch.stack([stage.attn.keys(rows, angles) for stage in self._stages()])

    def _block(self, at: Anchors, slots: int) -> Tensor:
        context = at.context
        assert isinstance(context, Entries)
        seen = min(self._shape.window, context.keys.shape[2])
        # [n, W]
        rows = (
            context.lengths.unsqueeze(-1) - seen + torch.arange(seen, device=context.lengths.device)
        )
        whose = torch.arange(len(rows), device=rows.device).unsqueeze(-1)
        keys = context.keys[:, whose, rows.clamp(min=0), 0]
        return self._through(at.ids, at.positions, keys, rows >= 0, slots)

    def _through(
        self, anchor_ids: Tensor, positions: Tensor, context: Tensor, visible: Tensor, size: int
    ) -> Tensor:
        """Anchors [n], keys of each stage's context [L, n, S, hd] and which count [n, S] -> hidden
        states [n, size, H]."""
        embedded, angles = self.block_inputs(anchor_ids, positions, size)
        streams = embedded.unsqueeze(-2).expand(-1, -1, self._shape.streams, -1)
        for stage, keys in zip(self._stages(), context, strict=True):
            streams = stage(streams, keys, visible, angles)
        flat = rms_norm(streams.flatten(-2).float(), None, self.config.rms_norm_eps)
        weights = torch.sigmoid(
            exact(flat, self.hc_head_fn) * self.hc_head_scale.float() + self.hc_head_base.float()
        )
        return summed_up(streams, weights + self._shape.stream_eps)

    def base_logits(self, hidden: Tensor) -> Tensor:
        return super().base_logits(self.headed(hidden))

    # -- training -------------------------------------------------------------------------

    def forward_hidden(
        self,
        *,
        features: Tensor,
        input_ids: Tensor,
        anchors: Tensor,
        first_rows: Tensor | None = None,
    ) -> Tensor:
        """As `BlockDrafter.forward_hidden`, but before the final norm; every block gathers its
        window."""
        keys = self._keys(
            self.project(features), torch.arange(len(input_ids), device=input_ids.device)
        )
        rows = anchors.unsqueeze(-1) - self._shape.window
        rows = rows + torch.arange(self._shape.window, device=input_ids.device)  # [A, W]
        begins = torch.zeros_like(anchors) if first_rows is None else first_rows
        visible = rows >= begins.unsqueeze(-1)
        return self._through(
            input_ids[anchors], anchors, keys[:, rows.clamp(min=0)], visible, self.config.block_size
        )

    @torch.no_grad()
    def start(self, generator: torch.Generator | None = None) -> None:
        """Initialises all but the linear layers: matrices N(0, initializer_range), scales 1, the
        others 0."""
        for name, parameter in self.named_parameters():
            last = name.rpartition(".")[2]
            if last.endswith("_fn") or name.endswith("gate.weight"):
                parameter.normal_(0.0, self.config.initializer_range, generator=generator)
            elif last.endswith(("_base", "_scale", "attn_sink")) or name.endswith("gate.bias"):
                parameter.fill_(1.0 if last.endswith("_scale") else 0.0)

    def _stages(self) -> list[Stage]:
        return list(self.stages)  # type: ignore[arg-type]
