"""The verifier's state of one sequence, and checks of commands against it.

Invariant 1, one cursor: between rounds `cached` is `committed_len - 1`. A command with another
position is refused, and the refusal says where the sequence stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog

from dspark.rounds.plan import MAX_SLOTS
from dspark.types import (
    NO_Q,
    Cursor,
    Refusal,
    RefusalReason,
    SamplingParams,
    ScoredPrompt,
    ScoredToken,
    SparseQ,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dspark.decoding.masking import Matcher
    from dspark.decoding.shaping import Shaper

log = structlog.get_logger("dspark.verify")

_BUG = Refusal(
    RefusalReason.INTERNAL, "its parameters or its rows met a bug; see the verifier's log"
)


class VerifyItem(NamedTuple):
    """One sequence of a cohort: a prefix to verify after its anchor."""

    cursor: Cursor
    anchor: int
    draft_ids: tuple[int, ...]
    q: SparseQ
    drafter: str = ""  # version of the drafter that drew the tokens; empty: unknown
    spoilt: bool = False  # an unsound draft was removed

    def without_draft(self) -> VerifyItem:
        """The same item without its draft, marked as spoilt."""
        return self._replace(draft_ids=(), q=NO_Q, spoilt=True)


@dataclass(slots=True, eq=False)
class CachedSequence:
    """State of one sequence, held from prefill to release; the key of its pages and caches.

    One dropped in a pass keeps those to its end, beside a successor under the same number.
    """

    sequence: int
    epoch: int
    owner: int  # the stream that opened it
    params: SamplingParams
    prompt_len: int  # tokens the prefill has to run
    keep_features: bool
    prompt: Sequence[int] = ()  # those tokens
    longest: int = 0  # tokens it will reach at most
    salt: str | None = None  # of the prefix cache; None: its pages are not cached
    repeatable: bool = False  # its client can repeat its draws, so no statistics hold them
    spared: int = 0  # prompt tokens found in the prefix cache
    # prompt tokens shared with an earlier prompt, if states are kept
    alike: int = 0
    kept_state: int = 0  # prompt tokens of its longest kept state
    token_ids: list[int] = field(default_factory=list)  # committed, the anchor last
    cached: int = 0  # tokens with keys and values
    # whether shorter prompts went first when it was the oldest and chunks were dealt last
    passed_over: bool = False
    in_pass: bool = False  # held by a pass that has not ended
    # of a finished prefill, until the anchor is drawn
    last_logits: Tensor | None = None
    anchored: bool = False  # whether the anchor was drawn
    round: int = -1  # the last judged round
    anchor_logprobs: tuple[ScoredToken, ...] = ()
    # top tokens reported per prompt position; None: no scoring
    scores: int | None = None
    scored: list[ScoredPrompt] = field(default_factory=list)  # per chunk so far
    broken: Refusal | None = None  # why its prefill cannot go on
    # of its constraint; at the end of token_ids between rounds
    matcher: Matcher | None = None
    # made on first use; catches up with token_ids at each use
    shaper: Shaper | None = None

    @property
    def committed_len(self) -> int:
        return len(self.token_ids)

    @property
    def prefilled(self) -> bool:
        """Whether its whole prompt has run."""
        return self.cached >= self.prompt_len

    def take_scores(self, top: int) -> ScoredPrompt:
        """Log-probabilities of its finished prompt, with `top` likeliest tokens each, once."""
        told, self.scored = ScoredPrompt.joined(self.scored, top), []
        return told

    @property
    def first_mask(self) -> bytes:
        """Mask of the allowed next tokens; empty without a grammar."""
        if self.matcher is None or self.matcher.too_slow:
            return b""
        try:
            return self.matcher.masks(())[:1].tobytes()
        except Exception:  # its next pass meets the same error and reports it
            return b""

    @property
    def given(self) -> int:
        """Tokens of the request's own prompt; fewer than `prompt_len` if part of the answer was
        prefilled too."""
        return min(self.params.prompt_len, self.prompt_len) or self.prompt_len


def invalid(message: str) -> Refusal:
    """Refusal of a malformed command."""
    return Refusal(RefusalReason.INVALID, message)


def unknown(cursor: Cursor) -> Refusal:
    """Refusal of a sequence that is not held under this epoch."""
    return Refusal(
        RefusalReason.UNKNOWN_SEQUENCE,
        f"sequence {cursor.sequence} epoch {cursor.epoch} is not held here",
    )


def failed(sequence: int, error: Exception) -> Refusal:
    """Logs a bug at one sequence; returns its refusal. Other sequences are not affected."""
    log.error("sequence.failed", sequence=sequence, exc_info=error)
    return _BUG


def stale(message: str) -> Refusal:
    """Refusal of a command whose position differs from the sequence's."""
    return Refusal(RefusalReason.STALE_CURSOR, message)


def check_prompt(
    cursor: Cursor,
    token_ids: Sequence[int],
    reserve_tokens: int,
    *,
    vocab_size: int,
    context_length: int,
) -> Refusal | None:
    """Why these tokens cannot be prefilled, or None."""
    count = len(token_ids)
    if count == 0:
        return invalid("token_ids: empty")
    if cursor.committed_len != count:
        return invalid(f"cursor.committed_len: {cursor.committed_len} for {count} token_ids")
    if count > context_length:
        return invalid(f"token_ids: {count} tokens are more than the context of {context_length}")
    if max(token_ids) >= vocab_size or min(token_ids) < 0:
        return invalid(f"token_ids: an id is not below the vocabulary size {vocab_size}")
    if not count < reserve_tokens <= context_length + MAX_SLOTS + 1:
        return invalid(
            f"longest: {reserve_tokens} is not in {count + 1}..{context_length + MAX_SLOTS + 1}"
        )
    return None


def check_item(state: CachedSequence, item: VerifyItem) -> Refusal | None:
    """Why an item is not the next round of its sequence, or None. Its tokens were checked when they
    were read; its distributions are checked during the pass."""
    _, epoch, round, committed_len = item.cursor
    if epoch > state.epoch or not state.anchored:
        return unknown(item.cursor)
    claimed = (epoch, committed_len, item.anchor)
    if claimed != (state.epoch, state.committed_len, state.token_ids[-1]) or round <= state.round:
        return stale(
            f"epoch {epoch}, round {round}, committed_len {committed_len} do not follow epoch "
            f"{state.epoch}, round {state.round}, committed_len {state.committed_len}, or the "
            "anchor is another one"
        )
    return None
