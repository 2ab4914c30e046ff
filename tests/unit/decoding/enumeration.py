"""The exact law of what several rounds emit, with the coins integrated instead of drawn.

A `World` is a toy target and a toy drafter over a tiny vocabulary: one target row per committed
prefix, one draft row and one confidence per (committed prefix, drafted prefix). `emitted` walks
every block a drafter could draw, asks the plan for the prefix that is verified, and adds up the
probabilities that the acceptance code gives to each outcome, round after round, until `horizon`
tokens are committed. A `Machine` names the parts of that loop, so that a test can put a broken one
in the place of a real one. `TokenRounds` and `BlockRounds` are the two ratio rules; the coupled
rule, which has no coins to integrate, is `CoupledRounds`, and `coupled_law` adds up its noise.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding import block_rule, ratio
from dspark.decoding.acceptance import accept_probability, residual, validate_q
from dspark.decoding.gumbel import winners
from dspark.decoding.sampling import SamplingColumns, distribution, draft_distribution
from dspark.decoding.slots import Slots
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.rounds.plan import NO_CAP, PlanKind, Terms, prefixes
from dspark.rounds.policy import Fixed, Policy, Threshold
from dspark.types import SamplingParams

Floats = npt.NDArray[np.float64]
Tokens = tuple[int, ...]
Rng = np.random.Generator
Both = tuple[Floats, Floats]  # p [contexts, V] and q [slots, V] of a table
Rows = tuple[Floats, Floats, Floats]  # and the confidences [slots]
# (committed, block, confidences, which of `PRICES` is in force) -> slots verified
Prefix = Callable[..., int]
PRICES = (0.35, 0.0, 0.1, 0.6, 0.95)  # of plans


@dataclass(frozen=True)
class World:
    """Target and drafter as tables; q rows are the float32 numbers sent over their float64 sum."""

    vocab: int
    block: int
    horizon: int
    target: dict[Tokens, int]  # committed tokens, and a block after the last ones -> row of p
    draft: dict[tuple[Tokens, Tokens], int]  # (committed, drafted before the slot) -> row of q
    p: Floats  # [contexts, V]
    q: Floats  # [slots, V]
    confidence: Floats  # [slots], of the slot that the row of q is drawn for


@dataclass(frozen=True)
class Machine:
    """The parts of a round. The defaults are the real ones."""

    prefix: Prefix
    accept: Callable[[Floats, Floats], Floats] = accept_probability
    residual: Callable[[Tensor, Tensor], Tensor] = residual
    q_seen: Callable[[World], Floats] = lambda world: world.q  # what the verifier believes q to be
    draft: Callable[[World], Floats] = lambda world: world.q  # what the drafter really draws from
    bonus: Callable[[World, Tokens, Tokens], int] = lambda world, committed, kept: world.target[
        committed + kept
    ]
    # Which price is in force next time, by the confidences of this round.
    price: Callable[[tuple[float, ...]], int] = lambda _: 0
    rounds: Callable[[World, Machine], Rounds] = lambda world, machine: TokenRounds(world, machine)


def build(vocab: int, block: int, horizon: int, rows: Callable[[int, int], Rows]) -> World:
    """`rows(contexts, slots)` gives p [contexts, V], q [slots, V] and confidences [slots]."""
    words = [
        word
        for size in range(horizon + block)
        for word in itertools.product(range(vocab), repeat=size)
    ]
    target = {word: row for row, word in enumerate(words)}
    committed = [word for word in words if len(word) < horizon]
    slots = [(before, drafted) for before in committed for drafted in words if len(drafted) < block]
    p, q, confidence = rows(len(target), len(slots))
    return World(
        vocab,
        block,
        horizon,
        target,
        {slot: row for row, slot in enumerate(slots)},
        p,
        q,
        confidence,
    )


def sent(weights: npt.NDArray[np.floating]) -> Floats:
    """What both sides make of float32 weights."""
    exact = weights.astype(np.float32).astype(np.float64)
    return exact / exact.sum(axis=-1, keepdims=True)


class Rounds(abc.ABC):
    """Every block that a drafter of `world` could draw; what comes of it is the rule's."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self._drawn = machine.draft(world).tolist()
        self._confidence = world.confidence.tolist()

    def blocks(self, committed: Tokens) -> Iterator[tuple[Tokens, float, tuple[float, ...]]]:
        """(block, its probability, its confidences)."""
        world = self.world
        for block in itertools.product(range(world.vocab), repeat=world.block):
            slots = [world.draft[committed, block[:k]] for k in range(world.block)]
            chance = 1.0
            for slot, token in zip(slots, block, strict=True):
                chance *= self._drawn[slot][token]
            if chance > 0.0:
                yield block, chance, tuple(self._confidence[slot] for slot in slots)

    @abc.abstractmethod
    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        """(tokens committed by this round, probability); tokens past the horizon do not matter."""


class TokenRounds(Rounds):
    """Slot by slot, by `accept` and `residual`."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        judged = [(c + d, row) for (c, d), row in world.draft.items() if len(c + d) < world.horizon]
        q = machine.q_seen(world)[[row for _, row in judged]]
        p = world.p[[world.target[context] for context, _ in judged]]
        self._place = {row: number for number, (_, row) in enumerate(judged)}
        self._accept = machine.accept(p, q).tolist()
        self._after = machine.residual(torch.from_numpy(p), torch.from_numpy(q)).tolist()
        self._p = world.p.tolist()

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        world, alive = self.world, 1.0
        for k, token in enumerate(prefix):
            if len(committed) + k >= world.horizon:
                yield prefix[:k], alive
                return
            slot = self._place[world.draft[committed, prefix[:k]]]
            kept = self._accept[slot][token]
            if kept < 1.0:
                for other, share in enumerate(self._after[slot]):
                    yield (*prefix[:k], other), alive * (1.0 - kept) * share
            alive *= kept
            if alive == 0.0:
                return
        if len(committed) + len(prefix) >= world.horizon:
            yield prefix, alive
            return
        for token, share in enumerate(self._p[self.machine.bonus(world, committed, prefix)]):
            yield (*prefix, token), alive * share


class BlockRounds(Rounds):
    """By the deployed, sparse block rule: all prefixes of all blocks in one packed call."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        q = machine.q_seen(world).astype(np.float64)
        words = [word for word in world.target if 0 < len(word) <= world.block]
        cases = [
            (committed, word)
            for committed in world.target
            if len(committed) < world.horizon
            for word in words
        ]
        rows = [
            [world.draft[committed, word[:k]] for k in range(len(word))]
            for committed, word in cases
        ]
        everything = np.arange(world.vocab)
        slots = Slots.of(
            [word for _, word in cases],
            [np.tile(everything, len(word)) for _, word in cases],
            [q[part].ravel() for part in rows],
            [world.vocab] * len(cases),
        )
        contexts = [
            world.target[committed + word[:k]]
            for committed, word in cases
            for k in range(len(word))
        ]
        p = world.p[contexts]
        made = block_rule.chances(p.ravel(), slots)
        starts = [*slots.starts, len(contexts)]
        before = np.ones(len(contexts))  # P of the slot before
        before[1:] = made.alive[:-1]
        before[slots.starts] = 1.0
        law = ratio.scaled(torch.from_numpy(p), before)
        after = machine.residual(law, torch.from_numpy(slots.probs.reshape(p.shape))).tolist()
        candidate = made.candidate.tolist()
        self._made = {
            case: (candidate[start:end], after[start:end], slots.counting[number])
            for number, (case, (start, end)) in enumerate(
                zip(cases, itertools.pairwise(starts), strict=True)
            )
        }
        self._p = world.p.tolist()

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        candidate, after, counting = self._made[committed, prefix] if prefix else ([], [], 0)
        left = 1.0
        for kept in range(counting, -1, -1):
            chance = left * candidate[kept - 1] if kept else left
            left -= chance
            if chance == 0.0:
                continue
            bonus = kept == counting
            law = (
                self._p[self.machine.bonus(self.world, committed, prefix[:kept])]
                if bonus
                else after[kept]
            )
            for token, share in enumerate(law):
                yield (*prefix[:kept], token), chance * share


class CoupledRounds(Rounds):
    """One noise for every position, however often it is asked for: one block, and one outcome.

    E(0) / (E(0) + E(1)) is uniform, and `shares` midpoints of it decide every race exactly whose
    probabilities are multiples of 1 / shares.
    """

    def __init__(self, world: World, machine: Machine, shares: int) -> None:
        super().__init__(world, machine)
        assert world.vocab == 2
        middles = (torch.arange(shares, dtype=torch.float64) + 0.5) / shares
        noise = torch.stack([middles, 1.0 - middles], dim=-1)
        self._own, self._drafts = (
            [winners(row.expand(shares, -1), noise)[0].tolist() for row in torch.from_numpy(laws)]
            for laws in (world.p, machine.draft(world))
        )
        self._shares = shares
        self._noise: Tokens = ()

    def noises(self) -> Iterator[float]:
        """Goes by every combination in turn, and says how likely it is."""
        horizon, block = self.world.horizon, self.world.block
        for drawn in itertools.product(range(self._shares), repeat=horizon):
            # what lies past the horizon decides nothing
            self._noise = (
                *drawn,
                *([self._shares // 3] * block),
            )
            yield float(self._shares) ** -horizon

    def blocks(self, committed: Tokens) -> Iterator[tuple[Tokens, float, tuple[float, ...]]]:
        block: Tokens = ()
        slots = []
        for k in range(self.world.block):
            slots.append(self.world.draft[committed, block])
            block = (*block, self._drafts[slots[-1]][self._noise[len(committed) + k]])
        yield block, 1.0, tuple(self._confidence[slot] for slot in slots)

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        said: Tokens = ()
        for k in range(len(prefix) + 1):
            said = (
                *said,
                self._own[self.world.target[committed + said]][self._noise[len(committed) + k]],
            )
            if k == len(prefix) or said[-1] != prefix[k]:
                break
        yield said[: self.world.horizon - len(committed)], 1.0


def emitted(world: World, machine: Machine) -> dict[Tokens, float]:
    """Probability of each sequence of `horizon` tokens."""
    rounds = machine.rounds(world, machine)
    mass: dict[tuple[Tokens, int], float] = {((), 0): 1.0}
    ended: dict[Tokens, float] = {}
    while mass:
        committed, price = min(mass, key=lambda state: len(state[0]))
        here = mass.pop((committed, price))
        if here == 0.0:
            continue
        for block, chance, confidence in rounds.blocks(committed):
            verified = machine.prefix(committed, block, confidence, price)
            then = machine.price(confidence)
            for tokens, share in rounds.outcomes(committed, block[:verified]):
                after = (committed + tokens)[: world.horizon]
                part = here * chance * share
                if len(after) == world.horizon:
                    ended[after] = ended.get(after, 0.0) + part
                else:
                    mass[after, then] = mass.get((after, then), 0.0) + part
    return ended


def coupled_law(world: World, machine: Machine, shares: int) -> dict[Tokens, float]:
    """The same under the coupled rule, for two tokens: all noise that tells laws apart."""
    rounds = CoupledRounds(world, machine, shares)
    law: dict[Tokens, float] = {}
    for share in rounds.noises():
        for word, chance in emitted(world, replace(machine, rounds=lambda *_: rounds)).items():
            law[word] = law.get(word, 0.0) + share * chance
    return law


def exact(world: World) -> dict[Tokens, float]:
    """The target's own law of the first `horizon` tokens."""
    law: dict[Tokens, float] = {}
    for word in itertools.product(range(world.vocab), repeat=world.horizon):
        chance = 1.0
        for k, token in enumerate(word):
            chance *= world.p[world.target[word[:k]], token]
        law[word] = float(chance)
    return law


def variation(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Total variation between two laws."""
    return 0.5 * sum(
        abs(one.get(word, 0.0) - other.get(word, 0.0)) for word in one.keys() | other.keys()
    )


def real_plan(policy: Policy, world: World, rng: Rng) -> Prefix:
    """What a verifier verifies by a plan's terms, of a random weight, half the time beside a busy
    neighbour and under a cap."""
    beside = rng.random((rng.integers(0, 2), world.block)).tolist()
    weight, cap = (
        float(rng.uniform(0.5, 2.0)),
        int(rng.choice([NO_CAP, rng.integers(0, 2 * world.block)])),
    )
    match policy:
        case Fixed(slots):
            terms = Terms(PlanKind.FIXED, min(slots, world.block), 0.0, weight, NO_CAP)
        case Threshold(at):
            terms = Terms(PlanKind.THRESHOLD, world.block, at, weight, cap)
        case _:
            terms = Terms(PlanKind.PRICE, world.block, PRICES[0], weight, cap)

    @cache
    def verified(confidence: tuple[float, ...], price: int) -> int:
        mine = terms._replace(price=PRICES[price]) if terms.kind is PlanKind.PRICE else terms
        blocks = [list(confidence[: terms.slots]), *beside]
        return prefixes(blocks, [mine, *[mine._replace(weight=1.0)] * len(beside)])[0]

    return lambda _, __, confidence, price: verified(confidence, price)


def older_price(rng: Rng) -> Callable[[tuple[float, ...]], int]:
    """The price of the next round by this one's confidences: any function of them will do."""
    salt = float(rng.random())
    return lambda confidence: int(1e6 * (sum(confidence) + salt)) % len(PRICES)


# -- tables ----------------------------------------------------------------------------------------


# vocabulary, slots of a block, tokens looked at
SHAPES = (
    (3, 3, 4),
    (3, 3, 4),
    (3, 2, 5),
    (4, 2, 4),
)


def random_world(kind: str, seed: int, shapes: Sequence[tuple[int, int, int]] = SHAPES) -> World:
    """One of `KINDS`. Confidences depend on the drafted prefix, and not at all on p and q."""
    rng = np.random.default_rng(seed)
    vocab, block, horizon = shapes[rng.integers(0, len(shapes))]

    def rows(contexts: int, slots: int) -> Rows:
        p, q = KINDS[kind](rng, contexts, slots, vocab)
        return p, q, _confidences(rng, slots)

    return build(vocab, block, horizon, rows)


def dyadic_world(rng: Rng, shares: int = 8, block: int = 3, horizon: int = 4) -> World:
    """Two tokens, the target's chances in `shares`, any drafts: for `coupled_law`."""

    def rows(contexts: int, slots: int) -> Rows:
        head = rng.integers(0, shares + 1, contexts) / shares
        near = np.clip(rng.random(slots), 1e-3, 1.0 - 1e-3)
        # a drafter that can say one token
        near = np.where(rng.random(slots) < 0.2, near.round(), near)
        q = np.stack([near, 1.0 - near], axis=1)
        return np.stack([head, 1.0 - head], axis=1), sent(q), _confidences(rng, slots)

    return build(2, block, horizon, rows)


def _confidences(rng: Rng, slots: int) -> Floats:
    match rng.integers(0, 3):
        case 0:
            return rng.random(slots)
        case 1:
            # saturated: ties in survival, and candidates that vanish
            return rng.choice([0.0, 0.5, 1.0], slots)
        case _:
            return rng.choice(rng.uniform(0.6, 1.0, 3), slots)


def _dirichlet(rng: Rng, rows: int, vocab: int, peak: float) -> Floats:
    weights: Floats = rng.gamma(peak, size=(rows, vocab)) + 1e-12
    return weights / weights.sum(axis=1, keepdims=True)


def _holes(rng: Rng, probs: Floats) -> Floats:
    """About half of the entries become zeros; never a whole row."""
    holes = rng.random(probs.shape) < 0.5
    holes[np.arange(len(probs)), rng.integers(0, probs.shape[1], len(probs))] = False
    probs = np.where(holes, 0.0, probs)
    return probs / probs.sum(axis=1, keepdims=True)


def _of_logits(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Both by the product's own code: a random law, a draft of fewer entries than tokens."""
    law = SamplingParams(
        temperature=float(rng.choice([2e-5, 0.5, 1.0, 3.0, 6.0])),
        top_p=float(rng.choice([1.0, 1.0, 0.8, 0.5])),
        top_k=int(rng.choice([0, 0, 2, 9])),
    )
    columns = SamplingColumns.of([law])
    p = distribution(
        torch.from_numpy(rng.normal(0, 2, (contexts, vocab)).astype(np.float32)), columns
    )
    logits = torch.from_numpy(rng.normal(0, 2, (slots, vocab)).astype(np.float32))
    ids, probs = draft_distribution(logits, columns, int(rng.integers(1, vocab + 1)))
    q = torch.zeros(slots, vocab).scatter_(-1, ids, probs)
    return p.numpy(), sent(q.numpy())


def _zeros(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    return _holes(rng, _dirichlet(rng, contexts, vocab, 1.0)), sent(
        _holes(rng, _dirichlet(rng, slots, vocab, 1.0))
    )


def _disjoint(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Target and draft share no token."""
    side = np.arange(vocab) < rng.integers(1, vocab)
    p = np.where(side, _dirichlet(rng, contexts, vocab, 1.0), 0.0)
    q = np.where(side, 0.0, _dirichlet(rng, slots, vocab, 1.0))
    return p / p.sum(axis=1, keepdims=True), sent(q)


def _ties(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Multiples of 1/8 on both sides: many p = q, many zeros."""
    return tuple(
        rng.multinomial(8, [1 / vocab] * vocab, size=rows) / 8.0 for rows in (contexts, slots)
    )  # type: ignore[return-value]


def _certain(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Greedy drafts of one entry against a target that is greedy too, or is not."""
    eye = np.eye(vocab)
    greedy = rng.random() < 0.5
    p = eye[rng.integers(0, vocab, contexts)] if greedy else _dirichlet(rng, contexts, vocab, 1.0)
    return p, eye[rng.integers(0, vocab, slots)]


def _extreme(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Probabilities over thirty orders of magnitude."""
    p, q = (10.0 ** -rng.uniform(0, 30, (rows, vocab)) for rows in (contexts, slots))
    return p / p.sum(axis=1, keepdims=True), sent(q)


def _loose(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Float32 draft numbers that miss a sum of 1, by far more than rounding."""
    q = _dirichlet(rng, slots, vocab, 1.0) * rng.uniform(0.9995, 1.0005, (slots, 1))
    return _dirichlet(rng, contexts, vocab, 1.0), sent(q)


def _narrow(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Drafts that can say a part of the vocabulary, cut as the service does; targets of all."""
    sayable = np.sort(rng.permutation(vocab)[: rng.integers(1, vocab)])
    narrow = torch.from_numpy(rng.normal(size=(slots, len(sayable))).astype(np.float32))
    logits = DraftVocabulary(torch.from_numpy(sayable), vocab).spread(narrow)
    ids, probs = draft_distribution(logits, SamplingColumns.of([SamplingParams()]), 64)
    assert validate_q(ids.numpy(), probs.numpy(), ids[:, 0].tolist(), vocab) is None
    q = torch.zeros(slots, vocab).scatter_(-1, ids, probs).numpy()
    assert not np.delete(q, sayable, axis=1).any()
    return _dirichlet(rng, contexts, vocab, 0.7), sent(q)


KINDS = {
    "logits": _of_logits,
    "zeros": _zeros,
    "disjoint": _disjoint,
    "ties": _ties,
    "certain": _certain,
    "extreme": _extreme,
    "loose": _loose,
    "narrow": _narrow,
}
