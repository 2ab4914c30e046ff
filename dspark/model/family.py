"""The interface of every family of drafters, small and the same for serving and for evaluation.

Three questions, and each family answers them:

* what it needs per context token (`needs`): the target's projected row, a token id, the tokens
  before it;
* how it ingests it (`ingest`): a context token becomes one *entry*, keys and values of every draft
  layer;
* how it proposes a block (`propose`): slot by slot, each step given the token drawn before it.

    family           row   token   past    entry p is made of
    DSpark, DFlash   yes   none    no      row p
    Eagle3, MTP      yes   next    no      row p and token p+1
    language model   no    own     yes     token p and all entries before it

An entry never changes once it is made, and entries of one sequence stand at positions 0, 1, 2, ...
without a gap. Their owner drops those of a block after the block: rolling back is keeping fewer
entries.

Symbols: n sequences, T tokens, L draft layers, S entries, k slots, H hidden, V vocabulary, Hkv
key-value heads, hd head size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dspark.model.attention import for_padded_context
from dspark.model.config import DrafterConfig
from dspark.model.context import Projection
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.model.heads import sureness
from dspark.model.layer import DraftLayer, build_layer
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm, Rotary


@dataclass(frozen=True, slots=True)
class EntryNeeds:
    """What a family needs for the entry of context token p."""

    row: bool  # the target's features at p, projected
    token: Literal["none", "own", "next"]  # no id, that of p, or that of p+1
    past: bool  # the entries before p, so tokens are ingested in order

    @property
    def lag(self) -> int:
        """Entries that a context of t tokens lacks: the last one needs the token after it, the
        anchor."""
        return 1 if self.token == "next" else 0


class ContextTokens(NamedTuple):
    """Context tokens to make entries of. The leading dimensions are free unless `needs.past`, then
    they are [n, T]."""

    rows: Tensor | None  # [..., H] where needs.row
    token_ids: Tensor | None  # [...] int64 where needs.token is not "none": of p, or of p+1
    positions: Tensor  # [...] int64, p


class Entries(NamedTuple):
    """Entries of n sequences, padded to the longest; padding must be finite numbers.

    A drafter with a window may be given its newest entries alone.
    """

    keys: Tensor  # [L, n, S, Hkv, hd], normed and rotated
    values: Tensor  # [L, n, S, Hkv, hd]
    lengths: Tensor  # [n] int64, entries that count, of positions 0 .. lengths - 1
    # rows at the end of S that are padding of every sequence; the reader may overwrite them
    room: int = 0


class Anchors(NamedTuple):
    """The newest tokens of n sequences, and what their blocks read."""

    ids: Tensor  # [n] int64
    # [n] int64, lengths + needs.lag; families that need rows alone may lack the newest entries
    positions: Tensor
    context: Entries
    last_rows: Tensor | None = None  # [n, H] the row before the anchor, where needs.lag


class Proposal(Protocol):
    """One block for each of n sequences, read slot by slot. A drafter may compute ahead or step by
    step."""

    def step(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n] int64, the token drawn before this slot (first the anchors) -> logits
        [n, V] of the slot."""

    def confidence_logits(self, previous_ids: Tensor) -> Tensor:
        """Confidence logits [n, k] after k steps, from previous_ids [n, k], anchors first; never
        from a slot's own token."""

    @property
    def hidden(self) -> Tensor:
        """Hidden states [n, k, H] of the k slots so far, after the final norm."""


class GrownProposal:
    """A block that grows by a token per step; its own entries follow those of the context."""

    def __init__(self, context: Entries, slots: int) -> None:
        keys, values = context.keys, context.values
        self._positions = context.lengths  # [n] of the next step
        self._mask: Tensor | None = None  # [n, 1, 1, S + slots]
        if keys.shape[1] == 1 and keys.device.type == "cpu":  # on a card it would synchronise
            rows = int(context.lengths[0])
            keys, values = keys[:, :, :rows], values[:, :, :rows]
        else:
            self._mask = for_padded_context(context.lengths, keys.shape[2], slots)
        # per layer [n, S, Hkv, hd]
        self._keys, self._values = list(keys.unbind()), list(values.unbind())
        self._hidden: list[Tensor] = []
        self._sureness: list[Tensor] = []

    def _grow(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Appends [n, 1, Hkv, hd] of the step's token -> all keys and values of the layer so far,
        and the mask over them."""
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
        """`sureness` [n, k] of the k slots so far; no head of these families reads the ids."""
        return torch.stack(self._sureness, dim=1)

    @property
    def hidden(self) -> Tensor:
        return torch.stack(self._hidden, dim=1)


class Drafter(Projection, ABC):
    """A drafter of any family, which `config` names: projects as its `Projection` does, ingests,
    proposes.

    Embedding and vocabulary head are copies of the target's, frozen while a drafter is trained.
    """

    needs: EntryNeeds

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        # Tables are loaded, or drawn by `fresh_drafter`: drawing them here, without memory, would
        # load torch's compiler.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens: nn.Embedding = nn.Embedding.from_pretrained(table)  # type: ignore[no-untyped-call]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast)
        self.lm_head = nn.Linear(config.hidden_size, config.head_size, bias=False)
        # the tokens of a head that drafts fewer than all; set by the loader
        self.draft_vocabulary: DraftVocabulary | None = None
        self.lm_head.requires_grad_(False)
        self._served_head: Product | None = None
        self._make_layers(config)

    def _make_layers(self, config: DrafterConfig) -> None:
        self.layers = nn.ModuleList(build_layer(config) for _ in range(config.num_hidden_layers))
        self.rotary = Rotary(
            head_dim=config.head_dim,
            theta=config.rope_theta,
            fraction=config.rotary_fraction,
            yarn=config.yarn,
        )

    def draft_layers(self) -> list[DraftLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def window(self) -> int | None:
        """How many of the newest entries a block sees; None: all."""
        return None

    def serve(self) -> None:
        """Prepares fast serving; the weights must not change any more."""
        for layer in self.draft_layers():
            layer.serve()
        self._served_head = Product([self.lm_head])

    @abstractmethod
    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens' entries, [L, ..., Hkv, hd] each; `past`: the entries
        before them, where needs.past."""

    def ingest_into(
        self, tokens: ContextTokens, keys: Tensor, values: Tensor, slots: Tensor
    ) -> None:
        """Writes `ingest` of tokens [T] to slots [T] of keys and values [L, slots, Hkv, hd]."""
        made_keys, made_values = self.ingest(tokens)
        keys.index_copy_(1, slots, made_keys)
        values.index_copy_(1, slots, made_values)

    def room(self, slots: int) -> int:
        """Padding at the end of entries in which `propose` stores its own without a copy."""
        return 0

    @abstractmethod
    def propose(self, at: Anchors, slots: int) -> Proposal:
        """Begins one block per sequence, of at most config.block_size slots."""

    # -- both ends ------------------------------------------------------------------------

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeds [...] int64 -> [..., H]; Gemma4 scales by sqrt(H), rounded to the weights'
        dtype."""
        rows: Tensor = self.embed_tokens(token_ids)
        if not self.config.gemma:
            return rows
        return rows * rows.new_full((), self.config.hidden_size**0.5)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] after the final norm -> logits U [..., Vd], before any sequential bias;
        Vd is mostly V."""
        logits: Tensor = (
            self.lm_head(hidden) if self._served_head is None else self._served_head(hidden)
        )
        return softcapped(logits, self.config.logit_softcap)

    def whole(self, logits: Tensor) -> Tensor:
        """Logits of the tokens the head can draft, [..., Vd] -> logits of all, [..., V]."""
        return logits if self.draft_vocabulary is None else self.draft_vocabulary.spread(logits)

    @property
    def kept_tokens(self) -> Tensor | None:
        """[Vd] target ids of the tokens the head can draft, in the order of its rows; None if it
        can draft all."""
        return None if self.draft_vocabulary is None else self.draft_vocabulary.target_ids


def softcapped(logits: Tensor, cap: float | None) -> Tensor:
    """c tanh(z / c) of logits z and cap c; the logits themselves without a cap."""
    return logits if cap is None else torch.tanh(logits / cap) * cap
