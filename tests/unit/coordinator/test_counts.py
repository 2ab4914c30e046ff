"""What rounds did, as the metrics and the status tell it."""

import pytest

from coordinator.cells.control import LATENCIES, write_totals
from coordinator.lanes.round_learning import JudgedRound, RoundCounts
from dspark.rounds.events import RoundReport
from dspark.runtime import telemetry
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import control_pb2


def judged(verified: int, kept: int, *, accepted: int, label: str = "") -> JudgedRound:
    """Of a block of four, each less sure than the one before; of what was kept the answer had room
    for `accepted`."""
    said = RoundReport(1, 0, 1, 5, (3,) * (kept + 1), kept, verified, (0.8, 0.5, 0.25, 0.125))
    return JudgedRound(said, accepted, label=label)


def test_labels_count_their_own_rounds(metrics: Metrics) -> None:
    counts = RoundCounts(metrics)
    counts.judged(judged(4, 3, accepted=3, label="code"))
    counts.judged(judged(2, 2, accepted=0, label="prose"))
    counts.judged(JudgedRound(RoundReport(1, 0, 1, 5, (3,)), 0, "no_drafter", "code"))
    counts.judged(judged(4, 4, accepted=4))
    counts.shown(1, None, "code")  # an answer's first token is of no round
    counts.shown(4, 0.1, "code")
    counts.shown(7, None)
    assert metrics.value("label_rounds_total", label="code") == 0, "not before they are told"
    counts.tell()
    assert metrics.value("label_rounds_total", label="code") == 1, "rounds with a draft"
    assert metrics.value("label_draft_tokens_total", label="code") == 4
    assert metrics.value("label_accepted_tokens_total", label="code") == 3
    assert metrics.value("label_generation_tokens_total", label="code") == 5
    assert metrics.value("generation_tokens_total") == 12
    assert metrics.value("label_accepted_tokens_total", label="prose") == 0
    assert metrics.value("label_draft_tokens_total", label="") == 0, "none given, none counted"
    assert metrics.value("rounds_total") == 4


def test_what_was_promised_is_the_sum_of_survivals_of_verified_slots(metrics: Metrics) -> None:
    counts = RoundCounts(metrics)
    counts.judged(judged(3, 3, accepted=1))
    counts.tell()
    assert metrics.value("spec_decode_num_expected_tokens_total") == pytest.approx(0.8 + 0.4 + 0.1)
    counts.tell()
    assert metrics.value("spec_decode_num_expected_tokens_total") == pytest.approx(1.3), "told once"


def test_labels_without_end_become_one(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setattr(telemetry, "MOST_LABELS", 2)
    assert [*map(metrics.bounded_label, "abcad")] == ["a", "b", "other", "a", "other"]


def test_a_status_carries_counters_over_all_labels_and_plain_buckets(metrics: Metrics) -> None:
    metrics.requests.labels(outcome="stop").inc(2)
    metrics.requests.labels(outcome="length").inc(3)
    for seconds in (0.0005, 0.03, 0.03, 1000.0):
        metrics.time_to_first_token.observe(seconds)
    reply = control_pb2.GetStatusReply()
    write_totals(metrics, reply)
    assert dict(reply.totals) == {"dspark_requests_total": 5.0}
    assert {each.name for each in reply.distributions} == set(LATENCIES)
    (first,) = [
        each for each in reply.distributions if each.name == "dspark_time_to_first_token_seconds"
    ]
    assert len(first.counts) == len(first.bounds) + 1
    by_bound = dict(zip(first.bounds, first.counts, strict=False))
    assert (by_bound[0.001], by_bound[0.03], first.counts[-1], sum(first.counts)) == (1, 2, 1, 4)
    assert first.sum == pytest.approx(1000.0605)
