"""Types that every room shares: plain, frozen, without torch. Those made often in a round are
tuples, for speed.

Invariant 1, one cursor: `committed_len` counts the prompt and every committed token, the anchor
included. Between rounds the verifier's cache, the drafter's context and the feature watermark stand
at `committed_len - 1`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

GREEDY_BELOW = 1e-5  # temperatures under this are greedy, as in the reference evaluator
# Limits of sampling parameters: of numbers a check, which refuses NaN, and the range in words.
_PENALTY = (lambda p: abs(p) <= 2, "in [-2, 2]")
SAMPLING_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda t: 0 <= t < math.inf, "finite and not negative"),
    "top_p": (lambda p: 0 < p <= 1, "in (0, 1]"),
    "min_p": (lambda p: 0 <= p <= 1, "in [0, 1]"),
    "repetition_penalty": (lambda p: 0 < p <= 100, "in (0, 100]"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
}
MAX_BIAS = 100.0  # each of logit_bias is in [-this, this]
MAX_BIASED = 1024  # ids of logit_bias
MAX_LOGPROBS = 20  # likeliest tokens reported per committed token and per token of a prompt
MAX_CONSTRAINT = 256 * 1024  # characters that describe the form of an answer ...
MAX_FORM = 2 * MAX_CONSTRAINT  # ... and their bytes
# log-probabilities of a prompt that one message holds: tokens times (1 + likeliest ones)
MAX_PROMPT_LOGPROBS = 262_144
PLACES = 64  # equal parts of [0, 1) over which `Draws.places` counts drafted tokens


class Rule(enum.IntEnum):
    """Acceptance rules; the values are those of the wire and of the random draws' keys."""

    TOKEN = 1
    BLOCK = 2
    COUPLED = 3


class ConstraintKind(enum.IntEnum):
    """How the form of an answer is described; the values are those of the wire."""

    JSON_SCHEMA = 1
    JSON_OBJECT = 2  # any JSON object; `text` is empty
    REGEX = 3
    GRAMMAR = 4  # EBNF whose first rule is `root`
    CHOICE = 5  # a JSON list of strings, of which the answer is one
    STRUCTURAL_TAG = 6  # xgrammar's: free text with forms inside it


class Constraint(NamedTuple):
    """The form that an answer must have."""

    kind: ConstraintKind
    text: str = ""


class Cursor(NamedTuple):
    """Position of one sequence; every message about a sequence carries it."""

    sequence: int
    epoch: int
    round: int
    committed_len: int

    @property
    def anchor_position(self) -> int:
        """Absolute, 0-based position of the anchor."""
        return self.committed_len - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a sequence is sampled, and the key of its random draws."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    choice: int = 0
    rule: Rule = Rule.TOKEN
    min_p: float = 0.0  # least probability kept, as a share of the likeliest token's
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, bias), ids distinct
    min_tokens: int = 0  # tokens of the answer before any of stop_token_ids is allowed
    stop_token_ids: tuple[int, ...] = ()  # only with min_tokens
    # likeliest tokens reported per committed token; None: no log-probabilities
    logprobs: int | None = None
    prompt_len: int = 0  # tokens of the prompt, behind which the answer begins; 0 if unknown
    # tokens that break the form have probability 0; see `decoding/masking.py`
    constraint: Constraint | None = None
    # Whether logits are changed before temperature and truncation (see `decoding/shaping.py`);
    # derived once, because every round reads it.
    shapes: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shapes = self.penalises or bool(self.logit_bias) or self.min_tokens > 0
        object.__setattr__(self, "shapes", shapes)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        """Whether a penalty depends on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class SparseQ(NamedTuple):
    """The distributions a block was drawn from, `entries` per slot, as the bytes that are sent.

    Invariant 3, q sent is q sampled: `probs` are the very float32 numbers the drafter drew with.
    Their float64 sum over a slot may differ from 1 by rounding; both sides divide by it.
    """

    entries: int
    ids: bytes  # uint32 little-endian [slots, entries]
    probs: bytes  # float32 little-endian [slots, entries]

    def prefix(self, slots: int) -> SparseQ:
        """The first `slots` slots, cut without decoding."""
        end = slots * self.entries * 4
        if end >= len(self.ids):
            return self
        return SparseQ(self.entries, self.ids[:end], self.probs[:end])

    def arrays(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """(ids, probs), each [slots, entries], read-only views."""
        shape = (-1, max(self.entries, 1))
        return np.frombuffer(self.ids, "<u4").reshape(shape), np.frombuffer(
            self.probs, "<f4"
        ).reshape(shape)

    @staticmethod
    def of(ids: npt.NDArray[np.uint32], probs: npt.NDArray[np.float32]) -> SparseQ:
        """Encodes arrays [slots, entries]."""
        return SparseQ(ids.shape[1], ids.astype("<u4").tobytes(), probs.astype("<f4").tobytes())

    @staticmethod
    def sure(ids: npt.ArrayLike) -> SparseQ:
        """Of a slot for each of these ids, which alone was likely; none for no slots."""
        sent = np.asarray(ids, "<u4")
        return (
            SparseQ(1, sent.tobytes(), np.ones(sent.size, "<f4").tobytes()) if sent.size else NO_Q
        )


NO_Q = SparseQ(0, b"", b"")


class EmptyReason(enum.IntEnum):
    """Why a block is empty; the values are those of the wire."""

    NONE = 0
    FEATURES_MISSING = 1
    UNKNOWN_SEQUENCE = 2
    TOO_LONG = 3
    INVALID = 4


class Block(NamedTuple):
    """What a drafter proposes after an anchor. An empty block is an ordinary block."""

    cursor: Cursor
    token_ids: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()  # calibrated, conditional on earlier slots being accepted
    q: SparseQ = NO_Q
    empty_reason: EmptyReason = EmptyReason.NONE
    watermark: int = 0  # contiguous feature rows the drafter holds


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """Natural log-probabilities at one position, of the target's own distribution: softmax of the
    raw logits, before penalties, bias, temperature and truncation."""

    logprob: float  # of the committed token
    top_ids: tuple[int, ...] = ()  # likeliest first: as many as requested, or as a form allows
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPrompt:
    """Log-probabilities as in `ScoredToken`, of all but the first of a prompt's n tokens."""

    logprobs: npt.NDArray[np.float32]  # [n - 1] of the prompt's token
    ranks: npt.NDArray[np.uint32]  # [n - 1] its rank among all tokens, 1 for the likeliest
    top_ids: npt.NDArray[np.uint32]  # [n - 1, top] likeliest first
    top_logprobs: npt.NDArray[np.float32]  # [n - 1, top]

    @staticmethod
    def joined(parts: Sequence[ScoredPrompt], top: int) -> ScoredPrompt:
        """Concatenates consecutive parts."""
        return ScoredPrompt(
            np.concatenate([np.zeros(0, np.float32), *(part.logprobs for part in parts)]),
            np.concatenate([np.zeros(0, np.uint32), *(part.ranks for part in parts)]),
            np.concatenate([np.zeros((0, top), np.uint32), *(part.top_ids for part in parts)]),
            np.concatenate(
                [np.zeros((0, top), np.float32), *(part.top_logprobs for part in parts)]
            ),
        )


def scores_problem(tokens: int, top: int) -> str | None:
    """Why log-probabilities of a prompt of `tokens` tokens, with `top` likeliest ones each, are
    refused, or None."""
    if not 0 <= top <= MAX_LOGPROBS:
        return f"must be in 0..{MAX_LOGPROBS}, got {top}"
    if tokens * (1 + top) > MAX_PROMPT_LOGPROBS:
        return (
            f"{tokens} tokens times {1 + top} are more than {MAX_PROMPT_LOGPROBS} log-probabilities"
        )
    return None


class FormEffect(NamedTuple):
    """The effect of an answer's form on one round."""

    forced: tuple[bool, ...] = ()  # per token drawn: whether the form allowed no other one
    forbidden: bool = False  # whether the form forbids the first drafted token not kept


class Verdict(NamedTuple):
    """What a pass drew for one sequence."""

    tokens: tuple[int, ...]  # the drafted ones that were kept, and the one the target adds
    # drafted tokens verified: fewer than ordered if pages ran out, none of an invalid draft
    judged: int = 0
    spoilt: bool = False  # whether the draft was invalid
    logprobs: tuple[ScoredToken, ...] = ()  # of the tokens kept and added, if requested
    form: FormEffect = FormEffect()

    @property
    def accepted(self) -> int:
        """How many drafted tokens were kept."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Draws:
    """Sums over verified slots and blocks of one drafter version, see `decoding/draws.py`; they can
    be added."""

    drafter_version: str
    slots: int = 0
    places: tuple[int, ...] = (0,) * PLACES
    drift: float = 0.0  # chance to be kept, minus its average over q
    variance: float = 0.0  # of the drift
    blocks: int = 0
    luck: float = 0.0  # tokens kept, minus the chances, per slot of the block
    luck_variance: float = 0.0

    def __add__(self, other: Draws) -> Draws:
        """The sums of both, which must be of the same drafter version."""
        return Draws(
            self.drafter_version,
            self.slots + other.slots,
            tuple(map(int.__add__, self.places, other.places)),
            self.drift + other.drift,
            self.variance + other.variance,
            self.blocks + other.blocks,
            self.luck + other.luck,
            self.luck_variance + other.luck_variance,
        )


class RefusalReason(enum.IntEnum):
    """Why one sequence of a batched command was not served; the values are those of the wire."""

    UNKNOWN_SEQUENCE = 1
    STALE_CURSOR = 2
    NO_PAGES = 3
    INVALID = 4
    WRONG_INCARNATION = 5
    INTERNAL = 6
    OUT_OF_PAGES = 7
    BUSY = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """One sequence was not served; its neighbours are unaffected."""

    reason: RefusalReason
    message: str  # one readable sentence, without prompt text
