"""What rounds did, gathered while they run and told to the metrics in one go, when a device computes anyway."""

from __future__ import annotations

from collections import Counter

from dspark.runtime.telemetry import Metrics


class RoundCounts:
    """Counts of judged rounds that the metrics have not heard of yet."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tokens = 0
        self._rounds: list[tuple[int, int, int, int]] = []
        self._empty: list[str] = []

    def shown(self, tokens: int) -> None:
        """Tokens were committed."""
        self._tokens += tokens

    def judged(self, drafted: int, verified: int, judged: int, accepted: int, empty_because: str) -> None:
        """One sequence's round; of `judged` accepted slots the answer had room for `accepted`."""
        self._rounds.append((drafted, verified, judged, accepted))
        if not drafted:
            self._empty.append(empty_because or "unspecified")

    def tell(self) -> None:
        """To the metrics, once per kind of number."""
        metrics = self._metrics
        if self._tokens:
            metrics.generation_tokens.inc(self._tokens)
            self._tokens = 0
        if not self._rounds:
            return
        rounds, self._rounds = self._rounds, []
        empty, self._empty = self._empty, []
        metrics.rounds.inc(len(rounds))
        for reason, count in Counter(empty).items():
            metrics.empty_blocks.labels(reason=reason).inc(count)
        for _, verified, _, _ in rounds:
            metrics.scheduled_verify_length.observe(verified)
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
