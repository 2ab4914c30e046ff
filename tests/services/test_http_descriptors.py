"""A coordinator with few file descriptors, and more idle connections than those: streams go on, and
little is said."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from dspark.loadgen import prometheus
from tests.services.http_cell import TARGET, HttpCell, synthetic_pair
from tests.waiting import wait_until

DESCRIPTORS, IDLE, TOKENS = 96, 120, 1500


@contextlib.contextmanager
def coordinator(cell: HttpCell, log: Path) -> Iterator[str]:
    """URL of one in a process of its own, before the same workers."""
    serve = (
        f"serve coordinator --target {TARGET} --http 127.0.0.1:0 --metrics-port 0 --ready-json "
        "--log-format json"
    )
    known = f"--verify {cell.verifier.endpoint} --draft {cell.drafter.endpoint}"
    words = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m dspark.cli.main {serve} {known}"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            ["bash", "-c", words], stdout=subprocess.PIPE, stderr=stderr, env=dict(os.environ)
        )
    try:
        yield str(json.loads(process.stdout.readline())["http"])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_idle_connections_beyond_all_descriptors_harm_no_stream(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with HttpCell(synthetic_pair(tmp_path), http=None) as cell, coordinator(cell, log) as url:
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        host, _, port = url.removeprefix("http://").rpartition(":")
        body = {
            "prompt": "abc",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
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
    lines = log.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 200, lines[:3]


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health").status_code == 200
    return False
