"""Both ends of a drafter: token ids in, logits out. Copies of the target's, frozen while a drafter is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import DrafterConfig
from dspark.model.family import Drafter
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm


class VocabularyEnds(Drafter):
    """The embedding, the last norm and the vocabulary head that every family has."""

    def _make_ends(self, config: DrafterConfig) -> None:
        """Called once by the family's constructor."""
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast)
        self.lm_head = nn.Linear(config.hidden_size, config.head_size, bias=False)
        self.draft_vocabulary = None  # the loader knows
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)
        self._served_head: Product | None = None

    def _serve_head(self) -> None:
        self._served_head = Product([self.lm_head])

    def embed(self, token_ids: Tensor) -> Tensor:
        """[...] int64 -> [..., H]; Gemma4 scales by sqrt(H), rounded to the weights' dtype."""
        rows: Tensor = self.embed_tokens(token_ids)
        if not self.config.gemma:
            return rows
        return rows * rows.new_full((), self.config.hidden_size**0.5)

    def whole(self, logits: Tensor) -> Tensor:
        """Logits of the tokens the head can say, [..., Vd] -> logits of all, [..., V]."""
        return logits if self.draft_vocabulary is None else self.draft_vocabulary.spread(logits)

    @property
    def kept_tokens(self) -> Tensor | None:
        """[Vd] target ids of what the head can say, in the order of its rows; None where it can say everything."""
        return None if self.draft_vocabulary is None else self.draft_vocabulary.target_ids

    def base_logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] after the final norm -> logits U [..., Vd], before any sequential bias; Vd is mostly V."""
        logits: Tensor = self.lm_head(hidden) if self._served_head is None else self._served_head(hidden)
        return softcapped(logits, self.config.logit_softcap)


def softcapped(logits: Tensor, cap: float | None) -> Tensor:
    """c tanh(z / c), or the logits themselves without a cap."""
    return logits if cap is None else torch.tanh(logits / cap) * cap
