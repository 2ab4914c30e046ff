"""OpenTelemetry spans of requests: admission, prefill, and every round with its draft and its
verification.

A request is traced when its caller's W3C trace context has the sampled flag, and without a context
by a random share. Its rounds are noted by a watch, the same that explains rounds; spans are made
when the request has ended, so that a round costs only a look at a list. Names of attributes follow
the semantic conventions for generative AI where there are any, and begin with `dspark.` where there
are none.

Needs the extra `otel`; nothing is imported before a collector is configured.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.answers.answer import RequestStats
from coordinator.clock import Clock
from coordinator.lanes.watch import Explain, RoundPart, RoundWatch
from dspark.errors import ConfigError, Overloaded
from dspark.runtime.telemetry import Metrics

if TYPE_CHECKING:
    from coordinator.lanes.request_state import RequestState

MOST_TRACED = 32  # requests at one time; more are not traced, and are counted


class _Open(NamedTuple):
    watch: RoundWatch[RoundPart]
    caller: Any  # its context, or an empty one
    answers: list[tuple[RequestState, str]]  # that have ended, and how


class Tracing:
    """Holds the watches of traced requests. provider: of tracers, shut down by `close`. share: of
    requests without a trace context."""

    def __init__(
        self, provider: Any, share: float, explain: Explain, clock: Clock, metrics: Metrics
    ) -> None:
        self._provider, self._tracer = provider, provider.get_tracer("dspark")
        self._share, self._explain = share, explain
        self._clock, self._metrics = clock, metrics
        self._open: dict[str, _Open] = {}
        self._draw = random.Random()

    def begun(self, request_id: str, traceparent: str) -> None:
        """Starts the trace of an accepted request, if its caller's flag or the share says so."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Without a header, or with a malformed one, the context is invalid: no request is refused.
        caller = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        said = trace.get_current_span(caller).get_span_context()
        if not (said.trace_flags.sampled if said.is_valid else self._draw.random() < self._share):
            return
        try:
            if len(self._open) >= MOST_TRACED:
                raise Overloaded(f"{MOST_TRACED} requests are traced already", retry_after_s=1.0)
            self._open[request_id] = _Open(self._explain.request(request_id), caller, [])
        except Overloaded:
            self._metrics.dropped.labels(kind="trace", reason="full").inc()

    def ended(self, state: RequestState, outcome: str, *, last: bool) -> None:
        """Notes an answer that ended. The last one ends the request's trace in the next turn of the
        event loop, when its last round is noted."""
        opened = self._open.get(state.request.id)
        if opened is not None:
            opened.answers.append((state, outcome))
            if last:
                del self._open[state.request.id]
                self._clock.call_soon(self._finish, opened)

    async def close(self) -> None:
        """Exports the spans that are still held."""
        await asyncio.to_thread(self._provider.shutdown)

    def _finish(self, opened: _Open) -> None:
        parts = opened.watch.taken()
        opened.watch.__exit__(None, None, None)
        self._tell(opened, parts)

    def _tell(self, opened: _Open, parts: list[RoundPart]) -> None:
        answers = sorted(opened.answers, key=lambda each: each[0].answer.index)
        stats = RequestStats.together([state.stats for state, _ in answers])
        request = answers[0][0].request
        at = self._wall(self._clock.time())
        end = stats.ended if stats.ended is not None else self._clock.time()
        root = self._span("generate", at(stats.arrived), opened.caller, kind="server")
        root.set_attributes(
            {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "dspark",
                "gen_ai.request.model": self._metrics.model_name(),
                "gen_ai.response.id": request.id,
                "gen_ai.response.finish_reasons": [outcome for _, outcome in answers],
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": request.params.temperature,
                "gen_ai.usage.input_tokens": len(request.prompt),
                "gen_ai.usage.output_tokens": sum(state.answer.length for state, _ in answers),
                "dspark.spec.policy": str(request.policy),
                "dspark.spec.rule": request.params.rule.name.lower(),
                "dspark.spec.rounds": stats.rounds,
                "dspark.spec.mean_acceptance_length": stats.mean_acceptance_length,
                **({"dspark.label": request.label} if request.label else {}),
            }
        )
        inside = _child_of(root)
        placed = stats.placed if stats.placed is not None else end
        self._span("admission", at(stats.arrived), inside).end(at(placed))
        if stats.placed is not None:
            first = stats.first if stats.first is not None else end
            self._span("prefill", at(placed), inside).end(at(first))
        for part in parts:
            self._round(part, inside, at)
        root.end(at(end))

    def _round(self, part: RoundPart, inside: Any, at: Any) -> None:
        made = part.round
        said, timing = made.rounds[part.at], made.report.timing
        # the first of a sequence tells its pass alone (`RoundSpans`)
        began = made.ended - max(timing.round_s, timing.waited_s + timing.forward_s)
        span = self._span("round", at(began), inside)
        span.set_attributes(
            {
                "dspark.lane": made.lane,
                "dspark.cohort.sequences": len(made.rounds),
                "dspark.spec.drafted": len(said.confidence),
                "dspark.spec.verified": said.verified,
                "dspark.spec.accepted": said.accepted,
                "dspark.spec.committed": part.kept,
            }
        )
        if why := made.why_empty[part.at]:
            span.set_attribute("dspark.spec.without_draft", why)
        within = _child_of(span)
        if len(said.confidence):
            drafted = self._span("draft", at(began), within)
            drafted.set_attributes(
                {"dspark.worker": made.name_of(said.drafter), "dspark.device_s": timing.draft_s}
            )
            drafted.end(at(began + timing.waited_s))
        verified = self._span("verify", at(made.ended - timing.forward_s), within)
        verified.set_attributes({"dspark.worker": made.lane, "dspark.device_s": timing.forward_s})
        verified.end(at(made.ended))
        span.end(at(made.ended))

    def _span(self, name: str, start_ns: int, context: Any, *, kind: str = "internal") -> Any:
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            name, context=context, kind=SpanKind[kind.upper()], start_time=start_ns
        )

    @staticmethod
    def _wall(now: float) -> Any:
        """Converts times of the event loop's clock to nanoseconds since 1970."""
        wall = time.time_ns()
        return lambda moment: wall - round((now - moment) * 1e9)


def open_provider(endpoint: str, *, service: str, instance: str) -> Any:
    """A provider whose tracers send to the OTLP collector at host:port. Raises ConfigError without
    the libraries."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"otel_endpoint: needs {error.name}; it comes with the extra `otel`: pip install "
            "'.[otel]' in the checkout"
        ) from error
    # The application decided what is recorded before any span exists, so the library must not
    # decide again.
    provider = TracerProvider(
        resource=Resource.create({"service.name": service, "service.instance.id": instance}),
        sampler=ALWAYS_ON,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=5))
    )
    return provider


def _child_of(span: Any) -> Any:
    from opentelemetry import trace
    from opentelemetry.context import Context

    return trace.set_span_in_context(span, Context())
