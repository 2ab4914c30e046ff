"""Explanations of the rounds of a running request, and of answers that ended: typed, frozen,
without protobuf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotExplanation:
    """A drafted token and what became of it."""

    token_id: int | None  # None if not accepted: such ids are not reported
    confidence: float  # calibrated, given that all slots before it are accepted
    survival: float  # running product of confidences
    gain: float  # tokens it was expected to bring
    # "accepted", "rejected", "forbidden" by the answer's form, "void", "unverified" or "cut"
    fate: str


@dataclass(frozen=True, slots=True)
class RoundExplanation:
    """One answer's part in one round. Spans are milliseconds."""

    lane: str  # replica name of the verifier
    index: int  # which of the n answers
    round: int
    offset: int  # index in the answer of the first token committed
    policy: str
    drafter: str  # replica that received the order; empty when none did
    empty_because: str  # why there was no block
    asked: int  # slots requested of the drafter
    slots: tuple[SlotExplanation, ...]  # the block
    prefix: int  # slots sent to verification
    accepted: int  # of those, accepted and committed
    token_ids: tuple[int, ...]  # committed
    origins: tuple[str, ...]  # of each token: "drafted", "corrected", "bonus" or "plain"
    why: str  # what ended the prefix: "no_draft", "whole", "room", "fixed", "threshold" or "price"
    price: float | None  # gain from which on a slot is verified; None where the plan has none
    sequences: int  # in the step
    step_drafted: int
    step_verified: int
    step_tokens: int
    step_committed: int
    plain: bool  # drafts do not pay now: the lane decodes without them
    round_ms: float
    draft_ms: float  # wait for drafts
    draft_pass_ms: float  # device time of the slowest drafter that replied
    verify_pass_ms: float  # device time of the verification
    late: tuple[str, ...]  # drafters that replied too late, or were lost
    forced: tuple[bool, ...]  # of each token: whether the answer's form allowed no other


@dataclass(frozen=True, slots=True)
class EndedAnswer:
    """An answer that ended: its outcome and statistics. Spans are milliseconds."""

    request_id: str  # a tenant's as TENANT/ID
    index: int  # which of the n answers
    outcome: str  # finish reason, or the kind of error, in one word
    error: str  # the same in a sentence; empty when it ended well
    policy: str
    rule: str
    verifier: str  # replica that had it last; empty when it never left the queue
    drafter: str  # replica that drafted for it last; empty without one
    prompt_tokens: int
    completion_tokens: int
    draft_tokens: int  # drafted for it
    verified_histogram: tuple[int, ...]  # rounds by slots verified, from 0
    accepted_histogram: tuple[int, ...]  # rounds by drafted tokens committed, from 0
    mean_acceptance_length: float  # tau
    queue_ms: float  # arrival to the first prefill
    ttft_ms: float  # arrival to the first token; 0 when there was none
    total_ms: float  # arrival to the end
