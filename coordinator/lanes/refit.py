"""Calibration kept right by live rounds: a temperature per slot, fitted again and again on what was really accepted.

A drafter's confidence was calibrated at its birth, on held-out text. Where users ask for something else it drifts, and
what the rounds of a lane show can correct it. Most slots are never verified, though, so nobody knows what would have
become of them: their outcome is censored, and those that were verified are the promising ones. What is left whole is
the conditional part of the likelihood, as with survival times: a slot counts iff the slots before it were accepted and
it was verified itself, or with the chance that they are where the verifier tells chances. Whether it was depends on
nothing at or after it (invariant 2, no peeking) but on its own confidence, which is what is conditioned on; so its
chance, given that it counts, is the very chance that is fitted.

One temperature multiplies all logits of a slot, so slots keep their order. It moves only as far as the rounds carry it,
and is settled between rounds. Rules and buckets differ and are fitted apart, as are versions of a drafter. A confidence
of 0 or 1 is no estimate and is left alone.

Symbols: n sequences, k slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog

from coordinator.lanes.rounds import Blocks, Turn
from dspark.rounds.schedule import Floats, Ints

log = structlog.get_logger("dspark.refit")

ENOUGH = 4096  # blocks of one key between two fits
CHANGE = 0.5  # a temperature moves by at most this, in logarithms, at one fit
FARTHEST = 1.5  # and never farther from 1 than this
STIFFNESS = 200.0  # slots whose agreement with the present temperature is assumed at every fit
KEYS = 64  # drafter versions, rules and buckets that are told apart; more are not refitted
# Nearest to 1 first: of steps that explain the rounds equally well, the first is taken.
_STEPS: Floats = np.exp(CHANGE * np.array(sorted(np.arange(-20, 21) / 20, key=abs)))
_LOGITS: Floats = np.linspace(-8.0, 8.0, 65)  # logits are gathered in bins around these
EQUAL = 1e-9  # relative difference of losses that is rounding

Key = tuple[str, int, bool]  # drafter version, acceptance rule, greedy


class Outcomes:
    """Verified slots of one key since its last fit, by slot and logit."""

    def __init__(self, slots: int) -> None:
        self.blocks = 0
        self.seen: Floats = np.zeros((slots, len(_LOGITS)))
        self.accepted: Floats = np.zeros((slots, len(_LOGITS)))
        self.sums: Floats = np.zeros((slots, len(_LOGITS)))  # of logits: a bin stands where they lie, not in its middle

    def add(self, confidence: Floats, prefixes: Ints, accepted: Ints, labels: Floats | None = None) -> None:
        """confidence [n, k], NaN beyond a block; slots verified and accepted [n].

        labels [n, k, 2]: where the verifier knew them, the chances to get to a slot and to keep it too. They have the
        mean of the outcomes without the noise of the coins, and count for every verified slot.
        """
        width = confidence.shape[1]
        if width > len(self.seen):
            more = ((0, width - len(self.seen)), (0, 0))
            self.seen, self.accepted, self.sums = (np.pad(of, more) for of in (self.seen, self.accepted, self.sums))
        slots = np.arange(width)
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(confidence / (1.0 - confidence))
        reached: Floats = (slots <= accepted[:, None]).astype(np.float64)
        kept: Floats = (slots < accepted[:, None]).astype(np.float64)
        if labels is not None:
            known = ~np.isnan(labels[..., 0])
            reached, kept = np.where(known, labels[..., 0], reached), np.where(known, labels[..., 1], kept)
        counts = (slots < prefixes[:, None]) & (reached > 0.0) & np.isfinite(logits)
        step = _LOGITS[1] - _LOGITS[0]
        counted = np.clip(logits[counts], _LOGITS[0], _LOGITS[-1])
        place = np.rint((counted - _LOGITS[0]) / step).astype(np.int64)
        place += np.tile(slots, (len(confidence), 1))[counts] * len(_LOGITS)
        size, weight = self.seen.size, reached[counts]
        self.seen += np.bincount(place, weight, minlength=size).reshape(self.seen.shape)
        self.accepted += np.bincount(place, kept[counts], minlength=size).reshape(self.seen.shape)
        self.sums += np.bincount(place, weight * counted, minlength=size).reshape(self.seen.shape)
        self.blocks += len(confidence)

    def steps(self, temperatures: Floats | None = None) -> Floats:
        """[k] what the present temperatures, [k] or fewer, have to be multiplied by: log loss on a grid, held back by
        `STIFFNESS`."""
        present: Floats = np.ones(len(self.seen))
        if temperatures is not None:
            present[: len(temperatures)] = temperatures
        means = np.where(self.seen > 0, self.sums / np.maximum(self.seen, 1.0), _LOGITS)
        logits = means / present[:, None]  # [k, bins]
        # Agreement is assumed where the slot's logits lie.
        share = self.seen / np.maximum(self.seen.sum(axis=1, keepdims=True), 1.0)
        told = 1.0 / (1.0 + np.exp(-logits))
        seen, accepted = self.seen + STIFFNESS * share, self.accepted + STIFFNESS * share * told
        scaled = logits[:, None, :] / _STEPS[:, None]  # [k, steps, bins]
        loss = (seen[:, None] * np.logaddexp(0.0, scaled) - accepted[:, None] * scaled).sum(axis=2)  # [k, steps]
        least = loss.min(axis=1, keepdims=True)
        found: Floats = _STEPS[np.argmax(loss <= least + EQUAL * np.abs(least), axis=1)]
        return found


class Refit:
    """Of one lane."""

    def __init__(self, every: int = 1) -> None:
        self._every, self._turn = every, 0  # one judged round of so many is looked at
        self._outcomes: dict[Key, Outcomes] = {}
        self._temperatures: dict[Key, Floats] = {}

    def corrected(self, turns: Sequence[Turn], blocks: Blocks) -> Blocks:
        """The blocks of a cohort with what was learnt so far; the same ones while nothing was."""
        if not self._temperatures or not blocks.confidence.shape[1]:
            return blocks
        scales = np.ones_like(blocks.confidence)
        for row, turn in enumerate(turns):
            known = self._temperatures.get(key_of(turn))
            if known is not None:
                width = min(len(known), scales.shape[1])
                scales[row, :width] = known[:width]
        with np.errstate(divide="ignore"):
            logits = np.log(blocks.confidence) - np.log1p(-blocks.confidence)
            return blocks._replace(confidence=1.0 / (1.0 + np.exp(-logits / scales)))

    def due(self) -> bool:
        """Whether the next judged round is to be observed; which ones are depends on nothing in them."""
        self._turn = (self._turn + 1) % self._every
        return self._turn == 0

    def observe(
        self,
        turns: Sequence[Turn],
        confidence: Floats,
        prefixes: Ints,
        accepted: Ints,
        labels: Floats | None = None,
    ) -> None:
        """A judged round: confidence [n, k] as the drafters gave it, slots verified and accepted [n], `Outcomes.add`.

        What was corrected is not asked for: rounds may be under way while a fit changes the temperatures.
        """
        rows: dict[Key, list[int]] = {}
        for row, turn in enumerate(turns):
            rows.setdefault(key_of(turn), []).append(row)
        for key, its in rows.items():
            outcomes = self._outcomes.get(key)
            if outcomes is None:
                if len(self._outcomes) >= KEYS:
                    continue
                outcomes = self._outcomes[key] = Outcomes(confidence.shape[1])
            outcomes.add(confidence[its], prefixes[its], accepted[its], None if labels is None else labels[its])
            if outcomes.blocks >= ENOUGH:
                self._fit(key, outcomes)

    def temperatures(self, key: Key) -> Floats | None:
        """[k] what the confidence of a key is divided by, in logits; None before its first fit."""
        return self._temperatures.get(key)

    def _fit(self, key: Key, outcomes: Outcomes) -> None:
        known = self._temperatures.get(key)
        fitted = outcomes.steps(known)
        if known is not None:
            fitted[: len(known)] *= known
        least, most = np.exp(-FARTHEST), np.exp(FARTHEST)
        self._temperatures[key] = np.clip(fitted, least, most)
        self._outcomes[key] = Outcomes(len(fitted))
        version, rule, greedy = key
        log.info(
            "calibration.refitted",
            drafter=version,
            rule=rule,
            greedy=greedy,
            temperatures=np.round(self._temperatures[key], 3).tolist(),
        )


def key_of(turn: Turn) -> Key:
    """Whose temperatures a block is read with."""
    law = turn.track.request.law
    return turn.drafter_version, int(law.rule), law.greedy
