"""What a front end process can be told. Light: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.config import HttpConfig


@dataclass(frozen=True)
class FrontendConfig(HttpConfig):
    """One front end process."""

    coordinator: str = field(default="", metadata={"doc": "host:port of the coordinator; required."})
    target: str | None = field(default=None, metadata={"doc": "Folder or hub id whose tokenizer is used; absent: ids."})
    target_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the target."})
    max_streams: int = field(default=4096, metadata={"doc": "Requests at one time; more are refused."})
    max_unread_s: float = field(
        default=10.0, metadata={"doc": "How long a client may leave a message untaken before it is cut."}
    )
    max_unread: int = field(default=1024, metadata={"doc": "Commits a client may leave unread before it is cut."})
    request_deadline_s: float = field(default=600.0, metadata={"doc": "Longest life of any request."})
    chunk_interval_ms: float = field(
        default=0.0, metadata={"doc": "Least time between chunks of one client after its first; 0 holds nothing back."}
    )
    attach_wait_s: float = field(default=10.0, metadata={"doc": "How long a start waits for the coordinator's terms."})
