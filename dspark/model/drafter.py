"""The parallel block backbone of DSpark and DFlash.

One pass turns [anchor, mask x (k-1)] into k hidden states: slot j (0-based) sits at position
a+j and predicts position a+j+1. Slots of a block see each other in both directions and every
context row strictly before the anchor; blocks never see each other. Context keys and values
depend on one projected row each, so a service computes them once, on arrival.

Tensor names are the checkpoint's own: `state_dict()` is the file. Symbols: n sequences or
B rows of a batch, A anchors per row, k slots, S context rows, H hidden, V vocabulary,
L draft layers, hd head size, Hkv key-value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.model.attention import Attention, Projected, for_padded_context, for_training
from dspark.model.config import DrafterConfig
from dspark.model.context import ContextProjection
from dspark.model.family import ContextTokens, Drafter, Entries, Needs, PagedEntries
from dspark.model.heads import ConfidenceHead, SequentialHead, build_head
from dspark.model.proposals import sureness
from dspark.native.attention import PagedAttention, Tables

# Of one layer: its number, its attention, what the block's rows are to it -> [n, k, H].
Attend = Callable[[int, Attention, Projected], Tensor]


class BlockOutput(NamedTuple):
    """What a training step reads. Everything is teacher forced."""

    hidden: Tensor  # [B, A, k, H] after the final norm
    base_logits: Tensor  # [B, A, k, V]
    corrected_logits: Tensor  # [B, A, k, V], the sequential head's bias added
    confidence_logits: Tensor | None  # [B, A, k], None without a confidence head


class BlockDrafter(Drafter, ContextProjection):
    """A context projection, a stack of draft layers, a vocabulary head and two small heads."""

    needs = Needs(row=True, token="none", past=False)

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self._paged: PagedAttention | None = None
        self.markov_head: SequentialHead = build_head(config)
        self.confidence_head: ConfidenceHead | None = None
        if config.enable_confidence_head:
            rank = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(hidden_size=config.hidden_size, rank=rank, bias=config.stage is None)

    # -- serving --------------------------------------------------------------------------

    def serve(self) -> None:
        super().serve()
        self.markov_head.serve()
        on_host = self.device.type == "cpu" and self.dtype == torch.float32
        self._paged = PagedAttention.for_blocks() if on_host else None
        self.reads_pages = self._paged is not None

    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """A row alone makes an entry: any order, any number at once."""
        assert tokens.rows is not None
        angles = self.rotary.at(tokens.positions)
        pairs = [layer.self_attn.keys_values(tokens.rows, angles) for layer in self.draft_layers()]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys), torch.stack(values)

    def room(self, slots: int) -> int:
        return slots + self.config.query_size - self.config.block_size

    def propose(
        self,
        *,
        anchor_ids: Tensor,
        anchor_positions: Tensor,
        context: Entries | PagedEntries,
        last_rows: Tensor | None = None,
        slots: int,
    ) -> BlockProposal:
        """One pass for a block of `slots`; the steps walk the sequential head.

        Slots see each other, so a shorter block than those of training is another one, of a little another quality.
        """
        return BlockProposal(self, self._block(anchor_ids, anchor_positions, context, slots))

    def _block(self, anchor_ids: Tensor, positions: Tensor, context: Entries | PagedEntries, slots: int) -> Tensor:
        """Hidden states of one block per sequence: [n, k, H], as `BlockProposal` takes them."""
        hidden, angles = self.block_inputs(anchor_ids, positions, self.room(slots))
        attend = self._in_pages(context, hidden) if isinstance(context, PagedEntries) else self._padded(context, hidden)
        for index, layer in enumerate(self.draft_layers()):
            block = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            hidden = layer.after(hidden, attend(index, layer.self_attn, block))
        out: Tensor = self.norm(hidden)[:, -slots:]
        return out

    def _padded(self, context: Entries, inputs: Tensor) -> Attend:
        """Of inputs [n, q, H]. Their keys and values are written into the context's room if that is what they need."""
        keys, values, lengths, room = context
        (n, size, _), longest = inputs.shape, keys.shape[2] - room
        mask, beside = None, room == size
        if n == 1 and lengths.device.type == "cpu":  # of a card it would be a wait
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
                key, value = torch.cat((key, block.key), dim=1), torch.cat((value, block.value), dim=1)
            return attention.attend(block.query, key, value, mask)

        return attend

    def _in_pages(self, context: PagedEntries, inputs: Tensor) -> Attend:
        """Of inputs [n, q, H]: where the context is kept, by the kernels for CPUs."""
        kernel, (n, size, _) = self._paged, inputs.shape
        assert kernel is not None
        first = torch.arange(0, n * size + 1, size, dtype=torch.int32)
        tables = Tables(first, context.lengths, context.blocks, size, context.longest)

        def attend(layer: int, attention: Attention, block: Projected) -> Tensor:
            query, *own = (part.flatten(0, 1) for part in block)
            keys, values = context.keys[layer], context.values[layer]
            out = kernel(query, keys, values, tables, attention.scale, own=(own[0], own[1]))
            return attention.output(out.view(n, size, -1))

        return attend

    def confidence_logits(self, hidden: Tensor, previous_ids: Tensor) -> Tensor | None:
        """hidden [..., k, H], previous_ids [..., k] (anchor first) -> [..., k], or None."""
        return self.confidence_of(hidden, self.markov_head.embed(previous_ids))

    def confidence_of(self, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
        """The same of rows [..., k, r] that the sequential head has for those ids, or None without a table."""
        head = self.confidence_head
        if head is None:
            return None
        logits: Tensor = head(hidden, embedded if head.rank else None)
        return logits

    def headed(self, hidden: Tensor) -> Tensor:
        """What the vocabulary head reads of hidden states [..., H]: they are normed already."""
        return hidden

    # -- training -------------------------------------------------------------------------

    def forward_hidden(
        self,
        *,
        features: Tensor,  # [B, T, m*H] raw taps
        input_ids: Tensor,  # [B, T] int64
        anchor_positions: Tensor,  # [B, A] int64
        block_keep_mask: Tensor,  # [B, A] bool, False for a row's missing anchors
        first_rows: Tensor | None = None,  # [B, A] where an anchor's text begins, for texts packed into one row
    ) -> Tensor:
        """All blocks of a batch in one pass: [B, A, k, H] after the final norm.

        Equal to `block_hidden` on each anchor with the rows of its text before it: positions count from the start of
        the row, and only their differences matter. Dummy anchors yield finite numbers that mean nothing.
        """
        batch, length = input_ids.shape
        anchors, size = anchor_positions.shape[1], self.config.query_size
        context = self.project(features)
        context_angles = self.rotary.at(torch.arange(length, device=input_ids.device), longest=length + size)
        anchor_ids = input_ids.gather(1, anchor_positions)
        hidden, angles = self.block_inputs(
            anchor_ids.flatten(), anchor_positions.flatten(), size, longest=length + size
        )
        hidden = hidden.view(batch, anchors * size, -1)
        angles = angles.view(batch, anchors * size, -1)
        groups = for_training(anchor_positions, block_keep_mask, block_size=size, first_rows=first_rows)
        for layer in self.draft_layers():
            attention = layer.self_attn
            keys, values = attention.keys_values(context, context_angles)
            attended = attention.attend_groups(
                layer.input_layernorm(hidden), context_k=keys, context_v=values, angles=angles, groups=groups
            )
            hidden = layer.after(hidden, attended)
        out: Tensor = self.norm(hidden)
        return out.view(batch, anchors, size, -1)[:, :, -self.config.block_size :]

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

    def block_inputs(
        self, anchor_ids: Tensor, anchor_positions: Tensor, size: int, *, longest: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """[n] ids and positions -> embeddings [n, q, H] and angles [n, q, hd] of the block's `size` = q query slots."""
        n = len(anchor_ids)
        ids = anchor_ids.new_full((n, size), self.config.mask_token_id)
        ids[:, 0] = anchor_ids
        slots = torch.arange(size, device=anchor_ids.device)
        positions = anchor_positions.unsqueeze(-1) + slots
        return self.embed(ids), self.rotary.at(positions, longest=longest)


class BlockProposal:
    """A block whose hidden states are there; its slots differ from the base logits by the sequential head's bias."""

    def __init__(self, drafter: BlockDrafter, hidden: Tensor) -> None:
        self._drafter = drafter
        self._hidden = hidden  # [n, k, H]
        self._base = drafter.base_logits(hidden).float()  # [n, k, Vd]
        self._state = drafter.markov_head.initial_state(len(hidden), hidden)
        self._sureness: list[Tensor] = []
        self._slot = 0

    def step(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n] -> logits [n, V] fp32 of the next slot."""
        slot, self._slot = self._slot, self._slot + 1
        bias, self._state = self._drafter.markov_head.bias(self._state, previous_ids, self._hidden[:, slot])
        logits = self._base[:, slot] if bias is None else self._base[:, slot] + bias
        if self._drafter.confidence_head is None:
            self._sureness.append(sureness(logits))
        return self._drafter.whole(logits)

    def confidence_logits(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n, k], anchors first -> [n, k]: the head's, or else how sure the slots' logits are."""
        if self._sureness:
            return torch.stack(self._sureness, dim=1)
        told = self._drafter.confidence_logits(self._hidden[:, : previous_ids.shape[1]], previous_ids)
        assert told is not None
        return told

    @property
    def hidden(self) -> Tensor:
        return self._hidden
