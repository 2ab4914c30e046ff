"""Row 28: a prompt, a key and metadata that occur nowhere else are looked for in everything a cell
puts out.

Every process logs at DEBUG and gRPC at its own. Requests end in every way: well, refused for each
field, cancelled, expired, handed over after a kill; over gRPC and HTTP. Then logs, metrics, status
and every error text are searched for the canaries: as text, as token ids, as base64, as parts of
words.
"""

import base64
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from benchmarks.pair import Pair
from benchmarks.row import note
from dspark.client import Client, DsparkError
from tests.faults.pair import DRAFTER, TARGET
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.watch import Watch
from tests.keys import key_files

PROMPT = "The zanzibarite quokkaflute sings of vermilionhearth at midnight"
WORDS = ("zanzibarite", "quokkaflute", "vermilionhearth", "Zanzibarite")
STOP = "xylophagousbeacon"
CLIENT = "canary-key-of-a-client-5f1e77"
HEADER = "canary-header-93ab02"


def use(cell: FaultCell, errors: list[str]) -> None:
    """Requests that end in every way."""
    with Client(cell.endpoint, token=CLIENT) as client:
        wrong: list[dict[str, Any]] = [
            {"temperature": -1.0},
            {"top_p": 7.0},
            {"policy": "nonsense"},
            {"stop": [STOP] * 1000},
            {"max_tokens": 1 << 30},
            {"logit_bias": {1 << 30: 1.0}},
            {"rule": "nonsense"},
            {"n": 100_000},
        ]
        for options in wrong:
            with contextlib.suppress(TypeError, ValueError):
                _asked(client, errors, **{"max_tokens": 4, **options})
        _asked(client, errors, max_tokens=40, stop=[STOP])
        _asked(client, errors, max_tokens=2000, timeout=0.05)
        stream = client.generate(PROMPT, max_tokens=500)
        next(iter(stream))
        stream.close()
        stream = client.generate(PROMPT, max_tokens=200, ignore_eos=True)
        next(iter(stream))
        cell.kill("verify/0")
        with contextlib.suppress(DsparkError):
            for _ in stream:
                pass
    with Client(cell.endpoint, token=CLIENT + "x") as stranger:
        _asked(stranger, errors, max_tokens=4)
    for path, body in (
        ("/v1/completions", {"model": "x", "prompt": PROMPT, "max_tokens": 4}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": PROMPT}], "temperature": PROMPT},
        ),
        ("/v1/chat/completions", {"messages": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"text": PROMPT}}]}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "stop": [STOP] * 1000}),
    ):
        errors.append(_posted(cell.http, path, body))


def _asked(client: Client, errors: list[str], **options: Any) -> None:
    try:
        client.complete(PROMPT, **options)
    except DsparkError as error:
        errors.append(f"{type(error).__name__}: {error}")


def _posted(url: str, path: str, body: dict[str, Any]) -> str:
    """The error that HTTP gives, empty after success: an answer may of course repeat its prompt."""
    headers = {"Authorization": f"Bearer {CLIENT}", "X-Canary": HEADER}
    reply = httpx.post(url + path, json=body, headers=headers, timeout=30)
    return reply.text if reply.status_code >= 400 else ""


def canaries(worker: str) -> dict[str, str]:
    """What must not be found, by what it is."""
    ids = Pair(TARGET, DRAFTER).token_ids(PROMPT)
    return {
        **{f"word {word}": word for word in WORDS},
        "stop string": STOP,
        "a client's key": CLIENT,
        "the workers' key": worker,
        "header": HEADER,
        "token ids": ", ".join(map(str, ids[2:8])),
        "token ids, packed": ",".join(map(str, ids[2:8])),
        "base64": base64.b64encode(PROMPT.encode()[:30]).decode(),
    }


def rows(args: Args) -> Rows:
    errors: list[str] = []
    outputs: dict[str, str] = {}
    loud = {"GRPC_VERBOSITY": "debug", "TRANSFORMERS_VERBOSITY": "debug"}
    with (
        tempfile.TemporaryDirectory(prefix="dspark-canary-") as name,
        Watch(),
        mock.patch.dict(os.environ, loud),
    ):
        folder = Path(name)
        flags: dict[str, Any] = {**key_files(folder, {"": CLIENT})}
        flags["coordinator"]["http"] = "127.0.0.1:0"
        worker = (folder / "worker").read_text().strip()
        with FaultCell(verifiers=2, folder=folder, **flags) as cell:
            use(cell, errors)
            with cell.client() as client:
                status = client.status()
            outputs["status"] = str(status)
            for process in status.processes:
                if process.metrics_port:
                    page = f"http://127.0.0.1:{process.metrics_port}/metrics"
                    shown = {"Authorization": f"Bearer {worker}"}
                    reply = httpx.get(page, headers=shown, timeout=10).raise_for_status()
                    outputs[f"metrics of {process.name}"] = reply.text
            children = dict(cell.children)
        for who, child in children.items():
            outputs[f"log of {who}"] = child.log.read_text(encoding="utf-8", errors="replace")
        outputs["command lines"] = " ".join(
            word for child in children.values() for word in child.command
        )
    outputs["errors"] = "\n".join(errors)
    hits = [
        f"{what} in {where}: ...{text[max(text.find(canary) - 60, 0) : text.find(canary) + 20]!r}"
        for where, text in outputs.items()
        for what, canary in canaries(worker).items()
        if canary in text
    ]
    debug = sum(text.count('"level": "debug"') for text in outputs.values())
    note(f"{debug} lines at DEBUG")
    value = {
        "outputs": len(outputs),
        "bytes": sum(map(len, outputs.values())),
        "debug_lines": debug,
        "errors": len(errors),
        "hits": hits[:6],
        "hits_in_all": len(hits),
    }
    bars = {
        "0 hits in logs at DEBUG, metrics, status, errors and command lines": not hits,
        "all of them were there to be searched": debug > 0
        and len(errors) >= 8
        and sum(key.startswith("metrics") for key in outputs) >= 3,
    }
    yield statement("28", "canaries in nothing that is put out", value, bars)
