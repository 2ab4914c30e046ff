"""A coordinator with few file descriptors, and more idle connections than those: streams go on, and
little is said."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence

import httpx
from faults.pair import FLAT
from faults.processes import FaultCell

from deploy.processes import Child
from dspark.loadgen import prometheus
from tests.waiting import wait_until

DESCRIPTORS, IDLE, TOKENS = 96, 120, 600


class Poor(FaultCell):
    def _spawn(self, name: str, command: Sequence[str]) -> Child:
        few = ("bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "-")
        return super()._spawn(name, [*(few if name == "coordinator/0" else ()), *command])


def test_idle_connections_beyond_all_descriptors_harm_no_stream() -> None:
    workers, door = {"engine": "synthetic", "synthetic": FLAT}, {"http": "127.0.0.1:0"}
    with Poor(coordinator=door, verify=workers, draft=workers) as cell:
        url = cell.http
        host, _, port = url.removeprefix("http://").rpartition(":")
        body = {"prompt": "abc", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        body["return_token_ids"] = True
        told, idle = 0, list[socket.socket]()
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                told += sum(len(choice["token_ids"]) for choice in json.loads(line[6:])["choices"])
                if not idle:
                    idle = [
                        socket.create_connection((host, int(port)), timeout=30) for _ in range(IDLE)
                    ]
        assert told == TOKENS
        for each in idle:
            each.close()
        wait_until(lambda: _answers(url))
        counted = prometheus.fetch(f"{url}/metrics")
        assert prometheus.total(counted, "dspark_dropped_total", 'kind="connection"') > 0
        lines = cell.children["coordinator/0"].log.read_text(encoding="utf-8").splitlines()
        assert len(lines) < 200, lines[:3]


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").status_code == 200
    return False
