"""What a coordinator and a front end can be told. Light: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.runtime.listen_config import PublicConfig


@dataclass(frozen=True, kw_only=True)
class ClientsConfig(PublicConfig):
    """The keys of any process that clients talk to."""

    target: str | None = field(default=None, metadata={"doc": "Folder or hub id whose tokenizer is used; absent: ids."})
    target_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the target."})
    max_unread_s: float = field(
        default=10.0, metadata={"doc": "How long a client may leave a message untaken before it is cut."}
    )
    max_unread: int = field(default=1024, metadata={"doc": "Commits a client may leave unread before it is cut."})
    request_deadline_s: float = field(default=600.0, metadata={"doc": "Longest life of any request."})
    http: str | None = field(
        default=None, metadata={"doc": "host:port of the OpenAI-compatible HTTP front; port 0 takes any; absent: none."}
    )
    cors_origin: tuple[str, ...] = field(
        default=(),
        metadata={
            "doc": "Origins of web pages that may ask from a browser, e.g. https://chat.example; * is any, where "
            "callers need a key."
        },
    )
    default_max_tokens: int = field(
        default=256, metadata={"doc": "Longest answer to a chat over HTTP that sets no limit; over gRPC it is 256."}
    )
    tool_format: str = field(
        default="",
        metadata={"doc": "How the target writes calls of tools, see docs/openai.md; empty reads it off its template."},
    )


@dataclass(frozen=True)
class CoordinatorConfig(ClientsConfig):
    """One coordinator process."""

    verify: tuple[str, ...] = field(default=(), metadata={"doc": "host:port of verifiers known from the start."})
    draft: tuple[str, ...] = field(default=(), metadata={"doc": "host:port of drafters known from the start."})
    policy: str = field(default="adaptive", metadata={"doc": "Default policy: off, fixed:k, threshold:t or adaptive."})
    rule: str = field(default="block", metadata={"doc": "Default acceptance rule: token, block or coupled."})
    bypass: bool = field(
        default=True, metadata={"doc": "Let adaptive sequences go without drafts where these do not pay."}
    )
    window: int = field(
        default=2, metadata={"doc": "Rounds a verifier may run beyond the last one that is committed; 0 is lockstep."}
    )
    cohorts: int = field(
        default=0, metadata={"doc": "Cohorts that take turns in a lane: 1, 2, or 0 for whichever commits faster."}
    )
    max_running: int = field(default=256, metadata={"doc": "Requests in rounds or prefill at one time."})
    max_queued: int = field(default=1024, metadata={"doc": "Requests that may wait; more are refused."})
    max_prefills: int = field(default=32, metadata={"doc": "Prefills at one time per verifier; the others wait."})
    queue_deadline_s: float = field(
        default=60.0, metadata={"doc": "Longest wait for a place; who has waited so long is refused with a hint."}
    )
    prefill_deadline_s: float = field(
        default=120.0, metadata={"doc": "Silence after which a verifier that owes a prefill is lost."}
    )
    verify_deadline_s: float = field(
        default=10.0,
        metadata={"doc": "Silence after which a verifier in rounds is lost, and a sequence moves."},
    )
    describe_deadline_s: float = field(default=2.0, metadata={"doc": "Longest wait for a worker to say what it is."})
    warm_up_s: float = field(
        default=30.0,
        metadata={
            "doc": "Longest time for the first requests that run before a worker serves, and for a drafter to come "
            "before the cell is ready without; 0: no such requests."
        },
    )
    verifier_wait_s: float = field(
        default=20.0,
        metadata={
            "doc": "How long requests wait for another verifier; one that is there may run its first requests besides."
        },
    )
    max_handovers: int = field(default=4, metadata={"doc": "Verifiers a request may lose before it fails."})
    live_page: bool = field(default=True, metadata={"doc": "Serve the live page at / of the HTTP front."})
    live_streams: int = field(
        default=16, metadata={"doc": "Background streams the live page may add at most; 0 takes its slider away."}
    )
    flap_limit: int = field(
        default=4, metadata={"doc": "Losses of a worker within a minute after which it is held off; 0: never."}
    )
    otel_endpoint: str | None = field(
        default=None,
        metadata={"doc": "host:port of an OTLP collector (gRPC) that gets spans; absent: none."},
    )
    otel_share: float = field(
        default=0.01, metadata={"doc": "Share of requests that are traced where callers bring no trace context."}
    )
    journal: str | None = field(
        default=None, metadata={"doc": "Folder that keeps what was committed, so that clients resume; absent: none."}
    )
    journal_sync: str = field(
        default="interval",
        metadata={"doc": "When it is on the disk: `always` before a token is shown, or `interval`."},
    )
    journal_sync_s: float = field(default=1.0, metadata={"doc": "Longest time to the disk under `interval`."})
    journal_keep_s: float = field(
        default=600.0, metadata={"doc": "How long an answer can be resumed after its end or the loss of its client."}
    )
    journal_segment_mb: int = field(
        default=64, metadata={"doc": "Megabytes of a segment of the journal; at most two stand on the disk."}
    )


@dataclass(frozen=True)
class FrontendConfig(ClientsConfig):
    """One front end process."""

    coordinator: str = field(default="", metadata={"doc": "host:port of the coordinator; required."})
    max_streams: int = field(default=4096, metadata={"doc": "Requests at one time; more are refused."})
    chunk_interval_ms: float = field(
        default=0.0, metadata={"doc": "Least time between chunks of one client after its first; 0 holds nothing back."}
    )
    attach_wait_s: float = field(default=10.0, metadata={"doc": "How long a start waits for the coordinator's terms."})
