"""Logs and metrics, set up once per process; the names of all metrics stand in this file.

Logs never carry prompt text or tokens; numbers go to metrics. Counters of drops say what was lost and why.

Of exceptions logs say where they came from, and what they say if that cannot be a client's words. Messages of the
language's own errors quote values: `int("...")` quotes a text, a missing key is its own message. So only errors whose
messages are written here, by the operating system or by the numeric libraries are quoted.
"""

from __future__ import annotations

import copy
import logging
import sys
import traceback
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from dspark.errors import DsparkError
from dspark.runtime.identity import DEFAULT_CELL

_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
MOST_LABELS = 32  # every label is a handful of time series
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
ENDS = ("stop", "length", "abort")  # how answers end well, in the words of finish reasons
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
UNKNOWN = "unknown"  # an empty label would be none
QUOTED = (DsparkError, OSError, MemoryError, RuntimeError)
MOST = 16  # errors of one chain or group
_Info = tuple[type[BaseException], BaseException, TracebackType | None]


def configure_logging(*, role: str, name: str, fmt: str = "auto", level: str = "INFO") -> None:
    """One line per event on stderr: JSON, or for people on a terminal ("auto" | "json" | "console").

    Records of other libraries take the same path. `role` and `name` stand on every line.
    """

    def signed(_: object, __: str, line: dict[str, Any]) -> dict[str, Any]:
        # By the process and not by a context: threads and tasks that others began have contexts of their own.
        return {"role": role, "process": name} | line

    shared: list[Any] = [
        signed,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    # Tracebacks without local variables and without others' messages: those hold prompts and tokens.
    render: list[Any] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=as_text)]
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
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """As `observe` for each of them, at the price of a few: a bucket is counted up once."""
    if not values:
        return
    places = Counts(bisect_left(histogram._upper_bounds, value) for value in values)
    histogram._sum.inc(sum(values))
    for place, count in places.items():
        histogram._buckets[place].inc(count)


class Metrics:
    """Every metric of the system on a registry of its own, so that two services fit into one process.

    A process shows all names; those it has no part in stay at zero. Where the meaning is that of one of vLLM's
    metrics, so is the name, with `dspark_` in front. `exposed` is what is shown: there every sample has the labels
    `model_name` and `cell` besides its own.
    """

    def __init__(self, *, cell: str = DEFAULT_CELL, model_name: Callable[[], str] = str) -> None:
        self.registry = CollectorRegistry()
        self.exposed = Exposed(self.registry, lambda: {"model_name": model_name(), "cell": cell})

        # Requests (coordinator).
        self.requests = self._counter("requests", "Requests ended, by how.", "outcome")
        self.request_success = self._counter(
            "request_success", "Answers that ended well, by finish reason.", "finished_reason"
        )
        for reason in ENDS:
            self.request_success.labels(finished_reason=reason)  # shown from the start, so that a rate sees the first
        self.num_requests_running = self._gauge("num_requests_running", "Requests in rounds or prefill.")
        self.num_requests_waiting = self._gauge("num_requests_waiting", "Requests waiting for admission.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens committed.")
        self.time_to_first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "From one commit of an answer to its next, of one or more tokens.", _SECONDS
        )
        self.request_time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, one observation per request.",
            _SECONDS,
        )
        self.e2e_request_latency = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _SECONDS)
        self.request_queue_time = self._histogram("request_queue_time_seconds", "Arrival to prefill.", _SECONDS)
        self.request_prefill_time = self._histogram(
            "request_prefill_time_seconds", "Start of the prefill to first token.", _SECONDS
        )
        self.request_decode_time = self._histogram("request_decode_time_seconds", "First token to end.", _SECONDS)
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens of an answer when it ended.", _TOKENS
        )
        self.slow_readers_cut = self._counter("slow_readers_cut", "Streams ended because the client did not read.")
        self.admission_rejections = self._counter("admission_rejections", "Requests refused, by reason.", "reason")

        # Client streams (coordinator or front end).
        self.client_streams = self._gauge("client_streams", "Client streams that are being answered.")
        self.client_chunks = self._counter("client_chunks", "Chunks sent to clients.")
        self.cell_batches = self._counter(
            "cell_batches", "Messages between a coordinator and a front end, by direction.", "direction"
        )

        # Speculation (coordinator).
        self.rounds = self._counter("rounds", "Verification rounds, counted per sequence.")
        self.cohorts = self._counter("cohorts", "Cohorts that went through a round.")
        self.num_drafts = self._counter("spec_decode_num_drafts", "Non-empty blocks drafted.")
        self.num_draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self.num_verified_tokens = self._counter(
            "spec_decode_num_verified_tokens", "Drafted tokens sent to verification."
        )
        self.num_accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens committed.")
        self.num_accepted_per_pos = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafted tokens committed, by slot.", "position"
        )
        self.num_expected_tokens = self._counter(
            "spec_decode_num_expected_tokens",
            "Drafted tokens that confidences promised would be accepted; beside num_accepted_tokens: calibration.",
        )
        self.label_rounds = self._counter("label_rounds", "Rounds with a draft, by the requests' label.", "label")
        self.label_draft_tokens = self._counter("label_draft_tokens", "Tokens drafted, by label.", "label")
        self.label_accepted_tokens = self._counter(
            "label_accepted_tokens", "Drafted tokens committed, by label.", "label"
        )
        self.label_generation_tokens = self._counter("label_generation_tokens", "Tokens committed, by label.", "label")
        self.draft_wasted_tokens = self._counter(
            "draft_wasted_tokens", "Drafted tokens not committed, by reason.", "reason"
        )
        self.empty_blocks = self._counter("empty_blocks", "Rounds that began without a draft, by reason.", "reason")
        self.scheduled_verify_length = self._histogram(
            "scheduled_verify_length", "Drafted tokens sent to verification per sequence and round.", _LENGTHS
        )
        self.policy_info = self._gauge("policy_info", "1 for the policy in force.", "policy")
        self.lane_mode = self._gauge(
            "lane_mode",
            "1 for how a lane goes about its rounds: one cohort, two cohorts that take turns, or no drafts.",
            "lane",
            "mode",
        )
        self.cost_curve_in_force = self._gauge(
            "cost_curve_in_force",
            "1 when adaptive sequences go by a measured cost curve, 0 when they verify everything.",
            "lane",
        )
        self.draft_rpc = self._histogram("draft_rpc_seconds", "Round trip of a Draft cohort.", _SECONDS)
        self.verify_rpc = self._histogram("verify_rpc_seconds", "Round trip of a Verify cohort.", _SECONDS)
        self.pipeline_bubble = self._histogram(
            "pipeline_bubble_seconds", "A verifier with work waited for its next cohort, drafts included.", _SECONDS
        )
        self.prefills = self._counter("prefills", "Prefills commanded, by reason.", "reason")
        self.num_preemptions = self._counter("num_preemptions", "Sequences taken out to free pages, to begin again.")
        self.prefix_cache_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_cache_hits = self._counter("prefix_cache_hits", "Prompt tokens whose prefill it spared.")
        self.resends = self._counter("resends", "Feature resends commanded, by reason.", "reason")
        self.pool_replicas = self._gauge("pool_replicas", "Known workers.", "pool", "state")
        self.worker_losses = self._counter("worker_losses", "Workers lost.", "pool")
        self.breakers_opened = self._counter("breakers_opened", "Workers held off for being lost too often.", "pool")
        self.handovers = self._counter("handovers", "Sequences that went to another verifier, by reason.", "reason")
        self.journal_failed = self._gauge("journal_failed", "1 when the journal could not be written any more.")

        # Losslessness monitor (coordinator).
        self.monitor_draws = self._counter("monitor_draws", "Verified slots the monitor has seen.", "drafter")
        self.monitor_evidence = self._gauge(
            "monitor_evidence", "Evidence of lies, as a share of what raises the alarm; near or below 0.", "drafter"
        )
        self.monitor_alarms = self._counter(
            "monitor_alarms", "Drafter versions whose drafts are no draws of their q.", "drafter", "statistic"
        )

        # Watchdog of drafters (coordinator).
        self.drafter_alarms = self._counter(
            "drafter_alarms", "Alarms that left a drafter out, by its version.", "drafter", "reason"
        )
        self.drafters_left_out = self._gauge(
            "drafters_left_out", "Drafters that a lane leaves out, or has on trial, for an alarm.", "lane"
        )
        self.drafter_accepted_length = self._gauge(
            "drafter_accepted_length",
            "Tokens of a round with a block, the target's own among them, over the last 40 or so, by drafter version.",
            "drafter",
            "lane",
        )
        self.drafter_promise_kept = self._gauge(
            "drafter_promise_kept",
            "Accepted over promised tokens of the same rounds; 1 is as promised.",
            "drafter",
            "lane",
        )

        # Workers.
        self.forward_seconds = self._histogram("forward_seconds", "Device time of one pass, by kind.", _SECONDS, "kind")
        self.draft_wait = self._histogram("draft_wait_seconds", "A cohort waited for a busy drafter.", _SECONDS)
        self.verify_batch_tokens = self._histogram("verify_batch_tokens", "Tokens in one packed pass.", _TOKENS)
        self.draft_batch_sequences = self._histogram("draft_batch_sequences", "Sequences in one draft pass.", _TOKENS)
        self.sequences = self._gauge("sequences", "Sequences with state in this process.")
        self.pages_held = self._gauge("pages_held", "Pages held by sequences.")
        self.pages_total = self._gauge("pages_total", "Pages of the pool.")
        self.kv_cache_usage = self._gauge(
            "kv_cache_usage_perc", "Share of the pool's pages that sequences hold; 1 is full."
        )
        self.feature_rows = self._counter("feature_rows", "Feature rows, by direction.", "direction")
        self.bytes = self._counter("bytes", "Payload bytes, by direction and kind.", "direction", "kind")
        self.refusals = self._counter("refusals", "Items refused, by reason.", "reason")
        self.coupled_near_ties = self._counter(
            "coupled_near_ties", "Positions of coupled answers led by less than 1e-4 nats: rounding may flip them."
        )
        self.form_tokens = self._counter("form_tokens", "Tokens of rounds that a form had a say in.")
        self.form_forced_tokens = self._counter("form_forced_tokens", "Of these, where nothing else might have come.")
        self.form_refused_drafts = self._counter(
            "form_refused_drafts", "Blocks that ended at a drafted token which the form of the answer forbids."
        )

        self._labels: set[str] = set()  # of requests, as far as they are told apart

        # Everyone.
        self.dropped = self._counter("dropped", "Messages dropped, by kind and reason.", "kind", "reason")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"dspark_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dspark_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"dspark_{name}", text, labels, buckets=buckets, registry=self.registry)

    def note_load(self, sequences: int, pages: int, of: int) -> None:
        """What a worker holds now."""
        self.sequences.set(sequences)
        self.pages_held.set(pages)
        self.kv_cache_usage.set(pages / of if of else 0.0)

    def bounded_label(self, label: str) -> str:
        """The label of a request, or "other" when more than `MOST_LABELS` different ones have come."""
        if label not in self._labels:
            if len(self._labels) >= MOST_LABELS:
                return "other"
            self._labels.add(label)
        return label

    def value(self, name: str, **labels: str) -> float:
        """The sample `dspark_<name>` right now, 0.0 if it was never touched."""
        return self.registry.get_sample_value(f"dspark_{name}", labels) or 0.0


class Exposed:
    """A registry with labels of the process on every sample; they are asked for at every scrape."""

    def __init__(self, registry: CollectorRegistry, labels: Callable[[], Mapping[str, str]]) -> None:
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
    """For JSON: the error first, then what it came from."""
    return [
        {
            "type": type(error).__name__,
            "message": _message(error),
            "frames": [
                f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
            ],
        }
        for error in _chain(exc_info[1])
    ]


def as_text(out: TextIO, info: _Info) -> None:
    """For people: the way tracebacks usually look, what they came from first."""
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
