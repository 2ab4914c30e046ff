"""What a process that serves clients can be told about HTTP. Light: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.runtime.listen_config import PublicConfig


@dataclass(frozen=True, kw_only=True)
class HttpConfig(PublicConfig):
    """The keys of the HTTP front."""

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
