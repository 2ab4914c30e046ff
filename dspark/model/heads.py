"""Heads that read a slot's hidden state besides the vocabulary head: sequential heads and the
confidence head.

A sequential head is a bias on slot k's logits from the token drafted before it.

e = W1[previous id] in R^r, h = the slot's post-norm hidden state. The corrected logits are U_k +
B_k; the heads differ in B_k only (eq. 5, eq. 6; the gated form is an extension found in
checkpoints). Slot 1's previous token is the anchor. Two forms of one distribution: `bias` walks
slot by slot on sampled tokens, `codes` takes all previous tokens at once (teacher forcing).

The confidence head predicts how likely slot k is to be accepted, given that the slots before it
were: z_k = w . [h_k ; W1[x_{k-1}]] + b, c_k = sigmoid(z_k) (eq. 7, plus a bias). c_k depends on the
tokens before slot k and never on x_k itself, so a threshold on it does not peek. The second half is
the raw embedding row, not the state of a gated or recurrent head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import DrafterConfig, HeadType
from dspark.model.products import Product


class SequentialHead(nn.Module):
    """The base of sequential heads, and the head of a drafter without one: its slots are
    independent."""

    def serve(self) -> None:
        """Prepares a fast `bias`; the weights must not change any more."""

    def initial_state(self, n: int, like: Tensor) -> Tensor:
        """State before slot 1, reset for every block: [n, 0] where a head keeps none."""
        return like.new_empty(n, 0)

    def embed(self, previous_ids: Tensor) -> Tensor | None:
        """W1 rows [..., r] of the previous tokens, or None without a table."""
        return None

    def bias(
        self, state: Tensor, previous_ids: Tensor, hidden: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """previous_ids [n], hidden [n, H] -> (bias [n, V] or None, next state)."""
        return None, state

    def codes(self, embedded: Tensor | None, hidden: Tensor) -> Tensor | None:
        """W1 rows [..., k, r] -> the input of W2, [..., k, r]. Lets a loss expand few rows at a
        time."""
        return None


class VanillaHead(SequentialHead):
    """The vanilla head: B_k = W2 e (eq. 5)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.rank = config.markov_rank
        table = torch.empty(config.vocab_size, self.rank)  # see `Drafter`
        self.markov_w1: nn.Embedding = nn.Embedding.from_pretrained(table, freeze=False)  # type: ignore[no-untyped-call]
        self.markov_w2 = nn.Linear(self.rank, config.head_size, bias=False)
        self._served: Product | None = None

    def serve(self) -> None:
        self._served = Product([self.markov_w2])

    def embed(self, previous_ids: Tensor) -> Tensor:
        rows: Tensor = self.markov_w1(previous_ids)
        return rows

    def bias(self, state: Tensor, previous_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.expand(self._code(self.embed(previous_ids), hidden)), state

    def codes(self, embedded: Tensor | None, hidden: Tensor) -> Tensor:
        assert embedded is not None
        return self._code(embedded, hidden)

    def expand(self, codes: Tensor) -> Tensor:
        """W2 codes: [..., r] -> [..., V]."""
        logits: Tensor = self.markov_w2(codes) if self._served is None else self._served(codes)
        return logits

    def _code(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return embedded


class GatedHead(VanillaHead):
    """The gated head: B_k = W2 (g * e), g = sigmoid(W_g [h ; e] + b_g)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def _code(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), dim=-1)))
        return gate * embedded


class RecurrentHead(VanillaHead):
    """The recurrent head: B_k = W2 tanh(o), s_k = f * s_{k-1} + (1 - f) * tanh(c), s_0 = 0 (eq. 6).

    [f ; c ; o] = W_j [s_{k-1} ; e ; h] + b_j, f after a sigmoid. B_k reads the old state.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def initial_state(self, n: int, like: Tensor) -> Tensor:
        return like.new_zeros(n, self.rank)

    def bias(self, state: Tensor, previous_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        code, state = self._step(state, self.embed(previous_ids), hidden)
        return self.expand(code), state

    def codes(self, embedded: Tensor | None, hidden: Tensor) -> Tensor:
        assert embedded is not None
        state = torch.zeros_like(embedded[..., 0, :])
        codes = []
        for slot in range(embedded.shape[-2]):
            code, state = self._step(state, embedded[..., slot, :], hidden[..., slot, :])
            codes.append(code)
        return torch.stack(codes, dim=-2)

    def _step(self, state: Tensor, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        joint = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)


def build_head(config: DrafterConfig) -> SequentialHead:
    """The sequential head that the config names."""
    heads: dict[HeadType, type[VanillaHead]] = {
        "vanilla": VanillaHead,
        "gated": GatedHead,
        "rnn": RecurrentHead,
    }
    return (
        SequentialHead()
        if config.markov_head_type == "none"
        else heads[config.markov_head_type](config)
    )


def sureness(logits: Tensor) -> Tensor:
    """logits [..., V] of slots -> [...] fp32: the log-odds of each slot's likeliest token.

    The confidence of drafters without a head for it. It depends on what was drafted before the slot
    and never on the slot's own token: that token's probability would let a draft decide whether it
    is verified.
    """
    wide = logits.float()
    # finite odds even at q = 1
    log_q = (wide.amax(dim=-1) - wide.logsumexp(dim=-1)).clamp(max=-1e-6)
    return log_q - torch.log(-torch.expm1(log_q))


class ConfidenceHead(nn.Module):
    """The confidence head, one linear output; `rank` is 0 where only the hidden state is read."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.rank = config.markov_rank if config.confidence_head_with_markov else 0
        self.proj = nn.Linear(config.hidden_size + self.rank, 1, bias=config.stage is None)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """hidden [..., k, H], embedded [..., k, r] rows of W1 or None -> logits [..., k]."""
        inputs = hidden if embedded is None else torch.cat((hidden, embedded), dim=-1)
        logits: Tensor = self.proj(inputs)
        return logits.squeeze(-1)
