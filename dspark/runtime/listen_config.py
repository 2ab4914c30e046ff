"""What every process that listens can be told about who gets in. Light: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.runtime.identity import DEFAULT_CELL


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Where a process listens, and to whom. Every process has these keys."""

    bind: str = field(default="127.0.0.1:0", metadata={"doc": "host:port of the gRPC server; port 0 takes any."})
    metrics_port: int | None = field(
        default=0,
        metadata={
            "doc": "Port of /metrics; 0 takes any, none is off. On loopback, unless metrics_token_file, tls_ca or "
            "insecure lets it listen where `bind` says."
        },
    )
    token_file: str | None = field(default=None, metadata={"doc": "File that holds the shared worker token."})
    operator_token_file: str | None = field(
        default=None, metadata={"doc": "File that holds the operators' token; absent: the worker token is theirs too."}
    )
    metrics_token_file: str | None = field(
        default=None, metadata={"doc": "File that holds the token that reads /metrics, and nothing else."}
    )
    tls_cert: str | None = field(
        default=None, metadata={"doc": "PEM file of this process's certificate chain; every listener speaks TLS then."}
    )
    tls_key: str | None = field(default=None, metadata={"doc": "PEM file of its private key."})
    tls_ca: str | None = field(
        default=None, metadata={"doc": "PEM file of the authority: callers need a certificate of it, and so do peers."}
    )
    tls_server_name: str | None = field(
        default=None, metadata={"doc": "Name expected in other processes' certificates; absent: their address."}
    )
    tls_require_client_cert: bool = field(
        default=True, metadata={"doc": "With tls_ca: callers need a certificate; off, tokens alone say who calls."}
    )
    cell: str = field(default=DEFAULT_CELL, metadata={"doc": "Name of the cell: the label `cell` of every metric."})
    served_model: str | None = field(
        default=None,
        metadata={
            "doc": "What HTTP clients call the target, and the label `model_name` of every metric; absent: the "
            "folder's name, or the hub id."
        },
    )
    insecure: bool = field(default=False, metadata={"doc": "Listen beyond loopback without asking who calls."})
    cpus: str | None = field(
        default=None,
        metadata={
            "doc": "Processors the process is kept to, like 0-3,8; absent: any, or on a machine of two where the "
            "cell's starter puts it."
        },
    )


@dataclass(frozen=True, kw_only=True)
class PublicConfig(ListenConfig):
    """The same for processes that clients call."""

    client_token_file: str | None = field(
        default=None,
        metadata={
            "doc": "File of tokens clients need, one a line: TOKEN, or TENANT TOKEN. Read again when it changes."
        },
    )
    max_streams_per_connection: int = field(
        default=0,
        metadata={
            "doc": "Calls one connection may have open; more wait at the client. Bounds what one peer can put before "
            "all others by cancelling calls. 0: 100 beyond loopback, on loopback as many as may run and queue."
        },
    )
    pace_interval_ms: float = field(
        default=0.0,
        metadata={
            "doc": "Hide what packets tell of an answer: a message of one size so often, from its beginning; 0: no."
        },
    )
    pace_frame_bytes: int = field(default=1024, metadata={"doc": "Bytes of such a message."})
    pace_tokens_per_s: float = field(
        default=20.0,
        metadata={"doc": "How fast such answers look: one of at most N tokens takes N over this many seconds."},
    )
