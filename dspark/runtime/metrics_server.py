"""Serves `/metrics` over HTTP, in the exposition formats of Prometheus.

Access is that of all listeners: TLS where the process has certificates, then a token or a
certificate's name.
"""

from __future__ import annotations

import ssl

from prometheus_client.exposition import choose_encoder

from dspark.errors import Denied, Forbidden
from dspark.runtime.roles import METRICS
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.runtime.threaded_http import Page, ThreadedHttp


class MetricsServer(ThreadedHttp):
    """Serves `/metrics` until closed, on the host of `bind`, or on loopback where readers need no
    credentials; port 0 takes any."""

    def __init__(self, metrics: Metrics, security: Security, bind: str, port: int) -> None:
        self.exposed, self.access = metrics.exposed, security.access
        self.denied = metrics.denied
        super().__init__(
            "metrics_port",
            (security.metrics_host(bind), port),
            _Metrics,
            context=security.server_context(),
            ended=lambda why: metrics.dropped.labels(
                kind="connection", reason=f"metrics_{why}"
            ).inc(),
        )


class _Metrics(Page):
    server: MetricsServer

    def do_GET(self) -> None:
        try:
            shown = self.headers.get("Authorization")
            self.server.access.admit("/metrics", METRICS, authorization=shown, names=self._names())
        except Denied as error:
            self.server.denied(error)
            self.answer(403 if isinstance(error, Forbidden) else 401, b"", "text/plain")
            return
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.answer(404, b"", "text/plain")
            return
        encoder, kind = choose_encoder(self.headers.get("Accept", ""))
        self.answer(200, encoder(self.server.exposed), kind)

    def _names(self) -> list[str]:
        """Alternative names of the reader's certificate, which TLS has verified."""
        if not isinstance(self.connection, ssl.SSLSocket):
            return []
        shown = self.connection.getpeercert() or {}
        return [str(name[1]) for name in shown.get("subjectAltName", ())]
