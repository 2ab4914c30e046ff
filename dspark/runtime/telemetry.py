"""Logs and metrics, set up once per process; all metrics are declared in this file.

Logs never carry prompt text or tokens; numbers are metrics. Counters of drops say what was lost and
why.

Logs show where an exception was raised, and its message if that cannot contain a client's text.
Messages of Python's own errors quote values: `int("...")` quotes a text, a missing key is its own
message. So only messages written in this project, by the operating system or by the numeric
libraries are logged.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import traceback
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from dspark.errors import Denied, DsparkError, Forbidden
from dspark.runtime.identity import DEFAULT_CELL

_SECONDS = (
    0.001,
    0.002,
    0.004,
    0.008,
    0.015,
    0.03,
    0.06,
    0.12,
    0.25,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)
MOST_LABELS = 32  # every label is a handful of time series
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
ENDS = ("stop", "length", "abort")  # how answers end well, in the words of finish reasons
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
UNKNOWN = "unknown"  # an empty value would be no label
QUOTED = (DsparkError, OSError, MemoryError, RuntimeError)
MOST = 16  # errors of one chain or group
_Info = tuple[type[BaseException], BaseException, TracebackType | None]


def configure_logging(*, role: str, name: str, fmt: str = "auto") -> None:
    """One line per event on stderr: JSON, or for people on a terminal ("auto" | "json" |
    "console").

    Records of other libraries take the same path. `role` and `name` stand on every line.
    """

    def signed(_: object, __: str, line: dict[str, Any]) -> dict[str, Any]:
        # Added here and not by a context: threads and tasks of libraries have contexts of their
        # own.
        return {"role": role, "process": name} | line

    shared: list[Any] = [
        signed,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    # Tracebacks without local variables and without others' messages: those hold prompts and
    # tokens.
    render: list[Any] = (
        [_printable, structlog.dev.ConsoleRenderer(exception_formatter=as_text)]
        if console
        else [structlog.processors.ExceptionRenderer(as_data), structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel("INFO")
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _printable(_: object, __: str, line: dict[str, Any]) -> dict[str, Any]:
    """Escapes what clients chose, such as a request id: it must not control a terminal."""
    return {
        key: json.dumps(value) if isinstance(value, str) and not value.isprintable() else value
        for key, value in line.items()
    }


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """Observes all values, at a lower cost than one by one: a bucket is incremented once."""
    if not values:
        return
    places = Counts(bisect_left(histogram._upper_bounds, value) for value in values)
    histogram._sum.inc(sum(values))
    for place, count in places.items():
        histogram._buckets[place].inc(count)


class DeclaredMetric(NamedTuple):
    """A metric of every instance of `Metrics`. name: its name, unless it is the attribute's."""

    kind: Callable[..., Any]
    text: str
    labels: tuple[str, ...]
    name: str = ""
    options: Mapping[str, Any] = {}

    def made(self, attribute: str, registry: CollectorRegistry) -> Any:
        name = self.name or attribute
        return self.kind(
            name, self.text, self.labels, namespace="dspark", registry=registry, **self.options
        )


def counter(text: str, *labels: str, name: str = "") -> Counter:
    return cast(Counter, DeclaredMetric(Counter, text, labels, name))


def gauge(text: str, *labels: str, name: str = "") -> Gauge:
    return cast(Gauge, DeclaredMetric(Gauge, text, labels, name))


def histogram(text: str, buckets: tuple[float, ...]) -> Histogram:
    return cast(Histogram, DeclaredMetric(Histogram, text, (), options={"buckets": buckets}))


def seconds(text: str, *labels: str) -> Histogram:
    """A histogram whose name ends in `_seconds`, whatever that of its attribute."""
    return cast(
        Histogram,
        DeclaredMetric(Histogram, text, labels, options={"buckets": _SECONDS, "unit": "seconds"}),
    )


class Metrics:
    """Every metric of the system on a registry of its own, so that two services fit into one
    process.

    A process exposes all names; those of other roles stay at zero. A metric that means the same as
    one of vLLM's has its name, with `dspark_` in front. `exposed` is the registry to scrape: there
    every sample has the labels `model_name` and `cell` besides its own.
    """

    # Requests (coordinator).
    requests = counter("Answers ended, by how: a request has n for each of its prompts.", "outcome")
    request_success = counter("Answers that ended well, by finish reason.", "finished_reason")
    num_requests_running = gauge("Requests in rounds or prefill.")
    num_requests_waiting = gauge("Requests waiting for admission.")
    prompt_tokens = counter("Prompt tokens of admitted requests.")
    generation_tokens = counter("Tokens committed.")
    time_to_first_token = seconds("Arrival to first token.")
    inter_token_latency = seconds(
        "From one commit of an answer to its next, of one or more tokens."
    )
    request_time_per_output_token = seconds(
        "Mean time per token after the first, one observation per request."
    )
    e2e_request_latency = seconds("Arrival to end.")
    request_queue_time = seconds("Arrival to prefill.")
    request_prefill_time = seconds("Start of the prefill to first token.")
    request_decode_time = seconds("First token to end.")
    request_prompt_tokens = histogram("Prompt tokens of a request.", _TOKENS)
    request_generation_tokens = histogram("Tokens of an answer when it ended.", _TOKENS)
    slow_readers_cut = counter("Streams ended because the client did not read.")
    admission_rejections = counter("Requests refused, by reason.", "reason")

    # Client streams (coordinator or front end).
    client_streams = gauge("Client streams that are being answered.")
    client_chunks = counter("Chunks sent to clients.")
    cell_batches = counter(
        "Messages between a coordinator and a front end, by direction.", "direction"
    )

    # Speculation (coordinator).
    rounds = counter("Verification rounds, counted per sequence.")
    cohorts = counter("Cohorts that went through a round.")
    num_drafts = counter("Non-empty blocks drafted.", name="spec_decode_num_drafts")
    num_draft_tokens = counter("Tokens drafted.", name="spec_decode_num_draft_tokens")
    num_verified_tokens = counter(
        "Drafted tokens sent to verification.", name="spec_decode_num_verified_tokens"
    )
    num_accepted_tokens = counter(
        "Drafted tokens committed.", name="spec_decode_num_accepted_tokens"
    )
    num_accepted_per_pos = counter(
        "Drafted tokens committed, by slot.",
        "position",
        name="spec_decode_num_accepted_tokens_per_pos",
    )
    num_expected_tokens = counter(
        "Drafted tokens that confidences promised would be accepted; beside num_accepted_tokens: "
        "calibration.",
        name="spec_decode_num_expected_tokens",
    )
    label_rounds = counter("Rounds with a draft, by the requests' label.", "label")
    label_draft_tokens = counter("Tokens drafted, by label.", "label")
    label_accepted_tokens = counter("Drafted tokens committed, by label.", "label")
    label_generation_tokens = counter("Tokens committed, by label.", "label")
    draft_wasted_tokens = counter("Drafted tokens not committed, by reason.", "reason")
    empty_blocks = counter("Rounds that began without a draft, by reason.", "reason")
    scheduled_verify_length = histogram(
        "Drafted tokens sent to verification per sequence and round.", _LENGTHS
    )
    policy_info = gauge("1 for the policy in force.", "policy")
    lane_mode = gauge(
        "1 for how a lane goes about its rounds: one cohort, two cohorts that take turns, or no "
        "drafts.",
        "lane",
        "mode",
    )
    cost_curve_in_force = gauge(
        "1 when adaptive sequences go by a measured cost curve, 0 when they verify everything.",
        "lane",
    )
    draft_rpc = seconds("From a cohort's orders to the last of its blocks, at the verifier.")
    verify_rpc = seconds("Pass of a cohort at the verifier, without its draft.")
    pipeline_bubble = seconds("A verifier with work waited for its next cohort, drafts included.")
    prefills = counter("Prefills commanded, by reason.", "reason")
    num_preemptions = counter("Sequences taken out to free pages, to begin again.")
    prefix_cache_queries = counter("Prompt tokens looked up in the prefix cache.")
    prefix_cache_hits = counter("Prompt tokens whose prefill it spared.")
    resends = counter("Feature resends commanded, by reason.", "reason")
    pool_replicas = gauge("Known workers.", "pool", "state")
    worker_losses = counter("Workers lost.", "pool")
    breakers_opened = counter("Workers held off for being lost too often.", "pool")
    handovers = counter("Sequences that went to another verifier, by reason.", "reason")
    journal_failed = gauge("1 when the journal could not be written any more.")

    # Losslessness monitor (coordinator).
    monitor_draws = counter("Verified slots the monitor has seen.", "drafter")
    monitor_evidence = gauge(
        "Evidence of lies, as a share of what raises the alarm; near or below 0.", "drafter"
    )
    monitor_alarms = counter(
        "Drafter versions whose drafts are no draws of their q.", "drafter", "statistic"
    )

    # Watchdog of drafters (coordinator).
    drafter_alarms = counter("Alarms that left a drafter out, by its version.", "drafter", "reason")
    drafters_left_out = gauge(
        "Drafters that a lane leaves out, or has on trial, for an alarm.", "lane"
    )
    drafter_accepted_length = gauge(
        "Tokens of a round with a block, the target's own among them, over the last 40 or so, by "
        "drafter version.",
        "drafter",
        "lane",
    )
    drafter_promise_kept = gauge(
        "Accepted over promised tokens of the same rounds; 1 is as promised.", "drafter", "lane"
    )

    # Workers.
    forward_seconds = seconds("Device time of one pass, by kind.", "kind")
    draft_wait = seconds("A cohort waited for a busy drafter.")
    verify_batch_tokens = histogram("Tokens in one packed pass.", _TOKENS)
    draft_batch_sequences = histogram("Sequences in one draft pass.", _TOKENS)
    sequences = gauge("Sequences with state in this process.")
    pages_held = gauge("Pages held by sequences.")
    pages_total = gauge("Pages of the pool.")
    kv_cache_usage = gauge(
        "Share of the pool's pages that sequences hold; 1 is full.", name="kv_cache_usage_perc"
    )
    feature_rows = counter("Feature rows, by direction.", "direction")
    bytes = counter("Payload bytes, by direction and kind.", "direction", "kind")
    refusals = counter("Items and callers refused, by reason.", "reason")
    coupled_near_ties = counter(
        "Positions of coupled answers led by less than 1e-4 nats: rounding may flip them."
    )
    form_tokens = counter("Tokens of rounds that a form had a say in.")
    form_forced_tokens = counter("Of these, where nothing else might have come.")
    form_refused_drafts = counter(
        "Blocks that ended at a drafted token which the form of the answer forbids."
    )

    # Everyone.
    dropped = counter("Messages dropped, by kind and reason.", "kind", "reason")

    def __init__(self, *, cell: str = DEFAULT_CELL, model_name: Callable[[], str] = str) -> None:
        self.registry, self.model_name = CollectorRegistry(), model_name
        self.exposed = LabelledRegistry(
            self.registry, lambda: {"model_name": model_name(), "cell": cell}
        )
        for name, declared in vars(Metrics).items():
            if isinstance(declared, DeclaredMetric):
                setattr(self, name, declared.made(name, self.registry))
        for reason in ENDS:  # these three are shown from the start, so that a rate sees the first
            self.request_success.labels(finished_reason=reason)
        for pool in ("verify", "draft"):
            self.worker_losses.labels(pool=pool)
        self.admission_rejections.labels(reason="queue_full")
        self._labels: set[str] = set()  # of requests, as far as they are kept apart

    def denied(self, error: Denied) -> None:
        """Counts a caller that was not let in."""
        reason = "forbidden" if isinstance(error, Forbidden) else "unauthenticated"
        self.refusals.labels(reason=reason).inc()

    def bounded_label(self, label: str) -> str:
        """The label of a request, or "other" for a new one after `MOST_LABELS` different ones."""
        if label not in self._labels:
            if len(self._labels) >= MOST_LABELS:
                return "other"
            self._labels.add(label)
        return label

    def value(self, name: str, **labels: str) -> float:
        """The sample `dspark_<name>` right now, 0.0 if it was never touched."""
        return self.registry.get_sample_value(f"dspark_{name}", labels) or 0.0


class LabelledRegistry:
    """A registry with labels of the process on every sample; they are read at every scrape."""

    def __init__(
        self, registry: CollectorRegistry, labels: Callable[[], Mapping[str, str]]
    ) -> None:
        self._registry, self._labels = registry, labels

    def collect(self) -> Iterator[Metric]:
        mine = {name: value or UNKNOWN for name, value in self._labels().items()}
        for family in self._registry.collect():
            shown = copy.copy(family)
            shown.samples = [
                sample._replace(labels={**mine, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield shown


def as_data(exc_info: _Info) -> list[dict[str, Any]]:
    """An exception for JSON logs: the error first, then its causes."""
    return [
        {
            "type": type(error).__name__,
            "message": _message(error),
            "frames": [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)
            ],
        }
        for error in _chain(exc_info[1])
    ]


def as_text(out: TextIO, info: _Info) -> None:
    """An exception for people, like a usual traceback: its causes first."""
    for error in reversed(list(_chain(info[1]))):
        out.write("\nTraceback (most recent call last):\n")
        out.writelines(traceback.format_tb(error.__traceback__))
        out.write(": ".join(filter(None, (type(error).__name__, _message(error)))))


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, QUOTED) else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, those of its group, and what it was raised from or during."""
    waiting, told = [error], 0
    while waiting and told < MOST:
        error, told = waiting.pop(0), told + 1
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is not None:
            waiting.append(before)
