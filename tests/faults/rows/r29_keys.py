"""Row 29: without the right key every method of every service refuses, health alone answers.

Methods come from the protocol's descriptors and from what each listener says by reflection; roles
from nowhere: a key that is missing, wrong, cut, of another role or in another case is tried on
each. And over HTTP on every page.
"""

import ast
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx

from benchmarks.pair import ROOT
from benchmarks.row import note
from dspark.runtime.channel import sync_channel
from dspark.wire.v1 import generate_pb2
from tests.faults.boundaries import methods
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.keys import key_files

GENERATION = generate_pb2.DESCRIPTOR.services_by_name["Generation"]
METHODS = [*methods(), *(f"/{GENERATION.full_name}/{name}" for name in GENERATION.methods_by_name)]
OTHERS = (
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
)
HEALTH = "/grpc.health.v1.Health/Check"
PAGES = (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"))
# a listener that has not this method says so, which lets nobody in
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
ASK_S = 5.0
CLIENT = "client-key-0123456789abcdef"


def attempts(worker: str) -> Iterator[tuple[str, str, Any, tuple[grpc.StatusCode, ...]]]:
    """(method, what is wrong with the key, metadata, what refuses it)."""
    for method in (*METHODS, *OTHERS):
        for what, metadata in keys(worker):
            yield method, what, metadata, REFUSED
    client = (("authorization", f"Bearer {CLIENT}"),)
    for method in METHODS:
        if "Generation" not in method:
            yield method, "a client's", client, (*REFUSED, grpc.StatusCode.PERMISSION_DENIED)


def keys(worker: str) -> Iterator[tuple[str, Any]]:
    """(what is wrong, metadata)."""
    yield "none", ()
    yield "empty", (("authorization", ""),)
    yield "wrong", (("authorization", "Bearer " + "x" * len(worker)),)
    yield "cut", (("authorization", f"Bearer {worker[:-1]}"),)
    yield "longer", (("authorization", f"Bearer {worker}x"),)
    yield "other case", (("authorization", f"Bearer {worker.swapcase()}"),)
    yield "other scheme", (("authorization", f"Basic {worker}"),)
    yield "elsewhere", (("x-api-key", worker),)


def asked(channel: grpc.Channel, method: str, metadata: Any) -> grpc.StatusCode:
    """The status of one call; OK when anything came."""
    try:
        for _ in channel.stream_stream(method)(iter([b""]), timeout=ASK_S, metadata=metadata):
            return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def compares_in_constant_time() -> bool:
    """Whether the runtime compares tokens by `hmac.compare_digest` and never by `==`."""
    digests, plain = 0, 0
    for file in sorted((ROOT / "dspark" / "runtime").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("compare_digest"):
                digests += 1
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = {ast.unparse(side) for side in (node.left, *node.comparators)}
                plain += bool(sides & {"token", "secret", "given", "self.token", "self.worker"})
    return digests > 0 and plain == 0


def rows(args: Args) -> Rows:
    tried, let_in, free = 0, [], 0
    with tempfile.TemporaryDirectory(prefix="dspark-keys-") as name:
        folder = Path(name)
        flags: dict[str, Any] = {**key_files(folder, {"": CLIENT})}
        flags["coordinator"]["http"] = "127.0.0.1:0"
        worker = (folder / "worker").read_text().strip()
        with FaultCell(**flags) as cell:
            for name, child in cell.children.items():
                with sync_channel(child.endpoint) as channel:
                    for method, what, metadata, refusals in attempts(worker):
                        tried += 1
                        if (code := asked(channel, method, metadata)) not in refusals:
                            let_in.append(f"{name} {method}, a key that is {what}: {code.name}")
                    free += asked(channel, HEALTH, ()) is grpc.StatusCode.OK
            pages = 0
            for way, path in PAGES if cell.http else ():
                for headers in (
                    {},
                    {"Authorization": "Bearer wrong"},
                    {"Authorization": f"Basic {CLIENT}"},
                ):
                    pages += 1
                    reply = httpx.request(way, cell.http + path, headers=headers, json={})
                    if reply.status_code != 401:
                        let_in.append(f"HTTP {path}: {reply.status_code}")
            with cell.client() as good:
                served = good.complete([5, 9], max_tokens=4, ignore_eos=True).token_ids
        note(f"{tried} calls")
    value = {
        "methods": len(METHODS) + len(OTHERS),
        "calls_tried": tried,
        "pages_tried": pages,
        "let_in": let_in[:5],
        "health_free_at": free,
        "constant_time": compares_in_constant_time(),
        "the_right_key_serves": len(served) == 4,
    }
    bars = {
        "UNAUTHENTICATED from every method of every listener": not let_in and pages > 0,
        "health alone is free, the right key serves": free == 3 and len(served) == 4,
        "keys compared in constant time": value["constant_time"],
    }
    yield statement("29", "wrong or missing keys", value, bars)
