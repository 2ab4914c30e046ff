"""The examples for clients against a cell of the tiny pair, and reflection as grpcurl uses it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from dspark.client.cell import write_cell
from dspark.loadgen import prometheus
from tests.faults.processes import FaultCell
from tests.noted_cell import CELL
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCell]:
    folder = tmp_path_factory.mktemp("cell")
    door = {"http": "127.0.0.1:0", "journal": folder / "journal"}
    with FaultCell(coordinator=door, folder=folder) as running:
        yield running


@pytest.fixture
def home(cell: FaultCell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state folder that names the cell, as `dspark up` leaves one."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    write_cell(replace(CELL, endpoint=cell.endpoint, http=cell.http))
    return tmp_path


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )


def run(name: str, *arguments: str) -> str:
    process = start(name, *arguments)
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 0, complained
    return said


@pytest.mark.parametrize("name", ["stream.py", "openai_client.py"])
def test_an_answer_is_streamed(home: Path, name: str) -> None:
    said = run(name, "Problem 1:", "Add", "12", "and", "30.")
    assert re.search(r"\n\[\d+ tokens, \d\.\d\d a round\]\n", said)


def test_many_are_asked_at_once(home: Path) -> None:
    assert run("many_at_once.py").count("---") == 3


def ended(cell: FaultCell, outcome: str) -> float:
    """Answers so far that ended so."""
    samples = prometheus.fetch(f"{cell.http}/metrics")
    return prometheus.total(samples, "dspark_requests_total", f'outcome="{outcome}"')


def test_every_way_to_cancel_frees_what_was_held(cell: FaultCell, home: Path) -> None:
    before = {outcome: ended(cell, outcome) for outcome in ("cancelled", "expired", "abort")}
    said = run("cancel.py")
    assert "left the loop" in said
    assert "left the block" in said
    assert "the deadline passed" in said
    assert "ended by id: my-request" in said
    assert "finish reason: abort" in said
    with cell.client() as client:
        wait_until(lambda: not any(process.sequences for process in client.status().processes))
    assert {outcome: ended(cell, outcome) - count for outcome, count in before.items()} == {
        "cancelled": 2,
        "expired": 1,
        "abort": 1,
    }


def test_an_answer_goes_on_behind_a_lost_coordinator(cell: FaultCell, home: Path) -> None:
    whole = run("resume.py", "300")
    assert "[300 tokens, resumed 0 times]" in whole
    with start("resume.py", "300") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # more of it waits in the pipe's buffer, where `communicate` would lose it
        begun = process.stdout.read(40)
        cell.replace("coordinator/0")
        rest, complained = process.stdout.read(), process.stderr.read()
        assert process.wait(120) == 0, complained
    assert re.search(r"\[300 tokens, resumed \d+ times\]", rest)
    assert (begun + rest).rpartition("[")[0] == whole.rpartition("[")[0]


def test_reflection_tells_enough_to_call_without_protos(cell: FaultCell) -> None:
    with grpc.insecure_channel(cell.endpoint) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"dspark.wire.v1.Generation", "grpc.health.v1.Health"} <= set(
            database.get_services()
        )
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("dspark.wire.v1.Generation")
        method = service.FindMethodByName("Generate")
        asked = ParseDict(
            {
                "text": "def add(",
                "samplingParams": {"maxTokens": 8, "temperature": 0, "ignoreEos": True},
            },
            GetMessageClass(method.input_type)(),
        )
        call = channel.unary_stream(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        replies = [MessageToDict(reply) for reply in call(asked, timeout=30)]
    assert replies[-1]["complete"]["usage"]["completionTokens"] == 8
    assert sum(len(reply["chunk"]["tokenIds"]) for reply in replies[:-1]) == 8
