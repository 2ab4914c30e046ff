"""What rounds did, gathered while they run and told to the metrics in one go, when a device computes anyway."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from operator import mul

from dspark.runtime.telemetry import Metrics, observe_all


class RoundCounts:
    """Counts of judged rounds that the metrics have not heard of yet."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tokens = 0
        self._gaps: list[float] = []
        self._rounds: list[tuple[int, int, int, int]] = []
        self._labelled: list[tuple[str, int, int, int]] = []
        self._promised: list[tuple[float, ...]] = []  # confidences of verified slots
        self._empty: list[str] = []

    def shown(self, tokens: int, gap_s: float | None) -> None:
        """Tokens of one answer were committed, so long after those before them; None: they are its first."""
        self._tokens += tokens
        if gap_s is not None:
            self._gaps.append(gap_s)

    def judged(
        self,
        drafted: int,
        verified: int,
        judged: int,
        accepted: int,
        empty_because: str,
        *,
        label: str = "",
        committed: int = 0,
        confidence: tuple[float, ...] = (),
    ) -> None:
        """One sequence's round; of `judged` accepted slots the answer had room for `accepted`.

        label: of the request. committed: tokens the round brought. confidence: of the slots that were verified.
        """
        self._rounds.append((drafted, verified, judged, accepted))
        if confidence:
            self._promised.append(confidence)
        if label:
            self._labelled.append((label, drafted, accepted, committed))
        if not drafted:
            self._empty.append(empty_because or "unspecified")

    def tell(self) -> None:
        """To the metrics, once per kind of number."""
        metrics = self._metrics
        if self._tokens:
            metrics.generation_tokens.inc(self._tokens)
            self._tokens = 0
        gaps, self._gaps = self._gaps, []
        observe_all(metrics.inter_token_latency, gaps)
        if not self._rounds:
            return
        self._tell_labels()
        promised, self._promised = self._promised, []
        if promised:
            metrics.num_expected_tokens.inc(sum(sum(accumulate(each, mul)) for each in promised))
        rounds, self._rounds = self._rounds, []
        empty, self._empty = self._empty, []
        metrics.rounds.inc(len(rounds))
        for reason, count in Counter(empty).items():
            metrics.empty_blocks.labels(reason=reason).inc(count)
        observe_all(metrics.scheduled_verify_length, [each[1] for each in rounds])
        drafts = [each for each in rounds if each[0]]
        if not drafts:
            return
        drafted, verified, judged, accepted = (sum(column) for column in zip(*drafts, strict=True))
        metrics.num_drafts.inc(len(drafts))
        metrics.num_draft_tokens.inc(drafted)
        metrics.num_verified_tokens.inc(verified)
        metrics.num_accepted_tokens.inc(accepted)
        reached = Counter(each[3] for each in drafts)
        alive = len(drafts)
        for slot in range(max(reached)):
            alive -= reached[slot]
            metrics.num_accepted_per_pos.labels(position=str(slot)).inc(alive)
        for reason, count in (
            ("not_verified", drafted - verified),
            ("rejected", verified - judged),
            ("cut", judged - accepted),
        ):
            if count:
                metrics.draft_wasted_tokens.labels(reason=reason).inc(count)

    def _tell_labels(self) -> None:
        labelled, self._labelled = self._labelled, []
        for asked in {each[0] for each in labelled}:
            name = self._metrics.bounded_label(asked)
            mine = [each[1:] for each in labelled if each[0] == asked]
            drafted, accepted, committed = (sum(column) for column in zip(*mine, strict=True))
            self._metrics.label_rounds.labels(label=name).inc(sum(1 for each in mine if each[0]))
            self._metrics.label_draft_tokens.labels(label=name).inc(drafted)
            self._metrics.label_accepted_tokens.labels(label=name).inc(accepted)
            self._metrics.label_generation_tokens.labels(label=name).inc(committed)
