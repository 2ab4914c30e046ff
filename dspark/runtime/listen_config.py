"""Settings of every process that listens: where it listens, and which callers it admits. Light,
because the deployment reads them too."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.runtime.identity import DEFAULT_CELL
from dspark.runtime.setting import setting

ENGINES = ("real", "synthetic")
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Where a process listens, and which callers it admits. Every process has these keys."""

    bind: str = setting("127.0.0.1:0", "host:port of the gRPC server; port 0 takes any.")
    metrics_port: int | None = setting(
        0,
        "Port of /metrics; 0 takes any, none is off. On loopback, unless metrics_token_file, "
        "tls_ca or insecure lets it listen where `bind` says.",
        least=0,
        most=65535,
    )
    token_file: str | None = setting(None, "File that holds the shared worker token.")
    operator_token_file: str | None = setting(
        None, "File that holds the operators' token; absent: the worker token is theirs too."
    )
    metrics_token_file: str | None = setting(
        None, "File that holds the token that reads /metrics, and nothing else."
    )
    tls_cert: str | None = setting(
        None, "PEM file of this process's certificate chain; every listener speaks TLS then."
    )
    tls_key: str | None = setting(None, "PEM file of its private key.")
    tls_ca: str | None = setting(
        None, "PEM file of the authority: callers need a certificate of it, and so do peers."
    )
    tls_server_name: str | None = setting(
        None, "Name expected in other processes' certificates; absent: their address."
    )
    tls_require_client_cert: bool = setting(
        True, "With tls_ca: callers need a certificate; off: a token is enough."
    )
    cell: str = setting(DEFAULT_CELL, "Name of the cell: the label `cell` of every metric.")
    served_model: str | None = setting(
        None,
        "What HTTP clients call the target, and the label `model_name` of every metric; absent: "
        "the folder's name, or the hub id.",
    )
    insecure: bool = setting(False, "Listen beyond loopback without authentication.")
    cpus: str | None = setting(None, "Processors the process is kept to, like 0-3,8; absent: any.")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(ListenConfig):
    """What a verifier and a drafter have in common."""

    engine: str = setting(
        "real", "real, or synthetic: no weights, given step times.", one_of=ENGINES
    )
    synthetic: str | None = setting(None, "YAML file of a synthetic engine.")
    target_revision: str | None = setting(None, "Hub revision of the target.")
    drafter_revision: str | None = setting(None, "Hub revision of the drafter.")
    device: str = setting("auto", "auto, cpu, cuda or cuda:N.")
    dtype: str = setting("auto", "auto, float32, bfloat16 or float16.", one_of=DTYPES)
    threads: int = setting(
        0, "Torch threads of passes; 0: by the processors there are.", least=0, most=1024
    )
    measure_cost: bool = setting(True, "Measure the cost curve at start, or load a stored one.")


@dataclass(frozen=True, kw_only=True)
class PublicConfig(ListenConfig):
    """Where a process that clients call listens, and which callers it admits."""

    client_token_file: str | None = setting(
        None,
        "File of tokens clients need, one a line: TOKEN, or TENANT TOKEN. Read again when it "
        "changes.",
    )
    max_streams_per_connection: int = setting(
        0,
        "Calls one connection may have open; more wait at the client. Bounds what one peer can put "
        "before all others by cancelling calls. 0: 100 beyond loopback, on loopback as many as may "
        "run and queue.",
        least=0,
    )
    pace_interval_ms: float = setting(
        0.0,
        "Hide what packets tell of an answer: a message of one size so often, from its beginning; "
        "0: no.",
        least=0,
        most=10_000,
    )
    pace_frame_bytes: int = setting(1024, "Bytes of such a message.", least=512, most=8192)
    pace_tokens_per_s: float = setting(
        20.0,
        "How fast such answers look: one of at most N tokens takes N over this many seconds.",
        above=0,
        most=1_000_000,
    )
