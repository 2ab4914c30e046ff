"""Replies become dataclasses as their annotations say."""

from dspark.client import EndedAnswer, RoundExplanation, Timings
from dspark.client.events import Finished, read_event
from dspark.client.fields import copied
from dspark.wire.v1 import control_pb2, generate_pb2


def test_a_round_is_read_with_its_slots_its_words_and_what_is_absent() -> None:
    slot = control_pb2.SlotExplanation(fate=control_pb2.FATE_ACCEPTED, token_id=0, survival=0.5)
    told = control_pb2.RoundExplanation(
        slots=[slot, control_pb2.SlotExplanation(fate=control_pb2.FATE_VOID)],
        origins=[control_pb2.ORIGIN_DRAFTED, 99],
        why=control_pb2.PREFIX_END_PRICE,
        late=["draft/1"],
    )
    found = copied(RoundExplanation, told)
    assert [(one.fate, one.token_id) for one in found.slots] == [("accepted", 0), ("void", None)]
    assert found.origins == ("drafted", "unknown"), "a newer server may say more"
    assert (found.why, found.price, found.late) == ("price", None, ("draft/1",))


def test_what_is_given_is_not_copied() -> None:
    told = control_pb2.EndedAnswer(request_id="r", verified_histogram=[1, 2])
    found = copied(EndedAnswer, told, request_id="mine")
    assert (found.request_id, found.verified_histogram) == ("mine", (1, 2))


def test_an_end_is_read_with_what_it_matched_if_anything() -> None:
    def read(**matched: int | str) -> Finished:
        end = generate_pb2.GenerateComplete(finish_reason="FINISH_REASON_STOP", **matched)
        end.timings.total_ms = 2.0
        end.choices.add(index=1, matched_stop_str="b")
        return read_event(generate_pb2.GenerateResponse(complete=end))

    assert [read().matched_stop, read(matched_token_id=0).matched_stop] == [None, 0]
    found = read(matched_stop_str="a")
    assert (found.finish_reason, found.matched_stop) == ("stop", "a")
    assert found.timings == Timings(0.0, 0.0, 0.0, 2.0)
    assert [(one.index, one.matched_stop) for one in found.choices] == [(1, "b")]
