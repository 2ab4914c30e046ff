"""A real verifier and a real drafter over loopback: features go straight, and the loop equals the oracles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker_stream import GREEDY, DraftStream, VerifyStream, draft_item, drafter, until, verifier, verify_item

from dspark.decoding.reference import RecordedRound, replay
from dspark.model.checkpoint import load_target
from dspark.types import Cursor, Law, Rule, Verdict
from dspark.wire import codec
from dspark.wire.v1 import types_pb2, verify_pb2

pytestmark = pytest.mark.services

PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77]


def greedy_alone(path: Path, prompt: list[int], count: int) -> list[int]:
    """Plain greedy decoding with the library's own forward."""
    model = load_target(path).model
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


async def run_rounds(
    verify: VerifyStream, draft: DraftStream, sink: types_pb2.FeatureSink, law: Law, count: int, *, sequence: int = 9
) -> tuple[list[int], list[RecordedRound]]:
    """The coordinator's loop with full verification; tokens after the prompt, and the choices made."""
    cursor = Cursor(sequence, 1, 0, len(PROMPT))
    assert not (await draft.open(cursor, 200, law)).HasField("refusal")
    prefilled = await verify.prefill(cursor, PROMPT, law, sink=sink)
    assert not prefilled.HasField("refusal"), prefilled.refusal
    tokens, rounds = [prefilled.anchor], []
    while len(tokens) < count:
        cursor = Cursor(sequence, 1, len(rounds) + 1, len(PROMPT) + len(tokens))
        block = (await draft.draft(draft_item(cursor, tokens[-1]))).items[0]
        assert block.token_ids, block.empty_reason
        verdicts = await verify.verify(verify_item(cursor, tokens[-1], block.token_ids, block.q, sink))
        verdict = verdicts.items[0]
        assert isinstance(verdict, Verdict), verdict
        kept = list(block.token_ids[: verdict.accepted])
        rounds.append(
            RecordedRound(
                cursor.anchor_position, block.token_ids, block.q, len(block.token_ids), verdict.accepted,
                verdict.next_token,
            )
        )  # fmt: skip
        tokens += [*kept, verdict.next_token]
        assert verdict.features_through == len(PROMPT) + len(tokens) - 1
    return tokens, rounds


async def test_the_loop_at_temperature_0_equals_plain_greedy_decoding(
    golden_target: Path, golden_drafter: Path
) -> None:
    async with verifier(golden_target, golden_drafter) as v, drafter(golden_drafter) as d:
        verify, draft = VerifyStream(v.endpoint), DraftStream(d.endpoint)
        sink = types_pb2.FeatureSink(endpoint=d.endpoint, incarnation=d.incarnation)
        tokens, rounds = await run_rounds(verify, draft, sink, GREEDY, 60)
        assert tokens[:60] == greedy_alone(golden_target, PROMPT, 60)
        assert sum(r.accepted for r in rounds) > 0, "the golden drafter is trained: some drafts must be accepted"

        # Feature payload: one bf16 row of H values per prompt and committed token, nothing for rejected ones.
        rows = len(PROMPT) + len(tokens) - 1
        await until(lambda: d.metrics.value("feature_rows_total", direction="received") == rows)
        assert v.metrics.value("feature_rows_total", direction="sent") == rows
        assert v.metrics.value("bytes_total", direction="sent", kind="features") == rows * 2 * 64

        await draft.end()
        await verify.end()
        await until(lambda: v.engine.held.pages_held == 0 and d.engine.held.pages_held == 0)
        assert (v.engine.held.sequences, d.engine.held.sequences) == (0, 0)


async def test_the_loop_at_temperature_1_equals_the_oracle_that_replays_its_choices(
    golden_target: Path, golden_drafter: Path
) -> None:
    law = Law(temperature=1.0, top_p=0.9, seed=42, rule=Rule.TOKEN)
    async with verifier(golden_target, golden_drafter, prefill_chunk=4) as v, drafter(golden_drafter) as d:
        verify, draft = VerifyStream(v.endpoint), DraftStream(d.endpoint)
        sink = types_pb2.FeatureSink(endpoint=d.endpoint, incarnation=d.incarnation)
        tokens, rounds = await run_rounds(verify, draft, sink, law, 40)
        model = load_target(golden_target).model

        def target(ids, rows):  # type: ignore[no-untyped-def]
            with torch.inference_mode():
                return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -rows:]

        assert list(replay(PROMPT, target, rounds, law, max_tokens=len(tokens))) == tokens
        assert 0 < sum(r.accepted for r in rounds) < sum(r.prefix for r in rounds)
        await draft.end()
        await verify.end()


async def test_a_new_drafter_is_filled_by_a_resend_and_drafts_the_same(
    golden_target: Path, golden_drafter: Path
) -> None:
    async with verifier(golden_target, golden_drafter) as v, drafter(golden_drafter) as d, drafter(golden_drafter) as e:
        verify, draft, other = VerifyStream(v.endpoint), DraftStream(d.endpoint), DraftStream(e.endpoint)
        sink = types_pb2.FeatureSink(endpoint=d.endpoint, incarnation=d.incarnation)
        tokens, rounds = await run_rounds(verify, draft, sink, GREEDY, 20)
        cursor = Cursor(9, 1, len(rounds) + 1, len(PROMPT) + len(tokens))
        await other.open(cursor, 200)
        early = await other.draft(draft_item(cursor, tokens[-1]), wait_us=1000)
        assert (list(early.items[0].token_ids), early.items[0].empty_reason, early.items[0].watermark) == ([], 1, 0)
        resend = verify_pb2.Resend(
            cursor=codec.write_cursor(cursor),
            sink=types_pb2.FeatureSink(endpoint=e.endpoint, incarnation=e.incarnation),
        )
        resent = (await verify.ask(resend=resend)).resent
        assert resent.rows == cursor.committed_len - 1
        first = (await draft.draft(draft_item(cursor, tokens[-1]))).items[0]
        second = (await other.draft(draft_item(cursor, tokens[-1]), wait_us=10_000_000)).items[0]
        assert list(first.token_ids) == list(second.token_ids)
        assert second.watermark == cursor.committed_len - 1
        for stream in (verify, draft, other):
            await stream.end()
