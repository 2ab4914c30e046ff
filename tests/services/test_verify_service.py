"""A verifier over loopback: cursors, replays, refusals that leave neighbours alone, pages that all come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worker_stream import GREEDY, VerifyStream, until, verifier, verify_cohort, verify_item

from dspark.model.checkpoint import load_target
from dspark.types import NO_Q, Cursor, Law, RefusalReason, Rule, SparseQ
from dspark.wire import codec
from dspark.wire.v1 import types_pb2, verify_pb2

pytestmark = pytest.mark.services

PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77]


def continuation(path: Path, prompt: list[int], count: int) -> list[int]:
    model = load_target(path).model
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


async def test_a_repeated_round_gets_the_same_verdict_and_anything_else_is_stale(golden_target: Path) -> None:
    async with verifier(golden_target) as v:
        stream = VerifyStream(v.endpoint)
        expected = continuation(golden_target, PROMPT, 8)
        start = Cursor(1, 3, 0, len(PROMPT))
        assert (await stream.prefill(start, PROMPT)).anchor == expected[0]
        first = Cursor(1, 3, 1, len(PROMPT) + 1)
        item = verify_item(first, expected[0], [expected[1], expected[2], 99])
        verdict = (await stream.verify(item)).items[0]
        assert (verdict.accepted, verdict.next_token) == (2, expected[3])
        again = (await stream.verify(item)).items[0]
        assert again == verdict
        assert v.metrics.value("replayed_verdicts_total") == 1

        length = len(PROMPT) + 4
        for cursor, anchor in (
            (Cursor(1, 3, 2, length - 1), expected[2]),  # another length
            (Cursor(1, 3, 1, length), expected[3]),  # a round that is over
            (Cursor(1, 3, 2, length), expected[2]),  # another anchor
            (Cursor(1, 2, 2, length), expected[3]),  # an older epoch
        ):
            refusal = (await stream.verify(verify_item(cursor, anchor))).items[0]
            assert (refusal.reason, refusal.committed_len) == (RefusalReason.STALE_CURSOR, length)
        newer = (await stream.verify(verify_item(Cursor(1, 4, 2, length), expected[3]))).items[0]
        assert newer.reason == RefusalReason.UNKNOWN_SEQUENCE
        fine = (await stream.verify(verify_item(Cursor(1, 3, 2, length), expected[3]))).items[0]
        assert fine.next_token == expected[4]
        await stream.end()


async def test_malformed_rows_are_refused_by_field_and_their_neighbours_judged_as_ever(golden_target: Path) -> None:
    async with verifier(golden_target) as v:
        stream = VerifyStream(v.endpoint)
        expected = continuation(golden_target, PROMPT, 6)
        for sequence in range(12):
            await stream.prefill(Cursor(sequence, 1, 0, len(PROMPT)), PROMPT, reserve=24)

        def at(sequence: int) -> Cursor:
            return Cursor(sequence, 1, 1, len(PROMPT) + 1)

        def q(ids: list[list[int]], probs: list[list[float]]) -> SparseQ:
            return SparseQ.of(np.array(ids, np.uint32), np.array(probs, np.float32))

        anchor, draft = expected[0], expected[1:4]
        bad = [
            (verify_item(at(1), anchor, [128]), "draft_ids"),
            (verify_item(at(2), anchor, [5], q([[5, 5]], [[0.5, 0.5]])), "q_ids"),
            (verify_item(at(3), anchor, [5], q([[5, 6]], [[float("nan"), 0.5]])), "q_probs"),
            (verify_item(at(4), anchor, [5], q([[6, 7]], [[0.5, 0.5]])), "draft_ids"),
            (verify_item(at(5), anchor, [5], q([[5, 6]], [[-0.5, 1.5]])), "q_probs"),
            (verify_item(at(6), anchor, [5], NO_Q), "q_entries"),
            (verify_item(at(7), anchor, [5] * 30), "draft_ids"),  # more than was reserved
            (verify_item(at(8), anchor, [5], q([[5, 6]], [[0.9, 0.9]])), "q_probs"),
        ]
        good = [verify_item(at(s), anchor, draft) for s in (0, 9, 10)]
        twice = verify_item(at(0), anchor, draft)
        verdicts = await stream.verify(good[0], *(item for item, _ in bad), good[1], good[2], twice)
        for verdict, (_, field) in zip(verdicts.items[1:9], bad, strict=True):
            assert verdict.reason == RefusalReason.INVALID
            assert verdict.message.startswith(field), verdict.message
        assert verdicts.items[11].reason == RefusalReason.INVALID
        for verdict in (verdicts.items[0], verdicts.items[9], verdicts.items[10]):
            assert (verdict.accepted, verdict.next_token) == (3, expected[4]), verdict
        # A refused row stands where it stood.
        after = (await stream.verify(verify_item(at(3), anchor, draft))).items[0]
        assert (after.accepted, after.next_token) == (3, expected[4])
        await stream.end()


async def test_a_cohort_whose_columns_do_not_fit_is_refused_by_field_and_leaves_everybody_where_they_stood(
    golden_target: Path,
) -> None:
    async with verifier(golden_target) as v:
        stream = VerifyStream(v.endpoint)
        expected = continuation(golden_target, PROMPT, 6)
        await stream.prefill(Cursor(1, 1, 0, len(PROMPT)), PROMPT)
        item = verify_item(Cursor(1, 1, 1, len(PROMPT) + 1), expected[0], expected[1:4])

        async def refused(**fields: Any) -> str:
            cohort = verify_cohort(item)
            for name, value in fields.items():
                cohort.ClearField(name)  # type: ignore[arg-type]
                if isinstance(value, list):
                    getattr(cohort, name).extend(value)
                else:
                    setattr(cohort, name, value)
            verdicts = (await stream.ask(verify=cohort)).verdicts
            assert verdicts.refusal.reason == RefusalReason.INVALID
            return str(verdicts.refusal.message)

        assert (await refused(anchors=[])).startswith("anchors")
        assert (await refused(lengths=[3, 0])).startswith("lengths")
        assert (await refused(lengths=[2])).startswith("draft_ids")
        assert (await refused(q_entries=[2])).startswith("q_ids")
        assert (await refused(q_probs=b"\0" * 11)).startswith("q_probs")
        assert (await refused(source=[2])).startswith("source")
        verdict = (await stream.verify(item)).items[0]
        assert (verdict.accepted, verdict.next_token) == (3, expected[4])
        await stream.end()


async def test_prefills_that_cannot_be_are_refused_before_anything_is_held(golden_target: Path) -> None:
    async with verifier(golden_target, kv_tokens=64) as v:
        stream = VerifyStream(v.endpoint)

        async def reason(cursor: Cursor, ids: list[int], law: Law = GREEDY, reserve: int = 30) -> int:
            return (await stream.prefill(cursor, ids, law, reserve=reserve)).refusal.reason

        fit = Cursor(1, 1, 0, 3)
        assert await reason(fit, []) == RefusalReason.INVALID
        assert await reason(fit, [1, 2]) == RefusalReason.INVALID
        assert await reason(fit, [1, 2, 128]) == RefusalReason.INVALID
        assert await reason(fit, [1, 2, 3], reserve=3) == RefusalReason.INVALID
        assert await reason(fit, [1, 2, 3], reserve=1 << 30) == RefusalReason.INVALID
        assert await reason(fit, [1, 2, 3], Law(temperature=float("nan"))) == RefusalReason.INVALID
        assert await reason(fit, [1, 2, 3], Law(temperature=1.0, top_p=0.0)) == RefusalReason.INVALID
        assert v.engine.held.pages_held == 0
        long = list(range(40))
        assert await reason(Cursor(1, 1, 0, 40), long, reserve=60) == 0
        assert v.engine.held.pages_held == 3, "pages of the prompt, not of the whole life"
        assert await reason(Cursor(2, 1, 0, 3), [1, 2, 3]) == RefusalReason.NO_PAGES, "the first may need one more"
        assert await reason(Cursor(1, 1, 0, 3), [1, 2, 3]) == RefusalReason.STALE_CURSOR
        # A hand-over: a higher epoch takes the place of the lower one, with the tokens it brings.
        assert await reason(Cursor(1, 2, 0, 41), [*long, 4], reserve=60) == 0
        assert (v.engine.held.sequences, v.engine.held.pages_held) == (1, 3)
        assert await stream.release(1, 1) == 0, "an older epoch frees nothing"
        assert await stream.release(1, 2) == 1
        assert await stream.release(77, 9) == 0
        assert v.engine.held.pages_held == 0
        await stream.end()


async def test_a_session_that_breaks_frees_what_it_opened_and_nothing_else(golden_target: Path) -> None:
    async with verifier(golden_target, prefill_chunk=2) as v:
        one, other = VerifyStream(v.endpoint), VerifyStream(v.endpoint)
        await one.prefill(Cursor(1, 1, 0, len(PROMPT)), PROMPT)
        kept = await other.prefill(Cursor(2, 1, 0, len(PROMPT)), PROMPT)
        # The connection goes in the middle of a long prefill.
        long = [n % 100 + 2 for n in range(300)]
        command = verify_pb2.Prefill(
            cursor=codec.write_cursor(Cursor(3, 1, 0, 300)),
            token_ids=long,
            law=codec.write_law(GREEDY),
            reserve_tokens=400,
        )
        await one._call.write(verify_pb2.VerifyCommand(tag=99, prefill=command))
        await until(lambda: v.engine.held.sequences == 3)
        one._call.cancel()
        await until(lambda: v.engine.held.sequences == 1)
        verdict = (await other.verify(verify_item(Cursor(2, 1, 1, len(PROMPT) + 1), kept.anchor))).items[0]
        assert verdict.next_token == continuation(golden_target, PROMPT, 2)[1]
        await other.end()
        await until(lambda: v.engine.held.pages_held == 0)


async def test_a_command_for_another_process_is_refused(golden_target: Path) -> None:
    async with verifier(golden_target) as v:
        stream = VerifyStream(v.endpoint)
        cohort = verify_cohort(verify_item(Cursor(1, 1, 1, 5), 3))
        event = await stream.ask(incarnation=v.incarnation + 1, verify=cohort)
        assert event.incarnation == v.incarnation
        assert event.verdicts.refusal.reason == RefusalReason.WRONG_INCARNATION
        await stream.end()


async def test_a_sink_that_is_not_there_costs_rows_and_nothing_else(golden_target: Path, golden_drafter: Path) -> None:
    async with verifier(golden_target, golden_drafter) as v:
        stream = VerifyStream(v.endpoint)
        nowhere = types_pb2.FeatureSink(endpoint="127.0.0.1:9", incarnation=5)
        prefilled = await stream.prefill(Cursor(1, 1, 0, len(PROMPT)), PROMPT, sink=nowhere)
        tokens = [prefilled.anchor]
        for number in range(1, 6):
            item = verify_item(Cursor(1, 1, number, len(PROMPT) + number), tokens[-1], sink=nowhere)
            tokens.append((await stream.verify(item)).items[0].next_token)
        assert tokens == continuation(golden_target, PROMPT, 6)
        await until(
            lambda: (
                v.metrics.value("dropped_total", kind="feature_rows", reason="broken")
                + v.metrics.value("dropped_total", kind="feature_rows", reason="unacknowledged")
                >= len(PROMPT)
            )
        )
        await stream.end()


async def test_per_request_caches_give_the_same_tokens(golden_target: Path, golden_drafter: Path) -> None:
    expected = continuation(golden_target, PROMPT, 8)
    async with verifier(golden_target, golden_drafter, attention="stateful", prefill_chunk=4) as v:
        stream = VerifyStream(v.endpoint)
        described = await stream.stub.Describe(types_pb2.DescribeRequest())
        assert described.attention_path == "stateful"
        for sequence in (1, 2):
            await stream.prefill(Cursor(sequence, 1, 0, len(PROMPT)), PROMPT)
        wrong = [expected[1], (expected[2] + 1) % 128, 7]
        items = [verify_item(Cursor(s, 1, 1, len(PROMPT) + 1), expected[0], wrong) for s in (1, 2)]
        assert [(x.accepted, x.next_token) for x in (await stream.verify(*items)).items] == [(1, expected[2])] * 2
        items = [verify_item(Cursor(s, 1, 2, len(PROMPT) + 3), expected[2], expected[3:6]) for s in (1, 2)]
        assert [(x.accepted, x.next_token) for x in (await stream.verify(*items)).items] == [(3, expected[6])] * 2
        await stream.end()


async def test_what_it_says_of_itself_and_the_stored_cost_curve(golden_target: Path, golden_drafter: Path) -> None:
    settings = {"measure_cost": True, "cost_max_tokens": 4, "kv_tokens": 4096}
    async with verifier(golden_target, golden_drafter, **settings) as v:
        stream = VerifyStream(v.endpoint)
        said = await stream.stub.Describe(types_pb2.DescribeRequest())
        assert (said.incarnation, said.vocab_size, said.hidden_size) == (v.incarnation, 128, 64)
        assert (said.attention_path, said.feature_dtype, said.dtype) == ("paged", "bfloat16", "float32")
        assert list(said.stop_token_ids) == [1]
        assert len(said.fingerprint) == 16
        assert said.projection.startswith("dspark:0,1,2,3,4:")
        curve = codec.read_cost(said.cost)
        assert curve is not None
        assert (said.cost.source, list(curve[0]), list(curve[1])) == ("measured", [1, 2, 3, 4], [128])
        assert v.engine.held.pages_held == 0, "what was held for timing is given back"
        await stream.end()
    async with verifier(golden_target, golden_drafter, **settings) as v:
        stream = VerifyStream(v.endpoint)
        said = await stream.stub.Describe(types_pb2.DescribeRequest())
        assert said.cost.source == "stored"
        np.testing.assert_array_equal(codec.read_cost(said.cost)[2], curve[2])  # type: ignore[index]
        await stream.end()


async def test_a_coupled_sequence_takes_drafts_without_distributions_and_refuses_them_with(golden_target: Path) -> None:
    async with verifier(golden_target) as v:
        stream = VerifyStream(v.endpoint)
        law, fit = Law(seed=7, rule=Rule.COUPLED), Cursor(1, 1, 0, len(PROMPT))
        anchor = (await stream.prefill(fit, PROMPT, law)).anchor
        at = Cursor(1, 1, 1, len(PROMPT) + 1)
        refused = (await stream.verify(verify_item(at, anchor, [5]))).items[0]
        assert refused.reason == RefusalReason.INVALID
        assert refused.message.startswith("q_entries")
        own = (await stream.verify(verify_item(at, anchor))).items[0].next_token
        again = await stream.prefill(Cursor(2, 1, 0, len(PROMPT)), PROMPT, law)
        assert again.anchor == anchor
        drafted = verify_item(Cursor(2, 1, 1, len(PROMPT) + 1), anchor, [own], NO_Q)
        verdict = (await stream.verify(drafted)).items[0]
        assert verdict.accepted == 1, "the draft said what plain decoding with this noise says"
        await stream.end()
