"""The control stream and orders: nouns come back as they went, and what cannot be is refused by
field."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dspark.errors import PeerError
from dspark.rounds.control import (
    Admission,
    Down,
    DrafterAt,
    DrafterUse,
    Draining,
    PassReport,
    PrefillStats,
    Timing,
    Up,
)
from dspark.rounds.events import (
    Acknowledged,
    Admit,
    DrafterEvent,
    GoneReason,
    KeepSequences,
    OrderRow,
    PrefillRefused,
    Release,
    Released,
    ReleaseMode,
    Report,
    RoundReport,
)
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.plan import NO_CAP, BlockTerms, Plan, PlanKind, SequencePlan
from dspark.types import (
    Draws,
    Refusal,
    RefusalReason,
    Rule,
    SamplingParams,
    ScoredPrompt,
    ScoredToken,
)
from dspark.wire import orders
from dspark.wire.control_down import read_down, write_down
from dspark.wire.control_up import read_up, write_up
from dspark.wire.v1 import draft_pb2, verify_pb2

LAW = SamplingParams(temperature=0.5, seed=9, rule=Rule.COUPLED, prompt_len=3)
ADMISSION = Admission(
    Admit(7, 2, 3, 20, frozenset({5, 1}), 4), [10, 11, 12], LAW, 23, True, "acme", 2, True
)
TERMS = BlockTerms(PlanKind.PRICE, 5, 0.25, 1.5, 100)
PLAN = Plan(
    TERMS,
    2,
    3,
    0.004,
    {7: SequencePlan(TERMS._replace(slots=2), 0), 8: SequencePlan(), 9: SequencePlan(TERMS, 3)},
)
DOWN: list[Down] = [
    DrafterAt(4, "10.0.0.1:50", 99, DrafterUse.NO_NEW),
    ADMISSION,
    PLAN,
    Acknowledged(7, 2, 5),
    Acknowledged(8, 0, 1),
    Release(7, 2, ReleaseMode.SETTLE),
    Release(8, 0, ReleaseMode.DROP),
    KeepSequences(frozenset({(7, 2), (9, 0)})),
    Acknowledged(9, 1, 1),
]


def _down(told: Down) -> verify_pb2.ControlDown:
    return verify_pb2.ControlDown.FromString(write_down(5, [told]).SerializeToString())


def test_what_a_coordinator_tells_comes_back_in_its_sequence() -> None:
    message = verify_pb2.ControlDown.FromString(write_down(5, DOWN).SerializeToString())
    assert message.incarnation == 5
    assert len(message.orders) == 7, "those of a kind that stand together are one"
    assert read_down(message) == DOWN
    assert read_down(write_down(5, [])) == []


def test_a_plan_without_a_cap_has_none_on_the_other_side() -> None:
    (plan,) = read_down(_down(Plan(BlockTerms(PlanKind.FIXED, 3))))
    assert plan.terms.cap == NO_CAP


def _spoilt(told: Down, spoil: Callable[[Any], None]) -> verify_pb2.ControlDown:
    message = _down(told)
    kind = message.orders[0].WhichOneof("order")
    spoil(getattr(message.orders[0], str(kind)))
    return message


@pytest.mark.parametrize(
    ("field", "told", "spoil"),
    [
        ("plan.cohorts", PLAN, lambda plan: setattr(plan, "cohorts", 3)),
        ("plan.window", PLAN, lambda plan: setattr(plan, "window", 1 << 20)),
        ("plan.draft_s", PLAN, lambda plan: setattr(plan, "draft_s", float("nan"))),
        ("plan.drafter", PLAN, lambda plan: plan.drafter.append(1)),
        ("plan.own_terms: 3", PLAN, lambda plan: plan.own_terms.__setitem__(0, 3)),
        ("plan.other_terms", PLAN, lambda plan: plan.other_terms.extend([plan.terms] * 3)),
        ("plan.terms.kind", PLAN, lambda plan: setattr(plan.terms, "kind", 9)),
        ("plan.terms.slots", PLAN, lambda plan: setattr(plan.terms, "slots", 65)),
        ("plan.terms.price", PLAN, lambda plan: setattr(plan.terms, "price", float("nan"))),
        ("plan.terms.weight", PLAN, lambda plan: setattr(plan.terms, "weight", -1.0)),
        ("drafter.drafter", DOWN[0], lambda at: setattr(at, "drafter", 0)),
        ("drafter.use", DOWN[0], lambda at: setattr(at, "use", 7)),
        ("acknowledged.epoch", DOWN[3], lambda acks: acks.epoch.append(1)),
        ("acknowledged.through_round", DOWN[3], lambda acks: acks.through_round.append(1)),
        ("released.drop", DOWN[5], lambda released: released.drop.append(True)),
    ],
)
def test_a_message_that_does_not_fit_is_refused_by_field(
    field: str, told: Down, spoil: Callable[[Any], None]
) -> None:
    with pytest.raises(PeerError, match=f"^{field}"):
        read_down(_spoilt(told, spoil))


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("token_ids", lambda told: told.ClearField("token_ids")),
        ("room", lambda told: setattr(told, "room", 0)),
        ("cache_salt", lambda told: setattr(told, "cache_salt", "x" * 513)),
        ("sampling.top_p", lambda told: setattr(told.sampling, "top_p", 2.0)),
    ],
)
def test_a_sequence_that_cannot_be_taken_is_refused_by_itself(
    field: str, spoil: Callable[[Any], None]
) -> None:
    message = _spoilt(ADMISSION, spoil)
    message.orders.extend(_down(PLAN).orders)
    refused, plan = read_down(message)
    assert isinstance(refused, PrefillRefused)
    assert (refused.sequence, refused.epoch) == (7, 2)
    assert refused.refusal.reason is RefusalReason.INVALID
    assert refused.refusal.message.startswith(field)
    assert plan == PLAN


ROUNDS = [
    RoundReport(
        7, 2, 4, 30, (5, 6, 7), 2, 3, (0.5, 0.25, 0.125, 0.5), "", 4, (True, False, True), True
    ),
    RoundReport(8, 0, 1, 12, (9,), 0, 0, (), "late", 0, (False,)),
    RoundReport(9, 0, 1, 12, (3,), 1, 1, (1.0,), "", 4, (True,)),  # a stop token cut it
]
REPORT = PassReport(
    Report(12, ROUNDS),
    Timing(0.5, 0.75, 0.125, 0.25),
    18.0,
    8,
    64,
    None,
    [(ScoredToken(-0.5, (1,), (-0.25,)),) * 3, (), ()],
    np.array([[1.0, 0.5], [0.5, 0.25], [0.25, 0.0], [np.nan, np.nan]], np.float32),
    (Draws("v", 3, (3,) + (0,) * 63, -0.5, 0.4, 2, 0.1, 0.2),),
    1000,
)
SCORED = ScoredPrompt(
    np.array([-1.0, -2.0], np.float32),
    np.array([1, 5], np.uint32),
    np.array([[1], [2]], np.uint32),
    np.array([[-0.5], [-1.0]], np.float32),
)
BEGAN = PassReport(Report(0, [RoundReport(7, 2, 0, 3, (4,))]), started=PrefillStats(16, SCORED))


def _up(*news: Up) -> verify_pb2.ControlUp:
    return verify_pb2.ControlUp.FromString(write_up(3, news).SerializeToString())


def test_what_a_verifier_tells_comes_back_in_its_sequence() -> None:
    others: list[Up] = [
        Released(7, 2, 5, GoneReason.OUT_OF_PAGES),
        Released(8, 0, 0),
        Released(9, 2, 0, GoneReason.NO_PAGES, Refusal(RefusalReason.NO_PAGES, "none is left")),
        DrafterEvent(4, "late"),
        Draining(1.5),
    ]
    report, began, *rest = read_up(_up(REPORT, BEGAN, *others))
    assert rest == others
    np.testing.assert_array_equal(report.labels, REPORT.labels)
    assert report._replace(labels=None) == REPORT._replace(labels=None)
    assert began.started.prompt_logprobs.ranks.tolist() == [1, 5]
    assert (began.report, began.labels) == (BEGAN.report, None)
    assert began.started.cached_tokens == 16


def test_every_reason_to_be_gone_travels() -> None:
    for why in (None, *GoneReason):
        assert read_up(_up(Released(1, 2, 3, why))) == [Released(1, 2, 3, why)]


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("report.sequence", lambda told: told.ClearField("sequence")),
        ("report.epoch", lambda told: told.epoch.append(1)),
        ("report.round", lambda told: told.round.append(1)),
        ("report.committed_before", lambda told: told.committed_before.append(1)),
        ("report.tokens", lambda told: told.tokens.__setitem__(1, 0)),
        ("report.tokens: more", lambda told: told.accepted.__setitem__(0, 1)),
        ("report.token_ids", lambda told: told.token_ids.append(1)),
        ("report.verified", lambda told: told.verified.__setitem__(0, 1)),
        ("report.verified", lambda told: told.drafted.__setitem__(2, 0)),
        ("report.confidence", lambda told: told.confidence.append(1.0)),
        ("report.confidence: a", lambda told: told.confidence.__setitem__(0, float("nan"))),
        ("report.confidence: a", lambda told: told.confidence.__setitem__(1, -0.5)),
        ("report.confidence: a", lambda told: told.confidence.__setitem__(0, 1.5)),
        ("report.why_empty", lambda told: told.why_empty.__setitem__(0, 2)),
        ("report.drafter", lambda told: told.drafter.append(1)),
        ("report.forced", lambda told: told.forced.pop()),
        ("report.forbidden", lambda told: told.forbidden.append(True)),
        ("report.logprobs", lambda told: setattr(told.logprobs[0], "row", 3)),
        ("report.logprobs", lambda told: setattr(told.logprobs[0], "row", 1)),
        ("labels", lambda told: setattr(told, "labels", bytes(8))),
        ("labels", lambda told: setattr(told, "labels", np.full((4, 2), 2.0, "<f4").tobytes())),
        ("labels", lambda told: setattr(told, "labels", np.full((4, 2), -0.1, "<f4").tobytes())),
        ("draws.places", lambda told: told.draws[0].places.append(1)),
        ("draws.places", lambda told: setattr(told.draws[0], "slots", 4)),
        ("draws.drift", lambda told: setattr(told.draws[0], "drift", 3.5)),
        ("draws.drift", lambda told: setattr(told.draws[0], "drift", float("nan"))),
        ("draws.variance", lambda told: setattr(told.draws[0], "variance", -1.0)),
        ("draws.variance", lambda told: setattr(told.draws[0], "variance", float("inf"))),
        ("draws.luck", lambda told: setattr(told.draws[0], "luck", -2.5)),
        ("draws.luck_variance", lambda told: setattr(told.draws[0], "luck_variance", 9.0)),
        ("report.forward_s", lambda told: setattr(told, "draft_s", -1.0)),
        ("report.started", lambda told: told.started.SetInParent()),
    ],
)
def test_a_misfit_report_is_refused_by_field(field: str, spoil: Callable[[Any], None]) -> None:
    message = _up(REPORT)
    spoil(message.news[0].report)
    with pytest.raises(PeerError, match=f"^{field}"):
        read_up(message)


def test_empty_orders_and_news_break_the_protocol() -> None:
    with pytest.raises(PeerError, match=r"^orders"):
        read_down(verify_pb2.ControlDown(orders=[verify_pb2.ControlDown.Order()]))
    with pytest.raises(PeerError, match=r"^news"):
        read_up(verify_pb2.ControlUp(news=[verify_pb2.ControlUp.News()]))
    released = _up(Released(1, 2, 3))
    for why in (9, -1, -9):
        released.news[0].released.why = why
        with pytest.raises(PeerError, match=r"^released\.why"):
            read_up(released)


def test_an_answer_may_not_grow_beyond_what_its_admission_announces() -> None:
    longer = ADMISSION._replace(admit=ADMISSION.admit._replace(room=21))
    (refused,) = read_down(_down(longer))
    assert refused.refusal.message.startswith("room: 3 token_ids and 21 more exceed")


def test_an_order_of_many_short_sequences_is_taken() -> None:
    count, each = 2048, OrderTimeouts().inline_rows
    asked = [OrderRow(row + 1, 0, 1, each + 1, 9, 5, 0) for row in range(count)]
    rows = orders.PackedRows("bfloat16", count * each, 1, bytes(2 * count * each))
    first, *_ = orders.write_order(4, asked, [each] * count, [5] * (count * each), rows)
    assert sum(orders.read_order(first.order).rows) == count * each


def test_rows_travel_with_their_order_and_in_parts_behind_it() -> None:
    asked = [OrderRow(1, 0, 3, 201, 9, 5, 1), OrderRow(2, 1, 0, 5, 8, 2, 4)]
    counts, ids, width = [199, 0], list(range(199)), 4096
    data = np.arange(199 * width, dtype="<u2").tobytes()
    features = orders.PackedRows("bfloat16", 199, width, data)
    masks = [b"", b"\x01\x80" * 2]
    first, *rest = orders.write_order(4, asked, counts, ids, features, masks)
    order = orders.read_order(draft_pb2.Order.FromString(first.order.SerializeToString()))
    assert (order.number, order.rows, order.token_ids) == (4, counts, ids)
    assert (order.sequences, order.epochs) == ([1, 2], [0, 1])
    assert (order.rounds, order.committed_lens) == ([3, 0], [201, 5])
    assert (order.anchors, order.slots, order.masks) == ([9, 8], [5, 2], masks)
    parts = [first.order.features, *(message.rows.features for message in rest)]
    assert len(parts) == 7
    assert all(len(part.data) <= orders.PART for part in parts)
    assert b"".join(part.data for part in parts) == data
    assert sum(part.shape[0] for part in parts) == 199
    assert all(message.rows.order == 4 for message in rest)
