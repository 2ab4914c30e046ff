"""Settings of a coordinator and of a front end. Cheap to import: the deployment reads them too."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from dspark.runtime.listen_config import PublicConfig
from dspark.runtime.setting import setting

SYNCS = ("always", "interval")  # values of `journal_sync`
TOOL_FORMATS = (
    "hermes",
    "llama_json",
    "mistral",
    "mistral_named",
    "deepseek",
    "deepseek_named",
    "gpt_oss",
)
HTTP_LIBRARIES = ("fastapi", "uvicorn", "httptools", "jinja2")


def http_missing() -> list[str]:
    """Names of the libraries that the HTTP front needs and that are not installed."""
    return [name for name in HTTP_LIBRARIES if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, kw_only=True)
class ClientsConfig(PublicConfig):
    """Settings of every process that serves clients: a coordinator or a front end."""

    target: str | None = setting(None, "Folder or hub id whose tokenizer is used; absent: ids.")
    target_revision: str | None = setting(None, "Hub revision of the target.")
    max_unread_s: float = setting(
        10.0, "How long a client may leave a message untaken before it is cut.", above=0
    )
    max_unread: int = setting(1024, "Commits a client may leave unread before it is cut.", least=1)
    request_deadline_s: float = setting(600.0, "Longest life of any request.", above=0)
    http: str | None = setting(
        None, "host:port of the OpenAI-compatible HTTP front; port 0 takes any; absent: none."
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Origins of web pages that may ask from a browser, e.g. https://chat.example; * is any, "
        "where callers need a key.",
    )
    default_max_tokens: int = setting(
        256, "Longest answer to a chat over HTTP that sets no limit; over gRPC it is 256.", least=1
    )
    tool_format: str = setting(
        "",
        "How the target writes calls of tools, see docs/openai.md; empty: read off its template.",
        one_of=("", *TOOL_FORMATS),
    )


@dataclass(frozen=True)
class CoordinatorConfig(ClientsConfig):
    """Settings of one coordinator process."""

    verify: tuple[str, ...] = setting((), "host:port of verifiers known from the start.")
    draft: tuple[str, ...] = setting((), "host:port of drafters known from the start.")
    policy: str = setting("adaptive", "Default policy: off, fixed:k, threshold:t or adaptive.")
    rule: str = setting("block", "Default acceptance rule: token, block or coupled.")
    bypass: bool = setting(True, "Let adaptive sequences go without drafts where these do not pay.")
    window: int = setting(
        2,
        "Rounds a verifier may run beyond the last one that is committed; 0 is lockstep.",
        least=0,
        most=1 << 16,
    )
    cohorts: int = setting(
        0,
        "Cohorts that take turns in a lane: 1, 2, or 0 for whichever commits faster.",
        one_of=(0, 1, 2),
    )
    max_running: int = setting(256, "Requests in rounds or prefill at one time.", least=1)
    max_queued: int = setting(1024, "Requests that may wait; more are refused.", least=0)
    max_prefills: int = setting(32, "Prefills at one time per verifier; the others wait.", least=1)
    queue_deadline_s: float = setting(
        60.0,
        "Longest wait for a place; a request that waited longer is refused with a retry hint.",
        above=0,
    )
    prefill_deadline_s: float = setting(
        120.0, "Silence after which a verifier that owes a prefill is lost.", above=0
    )
    verify_deadline_s: float = setting(
        10.0, "Silence after which a verifier in rounds is lost, and a sequence moves.", above=0
    )
    describe_deadline_s: float = setting(
        2.0, "Longest wait for a worker to say what it is.", above=0
    )
    warm_up_s: float = setting(
        30.0,
        "Longest time for the first requests that run before a worker serves, and for a drafter to "
        "come before the cell is ready without; 0: no such requests.",
        least=0,
    )
    verifier_wait_s: float = setting(
        20.0,
        "How long requests that were taken in wait for another verifier, while new ones are "
        "refused; one that is there may run its first requests besides.",
        above=0,
    )
    max_handovers: int = setting(4, "Verifiers a request may lose before it fails.", least=0)
    live_page: bool = setting(True, "Serve the live page at / of the HTTP front.")
    live_streams: int = setting(
        16, "Background streams the live page may add at most; 0 takes its slider away.", least=0
    )
    flap_limit: int = setting(
        4, "Losses of a worker within a minute after which it is held off; 0: never.", least=0
    )
    otel_endpoint: str | None = setting(
        None, "host:port of an OTLP collector (gRPC) that gets spans; absent: none."
    )
    otel_share: float = setting(
        0.01,
        "Share of requests that are traced where callers bring no trace context.",
        least=0,
        most=1,
    )
    journal: str | None = setting(
        None, "Folder that keeps what was committed, so that clients resume; absent: none."
    )
    journal_sync: str = setting(
        "interval",
        "When it is on the disk: `always` before a token is shown, or `interval`.",
        one_of=SYNCS,
    )
    journal_sync_s: float = setting(1.0, "Longest time to the disk under `interval`.", above=0)
    journal_keep_s: float = setting(
        600.0, "How long an answer can be resumed after its end or the loss of its client.", above=0
    )
    journal_segment_mb: int = setting(
        64,
        "Megabytes of a segment of the journal; at most two stand on the disk.",
        least=1,
        most=1 << 20,
    )


@dataclass(frozen=True)
class FrontendConfig(ClientsConfig):
    """Settings of one front end process."""

    coordinator: str = setting("", "host:port of the coordinator; required.")
    max_streams: int = setting(4096, "Requests at one time; more are refused.", least=1)
    chunk_interval_ms: float = setting(
        0.0,
        "Least time between chunks of one client after its first; 0 holds nothing back.",
        least=0,
        most=10_000,
    )
    attach_wait_s: float = setting(
        10.0, "How long a start waits for the coordinator's terms.", above=0
    )
