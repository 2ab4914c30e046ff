"""The exact law of what several rounds emit, with the coins integrated instead of drawn.

A `World` is a toy target and a toy drafter over a tiny vocabulary: one target row per committed
prefix, one draft row and one confidence per (committed prefix, drafted prefix). `emitted` walks
every block a drafter could draw, asks the plan for the prefix that is verified, and adds up the
probabilities that the acceptance code gives to each outcome, round after round, until `horizon`
tokens are committed. `TokenRounds` and `BlockRounds` are the two ratio rules; the coupled rule,
which has no coins to integrate, is `CoupledRounds`, and `coupled_law` adds up its noise.
"""

import abc
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dspark.decoding import block_rule, ratio
from dspark.decoding.acceptance import accept_probability, residual
from dspark.decoding.gumbel import winners
from dspark.decoding.sampling import SamplingColumns, distribution, draft_distribution
from dspark.decoding.slots import Slots
from dspark.decoding.sparse_q import sound_q
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.rounds.plan import NO_CAP, PlanKind, Terms, prefixes
from dspark.rounds.policy import Fixed, Policy, Threshold
from dspark.types import SamplingParams

Floats = npt.NDArray[np.float64]
Tokens = tuple[int, ...]
Sure = tuple[float, ...]  # confidences of a block
Rng = np.random.Generator
Both = tuple[Floats, Floats]  # p [contexts, V] and q [slots, V] of a table
Rows = tuple[Floats, Floats, Floats]  # and the confidences [slots]
Law = Sequence[float]  # of a token
# (block, confidences, which of `PRICES` is in force) -> slots verified
Prefix = Callable[[Tokens, Sure, int], int]
# Which price is in force next time, by the confidences of this round.
Price = Callable[[Sure], int]
PRICES = (0.35, 0.0, 0.1, 0.6, 0.95)  # of plans
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
            chance = 1.0
            for slot, token in zip(slots, block, strict=True):
                chance *= self._drawn[slot][token]
            if chance > 0.0:
                yield block, chance, tuple(self._confidence[slot] for slot in slots)

    @abc.abstractmethod
    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        """(tokens committed by this round, probability); tokens past the horizon do not matter."""


class TokenRounds(Rounds):
    """Slot by slot, by `accept_probability` and `residual`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        p = world.p[[world.target[committed + drafted] for committed, drafted in world.draft]]
        self._kept = accept_probability(p, world.q).tolist()
        self._after = residual(torch.from_numpy(p), torch.from_numpy(world.q)).tolist()

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        slots = [self.world.draft[committed, prefix[:k]] for k in range(len(prefix))]
        kept = [self._kept[slot][token] for slot, token in zip(slots, prefix, strict=True)]
        last = self._p[self.world.target[committed + prefix]]
        for k, token, chance in by_token(kept, [self._after[slot] for slot in slots], last):
            yield (*prefix[:k], token), chance


class BlockRounds(Rounds):
    """By the deployed, sparse block rule: all prefixes of all blocks in one packed call."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
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
            [world.q[part].ravel() for part in rows],
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
        after = residual(law, torch.from_numpy(slots.probs.reshape(p.shape))).tolist()
        candidate = made.candidate.tolist()
        self._made = {
            case: (candidate[start : start + counting], after[start:end])
            for case, counting, (start, end) in zip(
                cases, slots.counting, itertools.pairwise(starts), strict=True
            )
        }

    def outcomes(self, committed: Tokens, prefix: Tokens) -> Iterator[tuple[Tokens, float]]:
        candidate, after = self._made[committed, prefix] if prefix else ([], [])
        last = self._p[self.world.target[committed + prefix[: len(candidate)]]]
        for kept, token, chance in by_block(candidate, after, last):
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
            [winners(row.expand(shares, -1), noise)[0].tolist() for row in torch.from_numpy(laws)]
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
    weight = float(rng.uniform(0.5, 2.0))
    cap = int(rng.choice([NO_CAP, int(rng.integers(0, 2 * world.block))]))
    match policy:
        case Fixed(slots):
            terms = Terms(PlanKind.FIXED, min(slots, world.block), 0.0, weight, NO_CAP)
        case Threshold(at):
            terms = Terms(PlanKind.THRESHOLD, world.block, at, weight, cap)
        case _:
            terms = Terms(PlanKind.PRICE, world.block, PRICES[0], weight, cap)

    @cache
    def verified(sure: Sure, price: int) -> int:
        mine = terms._replace(price=PRICES[price]) if terms.kind is PlanKind.PRICE else terms
        blocks = [list(sure[: terms.slots]), *beside]
        return prefixes(blocks, [mine, *[mine._replace(weight=1.0)] * len(beside)])[0]

    return lambda _, sure, price: verified(sure, price)


def older_price(rng: Rng) -> Price:
    """Any function of an older round's confidences will do."""
    salt = float(rng.random())
    return lambda sure: int(1e6 * (sum(sure) + salt)) % len(PRICES)


# -- tables ----------------------------------------------------------------------------------------


# vocabulary, slots of a block, tokens looked at
SHAPES = ((3, 3, 4), (3, 3, 4), (3, 2, 5), (4, 2, 4))


def random_world(kind: str, seed: int, shapes: Sequence[tuple[int, int, int]] = SHAPES) -> World:
    """One of `KINDS`. Confidences depend on the drafted prefix, and not at all on p and q."""
    rng = np.random.default_rng(seed)
    vocab, block, horizon = shapes[int(rng.integers(0, len(shapes)))]

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
    assert sound_q(ids.numpy(), probs.numpy(), ids[:, 0].tolist(), vocab)
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
