"""Spans of a request tell what happened to it: the same rounds, in order, inside each other, under
its caller's."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from coordinator.watching.tracing import MOST_TRACED, Tracing
from tests.fakes import read
from tests.rounds_cell import RoundsCell

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-1] + "0"


class Traced:
    def __init__(self, share: float = 0.0, **settings: Any) -> None:
        self.cell = RoundsCell(bypass=False, **settings)
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        cell = self.cell
        cell.metrics.model_name = lambda: "a-model"
        self.tracing = Tracing(provider, share, cell.explain, cell.clock, cell.metrics)
        cell.admission.tracing = self.tracing

    def spans(self, name: str = "") -> list[Any]:
        return [span for span in self._kept.get_finished_spans() if not name or span.name == name]


async def _answer(traced: Traced, **asked: object) -> list[int]:
    state = traced.cell.ask(**asked)
    await traced.cell.finish(state)
    tokens = await read(state)
    await asyncio.sleep(0.01)
    return tokens


async def test_a_request_under_a_caller_s_trace_is_told_whole() -> None:
    traced = Traced()
    tokens = await _answer(
        traced, max_tokens=12, policy="fixed:2", traceparent=CALLER, label="code"
    )
    (root,) = traced.spans("generate")
    assert f"{root.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{root.parent.span_id:016x}" == CALLER.split("-")[2]
    assert root.attributes["gen_ai.usage.output_tokens"] == len(tokens) == 12
    assert root.attributes["dspark.label"] == "code"
    assert root.attributes["gen_ai.request.model"] == "a-model"
    rounds = traced.spans("round")
    assert len(rounds) == root.attributes["dspark.spec.rounds"], "the last round too"
    assert 1 + sum(each.attributes["dspark.spec.committed"] for each in rounds) == len(tokens)
    assert {
        each.parent.span_id
        for each in (*rounds, *traced.spans("admission"), *traced.spans("prefill"))
    } == {root.context.span_id}
    passes = {each.parent.span_id: each for each in traced.spans("verify")}
    drafts = traced.spans("draft")
    assert drafts
    assert all(each.end_time <= passes[each.parent.span_id].start_time for each in drafts)
    for span in traced.spans():
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time


async def test_spans_say_what_the_rounds_say_and_take_as_long() -> None:
    traced = Traced(max_running=1)
    traced.cell.ask()  # which it waits for
    with traced.cell.explain.request("r2") as watch:
        state = traced.cell.ask(max_tokens=12, policy="threshold:0.95", traceparent=CALLER)
        await traced.cell.finish(state)
        parts = watch.taken()
    await asyncio.sleep(0.01)
    (root,), (admission,), (prefill,) = map(traced.spans, ("generate", "admission", "prefill"))
    assert root.attributes["gen_ai.usage.input_tokens"] == len(state.request.prompt)
    stats, begin = state.stats, root.start_time
    assert (admission.start_time, prefill.start_time) == (begin, admission.end_time)
    took = [1e-9 * (span.end_time - begin) for span in (admission, prefill, root)]
    assert took == pytest.approx([stats.queue_s(), stats.first_token_s(), stats.total_s()])
    inner = {
        (each.name, each.parent.span_id): dict(each.attributes)
        for name in ("draft", "verify")
        for each in traced.spans(name)
    }
    for span, part in zip(traced.spans("round"), parts, strict=True):
        made, timing = part.round, part.round.report.timing
        said, why = made.rounds[part.at], made.why_empty[part.at]
        assert dict(span.attributes) == {
            "dspark.lane": "verify/1",
            "dspark.cohort.sequences": 1,
            "dspark.spec.drafted": len(said.confidence),
            "dspark.spec.verified": said.verified,
            "dspark.spec.accepted": said.accepted,
            "dspark.spec.committed": part.kept,
            **({"dspark.spec.without_draft": why} if why else {}),
        }
        passes = {"verify": ("verify/1", timing.forward_s)}
        if not why:
            passes["draft"] = ("draft/0", timing.draft_s)
        for name, (worker, seconds) in passes.items():
            told = {"dspark.worker": worker, "dspark.device_s": seconds}
            assert inner.pop((name, span.context.span_id)) == told
    assert not inner


async def test_a_request_of_several_answers_is_told_of_them_all() -> None:
    traced = Traced()
    asked: Any = {"max_tokens": 12, "policy": "fixed:2", "choices": 3}
    states = traced.cell.answers(**asked, traceparent=CALLER)
    await traced.cell.finish(*states)
    (root,) = traced.spans("generate")
    assert root.attributes["gen_ai.usage.output_tokens"] == 36
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",) * 3
    assert root.attributes["dspark.spec.rounds"] == len(traced.spans("round"))
    (admission,) = traced.spans("admission")
    assert admission.start_time == root.start_time
    assert not traced.cell.explain.watches


@pytest.mark.parametrize(
    "parent", ["", UNSAMPLED, "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01"]
)
async def test_who_does_not_ask_to_be_traced_is_not(parent: str) -> None:
    traced = Traced()
    await _answer(traced, max_tokens=4, traceparent=parent)
    assert not traced.spans()
    assert not traced.cell.explain.watches


async def test_a_share_is_traced_without_a_caller_s_word() -> None:
    it = Traced(share=1.0)
    await _answer(it, max_tokens=4)
    (root,) = it.spans("generate")
    assert root.parent is None


async def test_beyond_the_bound_requests_are_served_untraced_and_counted() -> None:
    traced = Traced()
    for number in range(MOST_TRACED):
        traced.tracing.begun(f"other-{number}", CALLER)
    await _answer(traced, max_tokens=4, traceparent=CALLER)
    assert not traced.spans()
    assert traced.cell.metrics.value("dropped_total", kind="trace", reason="full") == 1


async def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    traced = Traced()
    for _ in range(3):
        await _answer(traced, max_tokens=4, traceparent=CALLER)
    assert len(traced.spans("generate")) == 3
    assert not traced.cell.explain.watches
    for number in range(MOST_TRACED):
        traced.tracing.begun(f"other-{number}", CALLER)
    assert not traced.cell.metrics.value("dropped_total", kind="trace", reason="full")
