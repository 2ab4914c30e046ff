"""The parallel block backbone of DSpark and DFlash, Qwen3 flavour.

One pass turns [anchor, mask x (k-1)] into k hidden states: slot j (0-based) sits at position
a+j and predicts position a+j+1. Slots of a block see each other in both directions and every
context row strictly before the anchor; blocks never see each other. Context keys and values
depend on one projected row each, so a service computes them once, on arrival.

Tensor names are the checkpoint's own: `state_dict()` is the file. Symbols: n sequences or
B rows of a batch, A anchors per row, k slots, S context rows, H hidden, V vocabulary,
L draft layers, hd head size, Hkv key-value heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dspark.model import block_mask
from dspark.model.confidence import ConfidenceHead
from dspark.model.config import DrafterConfig
from dspark.model.context import ContextProjection
from dspark.model.layer import DraftLayer
from dspark.model.markov import build_head
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm, RotaryTable


class BlockOutput(NamedTuple):
    """What a training step reads. Everything is teacher forced."""

    hidden: Tensor  # [B, A, k, H] after the final norm
    base_logits: Tensor  # [B, A, k, V]
    corrected_logits: Tensor  # [B, A, k, V], the sequential head's bias added
    confidence_logits: Tensor | None  # [B, A, k], None without a confidence head


class BlockDrafter(ContextProjection):
    """A context projection, a stack of draft layers, a vocabulary head and two small heads."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(
            feature_size=config.feature_size,
            hidden_size=config.hidden_size,
            eps=config.rms_norm_eps,
            target_layer_ids=config.target_layer_ids,
        )
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.markov_head = build_head(config)
        self.confidence_head: ConfidenceHead | None = None
        if config.enable_confidence_head:
            rank = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(hidden_size=config.hidden_size, rank=rank)
        # Verbatim copies of the target's: trained drafters keep them frozen.
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)
        self.rotary = RotaryTable(head_dim=config.head_dim, theta=config.rope_theta)
        self._served_head: Product | None = None

    # -- serving --------------------------------------------------------------------------

    def serve(self) -> None:
        """Makes the serving methods fast; the weights must not change any more."""
        for layer in self._draft_layers():
            layer.self_attn.serve()
            layer.mlp.serve()
        self.markov_head.serve()
        self._served_head = Product([self.lm_head])

    def context_kv(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """context [T, H], positions [T] int64 -> keys and values [L, T, Hkv, hd] each.

        Keys come normed and rotated, ready to be cached; rows may arrive in any order.
        """
        longest = int(positions.max()) + 1 if positions.numel() else 1
        angles = self.rotary.at(positions, longest=longest)
        pairs = [layer.keys_values(context, angles) for layer in self._draft_layers()]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys), torch.stack(values)

    def block_hidden(
        self,
        *,
        anchor_ids: Tensor,  # [n] int64
        anchor_positions: Tensor,  # [n] int64
        context_k: Tensor,  # [L, n, S, Hkv, hd]
        context_v: Tensor,  # [L, n, S, Hkv, hd]
        context_len: Tensor,  # [n] int64, rows of each sequence that count
    ) -> Tensor:
        """Hidden states of one block per sequence: [n, k, H], after the final norm."""
        n, size = len(anchor_ids), self.config.block_size
        mask = None
        if n == 1:
            rows = int(context_len[0])
            if rows != context_k.shape[2]:
                context_k, context_v = context_k[:, :, :rows], context_v[:, :, :rows]
        else:
            mask = block_mask.for_padded_context(context_len, context_k.shape[2], size)
        hidden, angles = self._block_inputs(anchor_ids, anchor_positions)
        for layer, key, value in zip(self._draft_layers(), context_k, context_v, strict=True):
            hidden = layer(hidden, context_k=key, context_v=value, angles=angles, mask=mask)
        out: Tensor = self.norm(hidden)
        return out

    def base_logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> logits U [..., V], before any sequential bias."""
        logits: Tensor = self.lm_head(hidden) if self._served_head is None else self._served_head(hidden)
        return logits

    def confidence_logits(self, hidden: Tensor, previous_ids: Tensor) -> Tensor | None:
        """hidden [..., k, H], previous_ids [..., k] (anchor first) -> [..., k], or None."""
        head = self.confidence_head
        if head is None:
            return None
        logits: Tensor = head(hidden, self.markov_head.embed(previous_ids) if head.rank else None)
        return logits

    # -- training -------------------------------------------------------------------------

    def forward_hidden(
        self,
        *,
        features: Tensor,  # [B, T, m*H] raw taps
        input_ids: Tensor,  # [B, T] int64
        anchor_positions: Tensor,  # [B, A] int64
        block_keep_mask: Tensor,  # [B, A] bool, False for a row's missing anchors
    ) -> Tensor:
        """All blocks of a batch in one pass: [B, A, k, H] after the final norm.

        Equal to `block_hidden` on each anchor with the rows before it. Dummy anchors yield
        finite numbers that mean nothing.
        """
        batch, length = input_ids.shape
        anchors, size = anchor_positions.shape[1], self.config.block_size
        context = self.project(features)
        context_angles = self.rotary.at(torch.arange(length, device=input_ids.device), longest=length + size)
        anchor_ids = input_ids.gather(1, anchor_positions)
        hidden, angles = self._block_inputs(anchor_ids.flatten(), anchor_positions.flatten(), longest=length + size)
        hidden = hidden.view(batch, anchors * size, -1)
        angles = angles.view(batch, anchors * size, -1)
        groups = block_mask.for_training(anchor_positions, block_keep_mask, block_size=size)
        for layer in self._draft_layers():
            hidden = layer.forward_groups(
                hidden, context=context, context_angles=context_angles, angles=angles, groups=groups
            )
        out: Tensor = self.norm(hidden)
        return out.view(batch, anchors, size, -1)

    def forward_blocks(
        self,
        *,
        features: Tensor,
        input_ids: Tensor,
        anchor_positions: Tensor,
        block_keep_mask: Tensor,
    ) -> BlockOutput:
        """`forward_hidden` and everything the loss reads, for every slot, teacher forced."""
        hidden = self.forward_hidden(
            features=features,
            input_ids=input_ids,
            anchor_positions=anchor_positions,
            block_keep_mask=block_keep_mask,
        )
        previous = self.previous_ids(input_ids, anchor_positions)
        base = self.base_logits(hidden)
        bias = self.markov_head.biases(previous, hidden)
        return BlockOutput(
            hidden=hidden,
            base_logits=base,
            corrected_logits=base if bias is None else base + bias,
            confidence_logits=self.confidence_logits(hidden, previous),
        )

    def forward(self, **inputs: Tensor) -> BlockOutput:  # type: ignore[override]
        """The training forward, under the name that wrappers such as DDP call."""
        return self.forward_blocks(**inputs)

    def previous_ids(self, input_ids: Tensor, anchor_positions: Tensor) -> Tensor:
        """True token before each predicted one, [B, A, k]; slots past the end repeat the last."""
        batch, length = input_ids.shape
        slots = torch.arange(self.config.block_size, device=input_ids.device)
        index = (anchor_positions.unsqueeze(-1) + slots).clamp(max=length - 1)
        return input_ids.gather(1, index.view(batch, -1)).view(index.shape)

    # -- shared ---------------------------------------------------------------------------

    def _draft_layers(self) -> list[DraftLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def _block_inputs(
        self, anchor_ids: Tensor, anchor_positions: Tensor, *, longest: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """[n] ids and positions -> embeddings [n, k, H] and angles [n, k, hd] of the block."""
        n, size = len(anchor_ids), self.config.block_size
        ids = anchor_ids.new_full((n, size), self.config.mask_token_id)
        ids[:, 0] = anchor_ids
        slots = torch.arange(size, device=anchor_ids.device)
        positions = anchor_positions.unsqueeze(-1) + slots
        if longest is None:
            longest = int(anchor_positions.max()) + size
        return self.embed_tokens(ids), self.rotary.at(positions, longest=longest)
