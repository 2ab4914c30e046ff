"""The parallel block drafter of DSpark and DFlash.

One pass turns [anchor, mask x (k-1)] into k hidden states: slot j (0-based) sits at position a+j
and predicts position a+j+1. Slots of a block see each other in both directions and every context
row strictly before the anchor; blocks never see each other. Context keys and values depend on one
projected row each, so a service computes them once, on arrival.

Tensor names are the checkpoint's own: `state_dict()` is the file. Symbols: n sequences, T tokens
and A anchors of a training row, k slots, S context rows, H hidden, V vocabulary, L draft layers, hd
head size, Hkv key-value heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dspark.model.attention import Attention, Projected, for_padded_context, for_training
from dspark.model.config import DrafterConfig
from dspark.model.context import ContextProjection
from dspark.model.family import Anchors, ContextTokens, Drafter, Entries, EntryNeeds
from dspark.model.heads import ConfidenceHead, SequentialHead, build_head, sureness

# Attention of one layer: (its number, its attention, the block's projected rows) -> [n, k, H].
Attend = Callable[[int, Attention, Projected], Tensor]


class BlockDrafter(Drafter, ContextProjection):
    """A context projection, a stack of draft layers, a vocabulary head and two small heads."""

    needs = EntryNeeds(row=True, token="none", past=False)

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.markov_head: SequentialHead = build_head(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None

    # -- serving --------------------------------------------------------------------------

    def serve(self) -> None:
        super().serve()
        self.markov_head.serve()

    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """Entries of rows alone: any order, any number at once."""
        assert tokens.rows is not None
        angles = self.rotary.at(tokens.positions)
        pairs = [layer.self_attn.keys_values(tokens.rows, angles) for layer in self.draft_layers()]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys), torch.stack(values)

    def room(self, slots: int) -> int:
        return slots + self.config.query_size - self.config.block_size

    def propose(self, at: Anchors, slots: int) -> BlockProposal:
        """Runs one pass for a block of `slots`; the steps walk the sequential head.

        Slots see each other, so a block shorter than in training differs from the start of a whole
        one, and its quality a little.
        """
        return BlockProposal(self, self._block(at, slots))

    def _block(self, at: Anchors, slots: int) -> Tensor:
        """Hidden states of one block per sequence: [n, k, H], the input of `BlockProposal`."""
        hidden, angles = self.block_inputs(at.ids, at.positions, self.room(slots))
        attend = self._padded(at.context, hidden)
        for index, layer in enumerate(self.draft_layers()):
            block = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            hidden = layer.after(hidden, attend(index, layer.self_attn, block))
        out: Tensor = self.norm(hidden)[:, -slots:]
        return out

    def _padded(self, context: Entries, inputs: Tensor) -> Attend:
        """Attention of inputs [n, q, H] over padded entries; writes their keys and values into the
        entries' room if that is its size."""
        keys, values, lengths, room = context
        (n, size, _), longest = inputs.shape, keys.shape[2] - room
        mask, beside = None, room == size
        if n == 1 and lengths.device.type == "cpu":  # on a card it would synchronise
            rows = int(lengths[0])
            beside = beside and rows == longest
            if not beside and rows != keys.shape[2]:
                keys, values = keys[:, :, :rows], values[:, :, :rows]
        else:
            if not beside:
                keys, values = keys[:, :, :longest], values[:, :, :longest]
            mask = for_padded_context(lengths, longest, size)

        def attend(layer: int, attention: Attention, block: Projected) -> Tensor:
            key, value = keys[layer], values[layer]
            if beside:
                key[:, longest:], value[:, longest:] = block.key, block.value
            else:
                key, value = (
                    torch.cat((key, block.key), dim=1),
                    torch.cat((value, block.value), dim=1),
                )
            return attention.attend(block.query, key, value, mask)

        return attend

    def confidence_of(self, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
        """hidden [..., k, H], the sequential head's rows [..., k, r] of the ids before the slots,
        if it has a table -> logits [..., k], or None without a confidence head."""
        head = self.confidence_head
        if head is None:
            return None
        logits: Tensor = head(hidden, embedded if head.rank else None)
        return logits

    def headed(self, hidden: Tensor) -> Tensor:
        """The vocabulary head's input from hidden states [..., H], which are normed already."""
        return hidden

    # -- training -------------------------------------------------------------------------

    def forward_hidden(
        self,
        *,
        features: Tensor,  # [T, m*H] raw taps
        input_ids: Tensor,  # [T] int64
        anchors: Tensor,  # [A] int64
        # [A] where an anchor's text begins, for texts packed into one row
        first_rows: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of all blocks of a row of tokens in one pass: [A, k, H], as in `propose`.

        Equal to each anchor's block with the rows of its text before it: positions count from the
        start of the row, and only their differences matter.
        """
        size = self.config.query_size
        context = self.project(features)
        context_angles = self.rotary.at(torch.arange(len(input_ids), device=input_ids.device))
        hidden, angles = self.block_inputs(input_ids[anchors], anchors, size)
        hidden, angles = hidden.flatten(0, 1), angles.flatten(0, 1)
        groups = for_training(anchors, block_size=size, first_rows=first_rows)
        for layer in self.draft_layers():
            attention = layer.self_attn
            keys, values = attention.keys_values(context, context_angles)
            attended = attention.attend_groups(
                layer.input_layernorm(hidden),
                context_k=keys,
                context_v=values,
                angles=angles,
                groups=groups,
            )
            hidden = layer.after(hidden, attended)
        out: Tensor = self.norm(hidden)
        return out.view(len(anchors), size, -1)[:, -self.config.block_size :]

    # -- shared ---------------------------------------------------------------------------

    def block_inputs(
        self, anchor_ids: Tensor, anchor_positions: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Anchors' ids and positions [n] -> embeddings [n, q, H] and angles [n, q, hd] of the
        block's `size` = q query slots."""
        n = len(anchor_ids)
        ids = anchor_ids.new_full((n, size), self.config.mask_token_id)
        ids[:, 0] = anchor_ids
        slots = torch.arange(size, device=anchor_ids.device)
        positions = anchor_positions.unsqueeze(-1) + slots
        return self.embed(ids), self.rotary.at(positions)


class BlockProposal:
    """A block with computed hidden states; a step adds the sequential head's bias to the base
    logits."""

    def __init__(self, drafter: BlockDrafter, hidden: Tensor) -> None:
        self._drafter = drafter
        self.hidden = hidden  # [n, k, H]
        self._base = drafter.base_logits(hidden).float()  # [n, k, Vd]
        self._state = drafter.markov_head.initial_state(len(hidden), hidden)
        self._sureness: list[Tensor] = []
        self._slot = 0

    def step(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n] -> logits [n, V] fp32 of the next slot."""
        slot, self._slot = self._slot, self._slot + 1
        bias, self._state = self._drafter.markov_head.bias(
            self._state, previous_ids, self.hidden[:, slot]
        )
        logits = self._base[:, slot] if bias is None else self._base[:, slot] + bias
        if self._drafter.confidence_head is None:
            self._sureness.append(sureness(logits))
        return self._drafter.whole(logits)

    def confidence_logits(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n, k], anchors first -> [n, k]: the confidence head's logits, or else
        `sureness` of the slots' logits."""
        if self._sureness:
            return torch.stack(self._sureness, dim=1)
        embedded = self._drafter.markov_head.embed(previous_ids)
        told = self._drafter.confidence_of(self.hidden[:, : previous_ids.shape[1]], embedded)
        assert told is not None
        return told
