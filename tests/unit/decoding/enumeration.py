"""The exact law of what several rounds emit, with the coins integrated instead of drawn.

A `World` is a toy target and a toy drafter over a tiny vocabulary: one target row per committed
prefix, one draft row and one confidence per (committed prefix, drafted prefix). `emitted` walks
every block a drafter could draw, asks the plan for the prefix that is verified, and adds up the
probabilities that the acceptance code gives to each outcome, round after round, until `horizon`
tokens are committed. `RatioRounds` are those of the two ratio rules; the coupled rule, which has no
coins to integrate, is `CoupledRounds`, and `coupled_law` adds up its noise.
"""

import abc
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dspark.decoding import block_rule, ratio
from dspark.decoding.acceptance import accept_probability, residual
from dspark.decoding.gumbel import checked_argmax
from dspark.decoding.sampling import SamplingColumns, distribution, draft_distribution
from dspark.decoding.slots import Slots
from dspark.decoding.sparse_q import sound_q
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.types import Rule, SamplingParams

Floats = npt.NDArray[np.float64]
Tokens = tuple[int, ...]
Sure = tuple[float, ...]  # confidences of a block
Rng = np.random.Generator
Weights = npt.NDArray[Any]
Both = tuple[Weights, Weights]  # p [contexts, V] and q [slots, V] of a table, of any sums
Rows = tuple[Floats, Floats, Floats]  # and the confidences [slots]
Law = Sequence[float]  # of a token
# (block, confidences, which price is in force) -> slots verified
Prefix = Callable[[Tokens, Sure, int], int]
# Which price is in force next time, by the confidences of this round.
Price = Callable[[Sure], int]
State = TypeVar("State", bound=Hashable)


def spread(
    first: State,
    moves: Callable[[State], Iterable[tuple[State, float]]],
    *,
    over: Callable[[State], bool],
    order: Callable[[State], Any],
) -> dict[State, float]:
    """Probability of each state that is over; moves, and their chances, lead to states of no
    earlier order."""
    mass, ended = {first: 1.0}, dict[State, float]()
    while mass:
        state = min(mass, key=order)
        here = mass.pop(state)
        if over(state):
            ended[state] = ended.get(state, 0.0) + here
            continue
        for after, chance in moves(state):
            if chance > 0.0:
                mass[after] = mass.get(after, 0.0) + here * chance
    return ended


def by_token(
    kept: Sequence[float], after: Sequence[Law], last: Law
) -> Iterator[tuple[int, int, float]]:
    """(tokens kept, the one behind them, probability) by the token rule: of each slot the chance to
    be kept, and the law behind it where it is not; last: the law behind all."""
    alive = 1.0
    for k, (chance, law) in enumerate(zip(kept, after, strict=True)):
        yield from ((k, token, alive * (1.0 - chance) * share) for token, share in enumerate(law))
        alive *= chance
    yield from ((len(kept), token, alive * share) for token, share in enumerate(last))


def by_block(
    candidate: Sequence[float], after: Sequence[Law], last: Law
) -> Iterator[tuple[int, int, float]]:
    """The same by the block rule: of each slot that counts the chance to be the last one kept where
    no later one is, and the law of its own place."""
    left = 1.0
    for kept in range(len(candidate), -1, -1):
        chance = left * candidate[kept - 1] if kept else left
        left -= chance
        law = last if kept == len(candidate) else after[kept]
        yield from ((kept, token, chance * share) for token, share in enumerate(law))


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
    draft = {slot: row for row, slot in enumerate(slots)}
    return World(vocab, block, horizon, target, draft, *rows(len(target), len(draft)))


def sent(weights: npt.NDArray[np.floating]) -> Floats:
    """What both sides make of float32 weights."""
    exact = weights.astype(np.float32).astype(np.float64)
    return exact / exact.sum(axis=-1, keepdims=True)


class Rounds(abc.ABC):
    """Every block that a drafter of `world` could draw; what comes of it is the rule's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._p, self._drawn = world.p.tolist(), world.q.tolist()
        self._confidence = world.confidence.tolist()

    def blocks(self, committed: Tokens) -> Iterator[tuple[Tokens, float, Sure]]:
        """(block, its probability, its confidences)."""
        world = self.world
        for block in itertools.product(range(world.vocab), repeat=world.block):
            slots = [world.draft[committed, block[:k]] for k in range(world.block)]
            chance = math.prod(
                self._drawn[slot][token] for slot, token in zip(slots, block, strict=True)
            )
            if chance > 0.0:
                yield block, chance, tuple(self._confidence[slot] for slot in slots)

    @abc.abstractmethod
    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        """(tokens committed by this round, probability); tokens past the horizon do not matter."""


def judged(rule: Rule, p: torch.Tensor, slots: Slots) -> Iterator[tuple[list[float], list[Law]]]:
    """Of each sequence the chances and the laws that `by_token` or `by_block` adds up, but for the
    law behind all: by a ratio rule as it is deployed, from p [S, V] at the drafted slots."""
    rows = range(len(slots.drafted))
    worth = np.ones(len(rows))  # P of the slot before
    if rule is Rule.TOKEN:
        chances = accept_probability(p[rows, slots.drafted].numpy(), slots.q)
    else:
        alive, chances = block_rule.chances(p[slots.slot, slots.ids].numpy(), slots)
        worth[1:] = alive[:-1]
        worth[slots.starts] = 1.0
    after = residual(ratio.scaled(p, worth), slots.dense(rows, p)).tolist()
    for start, counting in zip(slots.starts, slots.counting, strict=True):
        part = slice(start, start + counting)
        yield chances[part].tolist(), after[part]


class RatioRounds(Rounds):
    """By one of the ratio rules: all prefixes of all blocks in one packed call."""

    def __init__(self, world: World, rule: Rule) -> None:
        super().__init__(world)
        self._added_up = by_token if rule is Rule.TOKEN else by_block
        words = [word for word in world.target if 0 < len(word) <= world.block]
        committed = dict.fromkeys(before for before, _ in world.draft)
        cases = list(itertools.product(committed, words))
        places = [(before, word[:k]) for before, word in cases for k in range(len(word))]
        p = world.p[[world.target[before + drafted] for before, drafted in places]]
        slots = Slots.of(
            [word for _, word in cases],
            [np.tile(np.arange(world.vocab), len(places))],
            [world.q[[world.draft[place] for place in places]].ravel()],
            [world.vocab] * len(cases),
        )
        self._judged = dict(zip(cases, judged(rule, torch.from_numpy(p), slots), strict=True))

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        chances, after = self._judged[committed, prefix] if prefix else ([], [])
        last = self._p[self.world.target[committed + prefix[: len(chances)]]]
        for kept, token, chance in self._added_up(chances, after, last):
            yield (*prefix[:kept], token), chance


class CoupledRounds(Rounds):
    """One noise for every position, however often it is asked for: one block, and one outcome.

    E(0) / (E(0) + E(1)) is uniform, and `shares` midpoints of it decide every race exactly whose
    probabilities are multiples of 1 / shares.
    """

    def __init__(self, world: World, shares: int) -> None:
        super().__init__(world)
        assert world.vocab == 2
        middles = (torch.arange(shares, dtype=torch.float64) + 0.5) / shares
        noise = torch.stack([middles, 1.0 - middles], dim=-1)
        self._own, self._drafts = (
            [
                checked_argmax(row.expand(shares, -1), noise)[0].tolist()
                for row in torch.from_numpy(laws)
            ]
            for laws in (world.p, world.q)
        )
        self._shares = shares
        self._noise: Tokens = ()

    def noises(self) -> Iterator[float]:
        """Goes by every combination in turn, and says how likely it is."""
        horizon, block = self.world.horizon, self.world.block
        for drawn in itertools.product(range(self._shares), repeat=horizon):
            # what lies past the horizon decides nothing
            self._noise = (*drawn, *([self._shares // 3] * block))
            yield float(self._shares) ** -horizon

    def blocks(self, committed: Tokens) -> Iterator[tuple[Tokens, float, Sure]]:
        block: Tokens = ()
        slots = []
        for k in range(self.world.block):
            slots.append(self.world.draft[committed, block])
            block = (*block, self._drafts[slots[-1]][self._noise[len(committed) + k]])
        yield block, 1.0, tuple(self._confidence[slot] for slot in slots)

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        said: Tokens = ()
        for k in range(len(prefix) + 1):
            own = self._own[self.world.target[committed + said]]
            said = (*said, own[self._noise[len(committed) + k]])
            if k == len(prefix) or said[-1] != prefix[k]:
                break
        yield said[: self.world.horizon - len(committed)], 1.0


def emitted(rounds: Rounds, prefix: Prefix, price: Price = lambda _: 0) -> dict[Tokens, float]:
    """Probability of each sequence of `horizon` tokens."""
    horizon = rounds.world.horizon

    def moves(state: tuple[Tokens, int]) -> Iterator[tuple[tuple[Tokens, int], float]]:
        committed, now = state
        for block, chance, sure in rounds.blocks(committed):
            then = price(sure)
            for tokens, share in rounds.outcomes(committed, block[: prefix(block, sure, now)]):
                after = (committed + tokens)[:horizon]
                yield (after, then if len(after) < horizon else 0), chance * share

    first: tuple[Tokens, int] = (), 0
    ended = spread(
        first, moves, over=lambda state: len(state[0]) == horizon, order=lambda state: len(state[0])
    )
    return {committed: chance for (committed, _), chance in ended.items()}


def coupled_law(
    world: World, shares: int, prefix: Prefix, price: Price = lambda _: 0
) -> dict[Tokens, float]:
    """The same under the coupled rule, for two tokens: all noise that tells laws apart."""
    rounds = CoupledRounds(world, shares)
    law: dict[Tokens, float] = {}
    for share in rounds.noises():
        for word, chance in emitted(rounds, prefix, price).items():
            law[word] = law.get(word, 0.0) + share * chance
    return law


def exact(world: World) -> dict[Tokens, float]:
    """The target's own law of the first `horizon` tokens."""

    def moves(word: Tokens) -> Iterator[tuple[Tokens, float]]:
        return (((*word, token), p) for token, p in enumerate(world.p[world.target[word]].tolist()))

    return spread((), moves, over=lambda word: len(word) == world.horizon, order=len)


def variation(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Total variation between two laws."""
    return 0.5 * sum(
        abs(one.get(word, 0.0) - other.get(word, 0.0)) for word in one.keys() | other.keys()
    )


def tables(kind: str, rng: Rng, contexts: int, slots: int, vocab: int) -> tuple[Floats, Floats]:
    """p [contexts, V] and q [slots, V] of one of `KINDS`."""
    p, q = KINDS[kind](rng, contexts, slots, vocab)
    return p / p.sum(axis=1, keepdims=True), sent(q)


def dyadic_world(rng: Rng, shares: int = 8, block: int = 3, horizon: int = 4) -> World:
    """Two tokens, the target's chances in `shares`, any drafts: for `coupled_law`."""

    def rows(contexts: int, slots: int) -> Rows:
        head = rng.integers(0, shares + 1, contexts) / shares
        near = np.clip(rng.random(slots), 1e-3, 1.0 - 1e-3)
        # a drafter that can say one token
        near = np.where(rng.random(slots) < 0.2, near.round(), near)
        q = np.stack([near, 1.0 - near], axis=1)
        return np.stack([head, 1.0 - head], axis=1), sent(q), confidences(rng, slots)

    return build(2, block, horizon, rows)


def confidences(rng: Rng, slots: int) -> Floats:
    """Any, or saturated ones (ties in survival, and candidates that vanish), or a few high ones."""
    high = rng.uniform(0.6, 1.0, 3)
    return rng.choice((rng.random(slots), [0.0, 0.5, 1.0], high)[rng.integers(0, 3)], slots)


def _flat(rng: Rng, rows: int, vocab: int, peak: float = 1.0) -> Weights:
    """Of Dirichlet's law, before they are made to sum to 1."""
    return rng.gamma(peak, size=(rows, vocab)) + 1e-12


def _holes(rng: Rng, weights: Weights) -> Weights:
    """About half of the entries become zeros; never a whole row."""
    holes = rng.random(weights.shape) < 0.5
    holes[np.arange(len(weights)), rng.integers(0, weights.shape[1], len(weights))] = False
    return np.where(holes, 0.0, weights)


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
    return p.numpy(), q.numpy()


def _zeros(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    return _holes(rng, _flat(rng, contexts, vocab)), _holes(rng, _flat(rng, slots, vocab))


def _disjoint(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Target and draft share no token."""
    side = np.arange(vocab) < rng.integers(1, vocab)
    return _flat(rng, contexts, vocab) * side, _flat(rng, slots, vocab) * ~side


def _ties(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Multiples of 1/8 on both sides: many p = q, many zeros."""
    even = [1 / vocab] * vocab
    return rng.multinomial(8, even, contexts), rng.multinomial(8, even, slots)


def _certain(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Greedy drafts of one entry against a target that is greedy too, or is not."""
    eye = np.eye(vocab)
    p, q = (eye[rng.integers(0, vocab, rows)] for rows in (contexts, slots))
    return p if rng.random() < 0.5 else _flat(rng, contexts, vocab), q


def _extreme(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Probabilities over thirty orders of magnitude."""
    p, q = (10.0 ** -rng.uniform(0, 30, (rows, vocab)) for rows in (contexts, slots))
    return p, q


def _loose(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Float32 draft numbers that miss a sum of 1, by far more than rounding."""
    q = _flat(rng, slots, vocab)
    off = rng.uniform(0.9995, 1.0005, (slots, 1))
    return _flat(rng, contexts, vocab), q / q.sum(axis=1, keepdims=True) * off


def _narrow(rng: Rng, contexts: int, slots: int, vocab: int) -> Both:
    """Drafts that can say a part of the vocabulary, cut as the service does; targets of all."""
    sayable = np.sort(rng.permutation(vocab)[: rng.integers(1, vocab)])
    narrow = torch.from_numpy(rng.normal(size=(slots, len(sayable))).astype(np.float32))
    logits = DraftVocabulary(torch.from_numpy(sayable), vocab).spread(narrow)
    ids, probs = draft_distribution(logits, SamplingColumns.of([SamplingParams()]), 64)
    assert sound_q(ids.numpy(), probs.numpy(), ids[:, 0].tolist(), vocab)
    q = torch.zeros(slots, vocab).scatter_(-1, ids, probs).numpy()
    assert not np.delete(q, sayable, axis=1).any()
    return _flat(rng, contexts, vocab, 0.7), q


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
