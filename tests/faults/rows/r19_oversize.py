"""Row 19: what is too large or too many is refused before anything is made of it, alike at every
entry.

One table of requests, each asked of the coordinator, of a front end before it and, where the
interface has such a field, over HTTP; and one of commands to the workers. Processor time and the
peak of resident memory are the server's, as the kernel counts them.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx

from benchmarks.row import note
from deploy.head import free_ports
from dspark.runtime.channel import sync_channel
from dspark.wire.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    features_pb2,
    generate_pb2,
    types_pb2,
    verify_pb2,
    verify_pb2_grpc,
)
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement

MIB = 1 << 20
MANY = 1_000_000
TRIES = 5
MOST_MS, MOST_GROWTH = 10.0, 2.0
SPARE = 4 * MIB  # of memory that an allocator keeps for itself
STREAMS = {"verify": "/dspark.wire.v1.Verify/Control", "draft": "/dspark.wire.v1.Draft/Rounds"}


@dataclass(frozen=True)
class Case:
    """A request. http: the same as a body of /v1/completions. metadata: of the call."""

    name: str
    message: bytes
    http: dict[str, Any] | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    method: str = "/dspark.wire.v1.Generation/Generate"
    first: tuple[bytes, ...] = ()  # what a stream begins with, as an honest peer would
    # numbers in it, which take a byte each on the wire and a word each once they are read
    values: int = 0

    @property
    def size(self) -> int:
        return max(
            len(self.message), sum(len(value) for _, value in self.metadata), 8 * self.values
        )


def rows(args: Args) -> Rows:
    rows: list[dict[str, Any]] = []
    host = f"127.0.0.1:{free_ports(1)[0]}"
    with FaultCell(coordinator={"http": host}) as cell:
        cell.add_front_end()
        before = {name: child.pid for name, child in cell.children.items()}
        for name in ("coordinator/0", "frontend/0"):
            with sync_channel(cell.children[name].endpoint) as channel:
                rows += [
                    _measured(cell, name, case, partial(_grpc, channel, case))
                    for case in _requests()
                ]
        for case in _requests():
            if case.http is not None:
                body = json.dumps({"model": "", "prompt": [1, 2, 3], **case.http}).encode()
                ask = partial(_http, host, body)
                rows.append(_measured(cell, "coordinator/0", case, ask, "http", len(body)))
        for role, endpoint, case in _commands(cell):
            with sync_channel(endpoint) as channel:
                ask = partial(_grpc, channel, case)
                rows.append(_measured(cell, f"{role}/0", case, ask, "stream"))
        with cell.client() as client:
            served = len(client.complete([1, 2, 3], max_tokens=8, timeout=30).token_ids) == 8
        alive = all(
            cell.alive(name) and cell.children[name].pid == pid for name, pid in before.items()
        )
    for row in rows:
        note(json.dumps(row))
    let_in = [row["case"] for row in rows if not row["refused"]]
    grown = [f"{row['case']}: {row['growth']}" for row in rows if row["growth"] > MOST_GROWTH]
    slow = [f"{row['case']}: {row['ms']} ms" for row in rows if row["ms"] > MOST_MS]
    value = {
        "cases": len(rows),
        "let_in": let_in,
        "above_10_ms": slow,
        "grown": grown,
        "slowest_ms": max(row["ms"] for row in rows),
        "same_processes": alive,
        "serves_after": served,
    }
    name = (
        "oversize and over-count requests are refused before anything is allocated, at every entry"
    )
    bars = {
        "all refused": not let_in and alive and served,
        f"in <= {MOST_MS:g} ms": not slow,
        f"memory <= +{MOST_GROWTH:g}x": not grown,
    }
    yield statement("19", name, value, bars)


def _requests() -> Iterator[Case]:
    def ask(**fields: Any) -> bytes:
        params = generate_pb2.SamplingParams(**fields)
        prompt = generate_pb2.TokenizedInput(input_ids=[1, 2, 3])
        return generate_pb2.GenerateRequest(
            tokenized=prompt, sampling_params=params
        ).SerializeToString()

    small = ask(max_tokens=4)
    long_text = "x" * (4 * MIB + 1)
    ids = generate_pb2.TokenizedInput(input_ids=[1] * MANY)
    huge = generate_pb2.GenerateRequest(request_id="r" * (16 * MIB))
    yield Case("message of 16 MiB + 1", huge.SerializeToString())
    yield Case(
        "text of 4 MiB + 1",
        generate_pb2.GenerateRequest(text=long_text).SerializeToString(),
        {"prompt": long_text},
    )
    yield Case(
        "a million ids",
        generate_pb2.GenerateRequest(tokenized=ids).SerializeToString(),
        {"prompt": [1] * MANY},
    )
    yield Case("metadata of 17 KiB", small, metadata=(("x-much", "y" * 17 * 1024),))
    yield Case("n of a thousand million", ask(n=10**9), {"n": 10**9})
    yield Case("max_tokens of 4e9", ask(max_tokens=2**32 - 1), {"max_tokens": 2**32 - 1})
    yield Case("100,000 stop strings", ask(stop=["stop"] * 100_000), {"stop": ["stop"] * 100_000})
    yield Case("a stop string of 1 MiB", ask(stop=["s" * MIB]), {"stop": "s" * MIB})
    yield Case("a million stop ids", ask(stop_token_ids=[1] * MANY))
    yield Case("200,000 biases", ask(logit_bias=dict.fromkeys(range(200_000), 1.0)))
    yield Case("logprobs of 4e9", ask(logprobs=2**31 - 1), {"logprobs": 2**31 - 1})
    for name, field in (("a request id of 1 MiB", "request_id"), ("a salt of 1 MiB", "cache_salt")):
        request = generate_pb2.GenerateRequest(tokenized={"input_ids": [1]})
        setattr(request, field, "r" * MIB)
        yield Case(name, request.SerializeToString())
    yield Case(
        "300,000 ids to abort",
        generate_pb2.AbortRequest(request_ids=["some-id"] * 300_000).SerializeToString(),
        method="/dspark.wire.v1.Generation/Abort",
    )


def _commands(cell: FaultCell) -> Iterator[tuple[str, str, Case]]:
    """(role, endpoint, case)"""
    many = [1] * MANY
    verify, draft = (cell.children[f"{role}/0"].endpoint for role in ("verify", "draft"))
    asked = types_pb2.DescribeRequest()
    with sync_channel(verify) as channel:
        verifier = verify_pb2_grpc.VerifyStub(channel).Describe(asked, timeout=20)
    with sync_channel(draft) as channel:
        drafter = draft_pb2_grpc.DraftStub(channel).Describe(asked, timeout=20)
    rounds = f"{draft.rpartition(':')[0]}:{drafter.rounds_port}" if drafter.rounds_port else draft
    hello = draft_pb2.RoundsHello(
        drafter_incarnation=drafter.incarnation,
        verifier_incarnation=verifier.incarnation,
        projection=drafter.projection,
    )
    begun = (draft_pb2.RoundsCommand(hello=hello).SerializeToString(),)
    stream: dict[str, Any] = {"method": STREAMS["draft"], "first": begun}
    params = types_pb2.SequenceSampling(temperature=1.0, top_p=1.0, rule=types_pb2.RULE_TOKEN)
    named = verify_pb2.Kept(sequence=many, epoch=many)
    claimed = verify_pb2.RoundPlan(
        cohorts=2**32 - 1, window=2**32 - 1, sequence=[1], own_terms=[2**32 - 1]
    )
    for name, order, values in (
        (
            "a prompt of a million ids",
            {"admission": verify_pb2.Admission(sequence=1, token_ids=many, sampling=params)},
            MANY,
        ),
        ("a list of a million", {"kept": named}, 2 * MANY),
        ("cohorts and windows of 4e9", {"plan": claimed}, 0),
    ):
        orders = [verify_pb2.ControlDown.Order(**order)]
        told = verify_pb2.ControlDown(incarnation=verifier.incarnation, orders=orders)
        case = Case(name, told.SerializeToString(), method=STREAMS["verify"], values=values)
        yield "verify", verify, case
    biased = types_pb2.SequenceSampling(
        temperature=1.0, top_p=1.0, rule=types_pb2.RULE_TOKEN, stop_token_ids=many, min_tokens=1
    )
    opening = draft_pb2.OpenContext(sequence=1, reserve_tokens=8, sampling=biased)
    command = draft_pb2.RoundsCommand(open=opening).SerializeToString()
    yield "draft", rounds, Case("a law of a million ids", command, **stream)
    long = draft_pb2.Order(
        order=1, sequence=many, epoch=many, round=many, committed_len=many, anchors=many
    )
    command = draft_pb2.RoundsCommand(order=long).SerializeToString()
    yield "draft", rounds, Case("an order of a million", command, **stream, values=5 * MANY)
    chunk = features_pb2.FeatureChunk(
        token_ids=[1] * 200_000,
        rows=types_pb2.TensorChunk(dtype="float32", shape=[2**32 - 1, 2**32 - 1]),
    )
    push = "/dspark.wire.v1.Features/Push"
    yield "draft", draft, Case("rows of 2^64", chunk.SerializeToString(), method=push)


def _measured(
    cell: FaultCell,
    name: str,
    case: Case,
    ask: Callable[[], bool],
    entry: str = "grpc",
    size: int = 0,
) -> dict[str, Any]:
    """ms: the server's processor time for a refusal, which no client's work blurs."""
    ask()  # what a connection and an allocator keep for next time
    status, pid = Path(f"/proc/{cell.children[name].pid}/status"), cell.children[name].pid
    refused = True
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets the peak
    before, began = _peak(status), _spent(pid)
    clock = time.perf_counter()
    for _ in range(TRIES):
        refused &= ask()
    waited, spent = (time.perf_counter() - clock) / TRIES, (_spent(pid) - began) / TRIES
    grown = max(_peak(status) - before - SPARE, 0) / max(size or case.size, 1)
    growth = round(grown, 2) if (size or case.size) >= MIB else 0.0
    return {
        "case": f"{case.name} at {name} {entry}",
        "refused": refused,
        "ms": round(1e3 * spent, 2),
        "round_trip_ms": round(1e3 * waited, 2),
        "growth": growth,
    }


def _spent(pid: int) -> float:
    """Seconds of processor time of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _peak(status: Path) -> int:
    """Bytes of resident memory at its highest."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _grpc(channel: grpc.Channel, case: Case) -> bool:
    """Whether it was refused: by a status, or within a stream of rows by an event that says so."""
    try:
        for event in channel.stream_stream(case.method)(
            iter([*case.first, case.message]), timeout=20, metadata=case.metadata
        ):
            if case.method.endswith("/Push"):
                return bool(features_pb2.FeatureAck.FromString(event).refused)
    except grpc.RpcError as error:
        return error.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    return False


def _http(host: str, body: bytes) -> bool:
    told = {"content-type": "application/json"}
    reply = httpx.post(f"http://{host}/v1/completions", content=body, headers=told, timeout=20)
    if not reply.is_client_error:
        note(f"{reply.status_code}: {reply.text[:300]!r}")
    return reply.is_client_error
