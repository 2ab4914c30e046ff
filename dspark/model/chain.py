"""Drafters that run one token at a time on the target's features: Eagle3, and a
multi-token-prediction module (MTP-1).

Both have one layer. Index i pairs a carried row with the *embedding of token i+1*, stands at
position i and predicts token i+2. For tokens that the target has run, the carried row is its
projected feature; beyond, it is the drafter's own output:

    Eagle3   u = [RMSNorm_in(E[x_{i+1}]) ; RMSNorm_hidden(g_i)], attention reads u, the residual
             stream is g_i, and the layer's output, before the final norm, is the next g
    MTP-1    one ordinary layer on W_eh [RMSNorm_e(E[x_{i+1}]) ; RMSNorm_h(h_i)]; its output is the
             next h (DeepSeek-V3; the projection has applied RMSNorm_h to its rows)

In training a chain is unrolled over a whole text at once: every index carries a chain of its own
and sees the entries of step 0 up to its own index, and of the later steps only its own. That second
part is a diagonal, so scores of step 0 are a matrix and the others are columns.

Keys and values depend on the pair alone, so context entries may be made in any order. Symbols:
`family.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dspark.model.config import DrafterConfig
from dspark.model.context import FusedFeatures, LastHidden
from dspark.model.family import Anchors, ContextTokens, Drafter, Entries, EntryNeeds, GrownProposal
from dspark.model.layer import DraftLayer
from dspark.model.rotary import RMSNorm

# indexes whose scores are in memory at once; longer texts are recomputed for the backward pass
CHUNK = 512


class Paired(NamedTuple):
    """Carried rows and token embeddings, combined."""

    residual: Tensor  # [..., H] what the layer adds to
    rows: Tensor  # [..., in] what its attention reads


class ChainDrafter(Drafter):
    """Common base of the two families: all but how a pair is made and what is carried on."""

    needs = EntryNeeds(row=True, token="next", past=False)

    @property
    def layer(self) -> DraftLayer:
        return self.draft_layers()[0]

    @abstractmethod
    def pair(self, carried: Tensor, token_ids: Tensor) -> Paired:
        """Combines carried [..., H] with ids [...] of the token after it."""

    @abstractmethod
    def carry(self, output: Tensor) -> Tensor:
        """The layer's output [..., H] -> the carried row of the next step."""

    # -- serving --------------------------------------------------------------------------

    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """Entries of pairs of a row and the token after it: any order, any number at once."""
        assert tokens.rows is not None
        assert tokens.token_ids is not None
        angles = self.rotary.at(tokens.positions)
        keys, values = self.layer.self_attn.keys_values(
            self.pair(tokens.rows, tokens.token_ids).rows, angles
        )
        return keys.unsqueeze(0), values.unsqueeze(0)

    def propose(self, at: Anchors, slots: int) -> ChainProposal:
        """Begins a block; every step runs the layer on one row per sequence."""
        assert at.last_rows is not None
        assert isinstance(at.context, Entries)
        return ChainProposal(self, at.context, at.last_rows, slots)

    # -- training -------------------------------------------------------------------------

    def forward_steps(self, *, features: Tensor, input_ids: Tensor, steps: int) -> list[Tensor]:
        """The training-time test: features [B, T, m*H], ids [B, T] -> hidden states [B, T, H] of
        each step, after the final norm.

        Step s at index i pairs the features (s = 0) or step s-1's output with token i+1+s, stands
        at position i+s and predicts token i+2+s; it sees the entries of step 0 up to i and, of the
        later steps, its own index alone. So it equals step s of a block after i+1 context tokens.
        Tokens past the end repeat the last one; rows with such a token have no meaning.
        """
        length = input_ids.shape[1]
        index = torch.arange(length, device=input_ids.device)
        attention = self.layer.self_attn
        carried, keys, values, out = (
            self.project(features),
            list[Tensor](),
            list[Tensor](),
            list[Tensor](),
        )
        for step in range(steps):
            following = input_ids[:, (index + 1 + step).clamp(max=length - 1)]
            pair = self.pair(carried, following)
            angles = self.rotary.at(index + step)
            query, key, value = attention.project(pair.rows, angles)
            keys.append(key)
            values.append(value)
            attended = unrolled_attention(query, keys, values, scale=attention.scale)
            output = self.layer.after(pair.residual, attention.output(attended))
            carried = self.carry(output)
            out.append(self.norm(output))
        return out


class Eagle3Drafter(ChainDrafter, FusedFeatures):
    """Eagle3 with fused taps."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        # Inside the layer, where the checkpoint has it.
        self.layer.hidden_norm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast
        )

    def pair(self, carried: Tensor, token_ids: Tensor) -> Paired:
        normed = self.layer.hidden_norm(carried)
        return Paired(
            carried, torch.cat((self.layer.input_layernorm(self.embed(token_ids)), normed), dim=-1)
        )

    def carry(self, output: Tensor) -> Tensor:
        return output


class MTPDrafter(ChainDrafter, LastHidden):
    """A single multi-token-prediction module, chained on its own output for the later slots."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def pair(self, carried: Tensor, token_ids: Tensor) -> Paired:
        mixed = self.eh_proj(torch.cat((self.enorm(self.embed(token_ids)), carried), dim=-1))
        return Paired(mixed, self.layer.input_layernorm(mixed))

    def carry(self, output: Tensor) -> Tensor:
        carried: Tensor = self.hnorm(output)
        return carried


class ChainProposal(GrownProposal):
    """A block of a chain drafter: every step reads the row that the step before it carried on."""

    def __init__(
        self, drafter: ChainDrafter, context: Entries, last_rows: Tensor, slots: int
    ) -> None:
        super().__init__(context, slots)
        self._drafter = drafter
        self._carried = last_rows  # [n, H]

    def step(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n] -> logits [n, V] fp32 of the next slot."""
        drafter, layer = self._drafter, self._drafter.layer
        pair = drafter.pair(self._carried, previous_ids)
        angles = drafter.rotary.at(self._positions)
        query, key, value = layer.self_attn.project(pair.rows.unsqueeze(1), angles.unsqueeze(1))
        attended = layer.self_attn.attend(query, *self._grow(0, key, value))
        output = layer.after(pair.residual, attended.squeeze(1))
        self._carried = drafter.carry(output)
        hidden = drafter.norm(output)
        return self._stepped(hidden, drafter.whole(drafter.base_logits(hidden)))


def unrolled_attention(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], *, scale: float
) -> Tensor:
    """query [B, T, Hq, hd] of the newest step, keys and values [B, T, Hkv, hd] of every step so far
    -> [B, T, Hq*hd].

    Scores and sums in fp32. Keeps [B, Hq, T, T + s] numbers for a backward pass; texts longer than
    a chunk are recomputed instead.
    """
    length = query.shape[1]
    if length <= CHUNK:
        return _chunk(query, *keys, *values, start=0, scale=scale)
    parts = []
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        # No index sees later ones, so later entries of the first step are not passed.
        seen = [keys[0][:, :stop], *(key[:, start:stop] for key in keys[1:])]
        told = [values[0][:, :stop], *(value[:, start:stop] for value in values[1:])]
        part = query[:, start:stop]
        again = partial(_chunk, start=start, scale=scale)
        parts.append(checkpoint(again, part, *seen, *told, use_reentrant=False))
    return torch.cat(parts, dim=1)


def _chunk(query: Tensor, *entries: Tensor, start: int, scale: float) -> Tensor:
    """Attention of query [B, Q, Hq, hd] at indexes start .. start + Q - 1. entries: keys of all
    steps, then values; of step 0 all up to the last query, of later steps the queries' own."""
    keys, values = entries[: len(entries) // 2], entries[len(entries) // 2 :]
    batch, count, heads, size = query.shape
    seen, kv_heads = keys[0].shape[1:3]
    wide = query.float().view(batch, count, kv_heads, heads // kv_heads, size) * scale
    with torch.autocast(query.device.type, enabled=False):
        first = torch.einsum("btkgd,bukd->bkgtu", wide, keys[0].float())
        future = torch.ones(count, seen, dtype=torch.bool, device=query.device).triu(1 + start)
        scores = [first.masked_fill(future, -torch.inf)]
        scores += [
            torch.einsum("btkgd,btkd->bkgt", wide, key.float()).unsqueeze(-1) for key in keys[1:]
        ]
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        out = torch.einsum("bkgtu,bukd->btkgd", weights[..., :seen], values[0].float())
        for step, value in enumerate(values[1:]):
            own = weights[..., seen + step].permute(0, 3, 1, 2).unsqueeze(-1)  # [B, Q, Hkv, G, 1]
            out = out + own * value.float().unsqueeze(3)
    return out.reshape(batch, count, heads * size).to(query.dtype)
