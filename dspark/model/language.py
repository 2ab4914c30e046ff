"""An independent small language model as a drafter: a stock Qwen3 decoder over the target's
vocabulary.

It reads nothing of the target but token ids. A context token's entry depends on every token before
it, so tokens are ingested in order. Rolling back is keeping fewer entries. Symbols: `family.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.config import DrafterConfig
from dspark.model.family import Anchors, ContextTokens, Drafter, Entries, EntryNeeds, GrownProposal


class LanguageDrafter(Drafter):
    """A causal decoder that drafts token by token. It shares no weights with the target, so none
    are frozen."""

    needs = EntryNeeds(row=False, token="own", past=True)

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.requires_grad_(True)
        self.tie()

    def tie(self) -> None:
        """Ties the head to the embedding if the config does; again after weights were replaced."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def stored_names(self) -> dict[str, str]:
        """The library's names: all but the head are inside `model`, and a tied head is not
        stored."""
        names = {
            name: f"model.{name}" for name in self.state_dict() if not name.startswith("lm_head.")
        }
        return (
            names
            if self.config.tie_word_embeddings
            else names | {"lm_head.weight": "lm_head.weight"}
        )

    # -- serving --------------------------------------------------------------------------

    def ingest(self, tokens: ContextTokens, past: Entries | None = None) -> tuple[Tensor, Tensor]:
        """Entries of ids and positions [n, T] that follow the past entries; padding may only be at
        the end of a row."""
        assert tokens.token_ids is not None
        hidden, angles = self.embed(tokens.token_ids), self.rotary.at(tokens.positions)
        mask = _causal(tokens.token_ids, past)
        *before, last = self.draft_layers()
        keys, values = [], []
        for number, layer in enumerate(before):
            query, key, value = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            keys.append(key)
            values.append(value)
            if past is not None:
                key = torch.cat((past.keys[number], key), dim=1)
                value = torch.cat((past.values[number], value), dim=1)
            hidden = layer.after(hidden, layer.self_attn.attend(query, key, value, mask))
        # the last layer's output is not needed
        key, value = last.self_attn.keys_values(last.input_layernorm(hidden), angles)
        return torch.stack([*keys, key]), torch.stack([*values, value])

    def propose(self, at: Anchors, slots: int) -> LanguageProposal:
        """Begins a block; every step runs the decoder on one token per sequence."""
        assert isinstance(at.context, Entries)
        return LanguageProposal(self, at.context, slots)

    # -- training -------------------------------------------------------------------------

    def forward_tokens(self, input_ids: Tensor) -> Tensor:
        """ids [B, T] -> hidden states [B, T, H] after the final norm; index i predicts token
        i+1."""
        hidden, mask = self.embed(input_ids), _causal(input_ids, None)
        angles = self.rotary.at(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.draft_layers():
            own = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            hidden = layer.after(hidden, layer.self_attn.attend(*own, mask))
        out: Tensor = self.norm(hidden)
        return out


class LanguageProposal(GrownProposal):
    """A block of a language model: every step runs all layers on the token before."""

    def __init__(self, drafter: LanguageDrafter, context: Entries, slots: int) -> None:
        super().__init__(context, slots)
        self._drafter = drafter

    def step(self, previous_ids: Tensor) -> Tensor:
        """previous_ids [n] -> logits [n, V] fp32 of the next slot."""
        drafter = self._drafter
        hidden = drafter.embed(previous_ids).unsqueeze(1)
        angles = drafter.rotary.at(self._positions).unsqueeze(1)
        for number, layer in enumerate(drafter.draft_layers()):
            query, key, value = layer.self_attn.project(layer.input_layernorm(hidden), angles)
            hidden = layer.after(
                hidden, layer.self_attn.attend(query, *self._grow(number, key, value))
            )
        normed = drafter.norm(hidden.squeeze(1))
        return self._stepped(normed, drafter.base_logits(normed))


def _causal(ids: Tensor, past: Entries | None) -> Tensor:
    """Mask [n or 1, 1, T, S + T]: a token sees the past entries that count, and of these tokens
    those not after it."""
    length = ids.shape[1]
    own = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None, None]
    if past is None:
        return own
    # [n, S]
    before = torch.arange(past.keys.shape[2], device=ids.device) < past.lengths.unsqueeze(-1)
    before = before[:, None, None].expand(-1, 1, length, -1)
    return torch.cat((before, own.expand(len(before), -1, -1, -1)), dim=-1)
