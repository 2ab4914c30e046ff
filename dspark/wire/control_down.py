"""Codec of what a coordinator sends to the rounds of a verifier (`dspark.rounds.control`). Without
torch.

Orders keep their sequence; adjacent ones of a kind share columns. An invalid admission is refused
by itself; any other invalid field breaks the protocol: PeerError names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

from dspark.errors import PeerError
from dspark.rounds.control import Admission, Down, DrafterAt, DrafterUse
from dspark.rounds.events import (
    Acknowledged,
    Admit,
    KeepSequences,
    PrefillRefused,
    Release,
    ReleaseMode,
)
from dspark.rounds.plan import MAX_SLOTS, NO_CAP, BlockTerms, Plan, PlanKind, SequencePlan
from dspark.types import Refusal, RefusalReason
from dspark.wire import codec
from dspark.wire.cohorts import MAX_ROWS, fit
from dspark.wire.v1 import types_pb2, verify_pb2

MAX_WINDOW = 1 << 16
MAX_SALT = 512
MAX_STOP_IDS = 1 << 16

_Order = verify_pb2.ControlDown.Order


def write_down(incarnation: int, orders: Sequence[Down]) -> verify_pb2.ControlDown:
    """Writes orders. incarnation: the verifier process they are meant for."""
    written: list[verify_pb2.ControlDown.Order] = []
    for kind, alike in groupby(orders, type):
        if kind is Acknowledged:
            written.append(_acknowledged(cast("list[Acknowledged]", list(alike))))
        elif kind is Release:
            written.append(_released(cast("list[Release]", list(alike))))
        else:
            written += [_SINGLE[kind](each) for each in alike]
    return verify_pb2.ControlDown(incarnation=incarnation, orders=written)


def read_down(message: verify_pb2.ControlDown) -> list[Down | PrefillRefused]:
    """Reads the orders, in their sequence; an invalid admission becomes a PrefillRefused."""
    told: list[Down | PrefillRefused] = []
    for order in message.orders:
        match order.WhichOneof("order"):
            case "admission":
                told.append(_read_admission(order.admission))
            case "drafter":
                told.append(_read_drafter(order.drafter))
            case "plan":
                told.append(_read_plan(order.plan))
            case "acknowledged":
                told += _read_acknowledged(order.acknowledged)
            case "released":
                told += _read_released(order.released)
            case "kept":
                told.append(_read_kept(order.kept))
            case _:
                raise PeerError("orders: one is empty")
    return told


# Sequences.


def _admission(told: Admission) -> verify_pb2.ControlDown.Order:
    admit = told.admit
    message = verify_pb2.Admission(
        sequence=admit.sequence,
        epoch=admit.epoch,
        token_ids=told.token_ids,
        sampling=codec.write_sampling(told.params),
        room=admit.room,
        stop_ids=sorted(admit.stop_ids),
        longest=told.longest,
        keep_rows=told.keep_rows,
        cache_salt=told.cache_salt,
        prompt_logprobs=told.prompt_logprobs,
        drafter=admit.drafter,
        repeatable=told.repeatable,
    )
    return _Order(admission=message)


def _read_admission(message: verify_pb2.Admission) -> Admission | PrefillRefused:
    ids = message.token_ids[:]
    try:
        params = codec.read_sampling(message.sampling)
        if not ids:
            raise PeerError("token_ids: empty")
        if len(message.cache_salt) > MAX_SALT:
            raise PeerError(
                f"cache_salt: {len(message.cache_salt)} characters, at most {MAX_SALT} are taken"
            )
        if len(message.stop_ids) > MAX_STOP_IDS:
            raise PeerError(
                f"stop_ids: {len(message.stop_ids)} are over the limit of {MAX_STOP_IDS}"
            )
        if message.room < 1:
            raise PeerError("room: an answer needs room for a token")
        if len(ids) + message.room > message.longest:
            raise PeerError(
                f"room: {len(ids)} token_ids and {message.room} more exceed the announced "
                f"{message.longest}"
            )
    except PeerError as error:
        refusal = Refusal(RefusalReason.INVALID, str(error))
        return PrefillRefused(message.sequence, message.epoch, refusal)
    stops = frozenset(message.stop_ids)
    admit = Admit(message.sequence, message.epoch, len(ids), message.room, stops, message.drafter)
    scores = message.prompt_logprobs if message.HasField("prompt_logprobs") else None
    kept = (message.keep_rows, message.cache_salt, scores, message.repeatable)
    return Admission(admit, ids, params, message.longest, *kept)


def _acknowledged(told: Sequence[Acknowledged]) -> verify_pb2.ControlDown.Order:
    sequence, epoch, through = zip(*told, strict=True)
    columns = verify_pb2.Acknowledgements(sequence=sequence, epoch=epoch, through_round=through)
    return _Order(acknowledged=columns)


def _read_acknowledged(message: verify_pb2.Acknowledgements) -> Iterator[Acknowledged]:
    count = _rows(message, "acknowledged")
    fit(count, of="acknowledged.", epoch=message.epoch, through_round=message.through_round)
    return map(Acknowledged, message.sequence[:], message.epoch[:], message.through_round[:])


def _released(told: Sequence[Release]) -> verify_pb2.ControlDown.Order:
    sequence, epoch, how = zip(*told, strict=True)
    columns = verify_pb2.Releases(
        sequence=sequence, epoch=epoch, drop=[each is ReleaseMode.DROP for each in how]
    )
    return _Order(released=columns)


def _read_released(message: verify_pb2.Releases) -> Iterator[Release]:
    count = _rows(message, "released")
    fit(count, of="released.", epoch=message.epoch, drop=message.drop)
    how = [ReleaseMode.DROP if drop else ReleaseMode.SETTLE for drop in message.drop]
    return map(Release, message.sequence[:], message.epoch[:], how)


def _kept(told: KeepSequences) -> verify_pb2.ControlDown.Order:
    wanted = sorted(told.wanted)
    columns = verify_pb2.Kept(sequence=[at[0] for at in wanted], epoch=[at[1] for at in wanted])
    return _Order(kept=columns)


def _read_kept(message: verify_pb2.Kept) -> KeepSequences:
    count = _rows(message, "kept")
    fit(count, of="kept.", epoch=message.epoch)
    return KeepSequences(frozenset(zip(message.sequence, message.epoch, strict=True)))


def _rows(message: Any, name: str) -> int:
    count = len(message.sequence)
    if count > MAX_ROWS:
        raise PeerError(f"{name}.sequence: {count} are over the limit of {MAX_ROWS}")
    return count


# Drafters and plans.


def _drafter(told: DrafterAt) -> verify_pb2.ControlDown.Order:
    at = types_pb2.FeatureSink(endpoint=told.endpoint, incarnation=told.incarnation)
    use = cast("verify_pb2.DrafterAt.Use", int(told.use))
    return _Order(drafter=verify_pb2.DrafterAt(drafter=told.drafter, at=at, use=use))


def _read_drafter(message: verify_pb2.DrafterAt) -> DrafterAt:
    if message.drafter < 1:
        raise PeerError("drafter.drafter: must be 1 or more")
    try:
        use = DrafterUse(message.use)
    except ValueError:
        raise PeerError(f"drafter.use: {message.use} is no use") from None
    return DrafterAt(message.drafter, message.at.endpoint, message.at.incarnation, use)


def _plan(plan: Plan) -> verify_pb2.ControlDown.Order:
    places: dict[BlockTerms, int] = {}
    own = list(plan.sequences.values())
    return _Order(
        plan=verify_pb2.RoundPlan(
            terms=_terms(plan.terms),
            cohorts=plan.cohorts,
            window=plan.window,
            draft_s=plan.draft_s,
            sequence=plan.sequences.keys(),
            drafter=[0 if each.drafter is None else 1 + each.drafter for each in own],
            own_terms=[
                0 if each.terms is None else places.setdefault(each.terms, len(places) + 1)
                for each in own
            ],
            other_terms=list(map(_terms, places)),
        )
    )


def _terms(terms: BlockTerms) -> verify_pb2.RoundPlan.Terms:
    kind = cast("verify_pb2.RoundPlan.Kind", int(terms.kind))
    return verify_pb2.RoundPlan.Terms(
        kind=kind, slots=terms.slots, price=terms.price, weight=terms.weight, cap=terms.cap
    )


def _read_plan(message: verify_pb2.RoundPlan) -> Plan:
    count = _rows(message, "plan")
    fit(count, of="plan.", drafter=message.drafter, own_terms=message.own_terms)
    if message.cohorts not in (1, 2):
        raise PeerError(f"plan.cohorts: {message.cohorts} is not 1 or 2")
    if message.window > MAX_WINDOW:
        raise PeerError(f"plan.window: {message.window} is over the limit of {MAX_WINDOW}")
    if not 0.0 <= message.draft_s < math.inf:
        raise PeerError("plan.draft_s: must be finite and not negative")
    if len(message.other_terms) > count:
        raise PeerError(f"plan.other_terms: {len(message.other_terms)} for {count} sequences")
    others = [None, *map(_read_terms, message.other_terms)]
    if count and max(message.own_terms) >= len(others):
        raise PeerError(
            f"plan.own_terms: {max(message.own_terms)} of {len(others) - 1} other_terms"
        )
    terms = [others[place] for place in message.own_terms]
    drafters = [drafter - 1 if drafter else None for drafter in message.drafter]
    own = map(SequencePlan, terms, drafters)
    return Plan(
        terms=_read_terms(message.terms),
        cohorts=message.cohorts,
        window=message.window,
        draft_s=message.draft_s,
        sequences=dict(zip(message.sequence[:], own, strict=True)),
    )


def _read_terms(message: verify_pb2.RoundPlan.Terms) -> BlockTerms:
    try:
        kind = PlanKind(message.kind)
    except ValueError:
        raise PeerError(f"plan.terms.kind: {message.kind} is no kind") from None
    if message.slots > MAX_SLOTS:
        raise PeerError(f"plan.terms.slots: {message.slots} are over the limit of {MAX_SLOTS}")
    if math.isnan(message.price):
        raise PeerError("plan.terms.price: is not a number")
    if not 0.0 <= message.weight < math.inf:
        raise PeerError("plan.terms.weight: must be finite and not negative")
    return BlockTerms(kind, message.slots, message.price, message.weight, min(message.cap, NO_CAP))


_SINGLE: dict[type, Callable[[Any], verify_pb2.ControlDown.Order]] = {
    Admission: _admission,
    DrafterAt: _drafter,
    Plan: _plan,
    KeepSequences: _kept,
}
