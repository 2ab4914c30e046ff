"""Drawing the tokens of a cohort's blocks, slot by slot, whatever the rules of its sequences.

Ratio rules draw with coins of their own. The coupled rule draws from the draft's distribution by
the verifier's noise, which makes both sides choose alike, and may be used by this rule alone.

Symbols: n sequences, K entries of a draft distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.at_once import drawn
from dspark.decoding.gumbel import exponentials_of, gumbel_argmax
from dspark.decoding.moving import sent
from dspark.decoding.sampling import draft_uniforms
from dspark.types import Cursor, Rule, SamplingParams


def coupled(params: SamplingParams) -> bool:
    """Whether tokens are drawn by the coupled rule, so that no q is needed; never if
    greedy."""
    return params.rule is Rule.COUPLED and not params.greedy


class DraftNoise:
    """Random numbers for the draws of one cohort's blocks."""

    def __init__(
        self,
        all_params: Sequence[SamplingParams],
        cursors: Sequence[Cursor],
        slots: int,
        device: torch.device | str = "cpu",
    ) -> None:
        device = torch.device(device)
        # of each draw [n], whether the rows could be drawn from: nothing here waits for the device
        self.sound = list[Tensor]()
        coupled_rows = [row for row, params in enumerate(all_params) if coupled(params)]
        ratio_rows = [row for row, params in enumerate(all_params) if not coupled(params)]
        self._coupled, self._ratio = (
            sent(np.array(rows, np.int64), device) for rows in (coupled_rows, ratio_rows)
        )
        self._coupled_params = [all_params[row] for row in coupled_rows]
        self._first = [cursors[row].anchor_position + 1 for row in coupled_rows]
        self._coins: Tensor | None = None  # [ratio rows, slots]
        if ratio_rows:
            coins = draft_uniforms(
                [all_params[row] for row in ratio_rows], [cursors[row] for row in ratio_rows], slots
            )
            self._coins = sent(coins.numpy(), device)

    def pick(self, slot: int, ids: Tensor, probs: Tensor) -> Tensor:
        """Draws tokens of slot `slot`, from 0: ids [n, K], probs [n, K] float32 as sent -> [n]."""
        if not self._coupled_params:
            assert self._coins is not None
            return self._draw(ids, probs, self._coins[:, slot])
        if self._coins is None:
            return self._draw_coupled(slot, ids, probs)
        tokens = torch.empty(len(ids), dtype=ids.dtype, device=ids.device)
        tokens[self._ratio] = self._draw(ids[self._ratio], probs[self._ratio], self._coins[:, slot])
        tokens[self._coupled] = self._draw_coupled(slot, ids[self._coupled], probs[self._coupled])
        return tokens

    def _draw_coupled(self, slot: int, ids: Tensor, probs: Tensor) -> Tensor:
        e = exponentials_of(self._coupled_params, [first + slot for first in self._first], ids)
        places, _, sound = gumbel_argmax(probs, e)
        self.sound.append(sound)
        return ids.gather(-1, places.unsqueeze(-1)).squeeze(-1)

    def _draw(self, ids: Tensor, probs: Tensor, u: Tensor) -> Tensor:
        places, sound = drawn(probs.double(), u)
        self.sound.append(sound)
        return ids.gather(-1, places.unsqueeze(-1)).squeeze(-1)
