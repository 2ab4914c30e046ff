"""One local Ray cluster, brought up and taken down by the commands a user types."""

import asyncio
import contextlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.process_tags import marked
from dspark.client import Chunk, Client, ProcessStatus, find_cell
from dspark.client.cell import cell_file, is_alive
from dspark.errors import DsparkError, Unavailable
from dspark.wire.v1 import verify_pb2_grpc
from dspark.wire.v1.types_pb2 import DescribeRequest
from tests.commands import DSPARK, dspark, run
from tests.faults.oracle import plain_greedy
from tests.faults.secured_cell import listeners
from tests.faults.streams import Stream, asking
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

PROMPT = [5, 9, 17, 33]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("DSPARK_HOME", str(folder))
        yield folder
        dspark("down")


@pytest.fixture(scope="session")
def cluster(home: Path, golden_target: Path, golden_drafter: Path) -> Iterator[Client]:
    came_up = run("up", "--target", str(golden_target), "--drafter", str(golden_drafter))
    assert came_up.returncode == 0, came_up.stderr
    with Client() as client:
        assert came_up.stdout.strip() == client.endpoint
        yield client


def _processes() -> dict[str, ProcessStatus]:
    with Client() as client:
        return {process.name: process for process in client.status().processes}


def _kill(name: str) -> tuple[ProcessStatus, ProcessStatus]:
    """What a process was, and what serves in its place."""
    before = _processes()[name]
    assert before.pid in marked(find_cell().cell_id), "only processes of this cluster are hurt"
    os.kill(before.pid, signal.SIGKILL)

    def replaced() -> bool:
        with contextlib.suppress(DsparkError):
            now = _processes().get(name, before)
            return now.incarnation != before.incarnation and now.state == "serving"
        return False

    wait_until(replaced, 120)
    return before, _processes()[name]


def test_a_cluster_answers_as_the_target_alone(
    cluster: Client, golden_target: Path, golden_drafter: Path
) -> None:
    answer = cluster.complete(PROMPT, max_tokens=32, temperature=0.0, ignore_eos=True)
    assert [list(answer.token_ids)] == plain_greedy(golden_target, [PROMPT], 32)
    assert answer.end.speculation.verified_tokens > 0


def test_every_process_listens_on_loopback_only(cluster: Client) -> None:
    found = [one for pid in marked(find_cell().cell_id) for one in listeners(str(pid), pid)]
    assert {int(one.process) for one in found} >= {each.pid for each in _processes().values()}
    assert not [
        one
        for one in found
        if not ipaddress.ip_address(one.address.removeprefix("::ffff:")).is_loopback
    ]


def test_workers_refuse_calls_without_the_shared_token(cluster: Client) -> None:
    with grpc.insecure_channel(_processes()["verify/0"].endpoint) as channel:
        stub = verify_pb2_grpc.VerifyStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Describe(DescribeRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (find_cell().token() or "") != ""
    assert Path(find_cell().token_file).stat().st_mode & 0o077 == 0
    assert Path(find_cell().ray_dir).stat().st_mode & 0o077 == 0, "sockets and logs of Ray"
    assert run("logs", "-n", "1").stdout, "they are found there"


def test_a_second_up_is_refused_and_the_first_unharmed(
    cluster: Client, golden_target: Path
) -> None:
    second = run("up", "--target", str(golden_target), "--drafter", str(golden_target))
    assert second.returncode == 1
    assert (
        second.stderr
        == f"dspark: a cluster is already up at {cluster.endpoint}; `dspark down` ends it\n"
    )
    assert cluster.complete(PROMPT, max_tokens=2, ignore_eos=True).end.finish_reason == "length"


async def test_a_killed_drafter_is_replaced_while_streams_go_on(cluster: Client) -> None:
    async with undisturbed(cluster, {"max_tokens": 200, "temperature": 0.0}):
        await asyncio.sleep(0.3)
        before, after = await asyncio.to_thread(_kill, "draft/0")
    assert after.pid != before.pid
    answer = cluster.complete(
        PROMPT, max_tokens=32, temperature=0.0, ignore_eos=True, policy="fixed:3"
    )
    assert answer.end.speculation.draft_tokens > 0, "the new drafter drafts"


def test_a_killed_coordinator_comes_back_at_the_same_endpoint(cluster: Client) -> None:
    before, after = _kill("coordinator/0")
    assert after.endpoint == before.endpoint
    wait_until(lambda: "draft/0" in _processes())
    answer = cluster.complete(PROMPT, max_tokens=4, temperature=0.0, timeout=30)
    assert answer.end.usage.completion_tokens == 4


@contextlib.asynccontextmanager
async def undisturbed(cluster: Client, *asked: dict[str, Any]) -> AsyncIterator[None]:
    """Answers go on beside the body, each as it is without it."""
    streams = [Stream(PROMPT, options) for options in asked]
    async with asking(cluster, streams) as calm:
        pass
    async with asking(cluster, streams) as answers:
        yield
    for number, answer in enumerate((*calm, *answers)):
        assert (answer.error, answer.ids) == (None, calm[number % len(asked)].ids)


async def test_each_pool_is_scaled_by_itself_and_no_stream_notices(cluster: Client) -> None:
    def scaled(size: int) -> set[str]:
        assert dspark("scale", f"draft={size}") == f"1 verifiers, {size} drafters\n"
        return set(_processes())

    laws = ({"max_tokens": 64, "rule": "coupled", "seed": seed} for seed in range(4))
    async with undisturbed(cluster, *laws):
        assert {"draft/0", "draft/1", "verify/0"} < await asyncio.to_thread(scaled, 2)
        await asyncio.to_thread(scaled, 0)
        assert "draft/1" not in await asyncio.to_thread(scaled, 1)


def test_ray_sees_what_the_cell_reserves(cluster: Client) -> None:
    said = dspark("ray", "--", "status")
    for kind, unit in (("CPU", ""), ("memory", "GiB")):
        used, there = re.findall(rf"([\d.]+)\w*/([\d.]+){unit} {kind}", said)[0]
        assert 0 < float(used) <= float(there)


def test_what_processes_wrote_and_where_their_metrics_are(cluster: Client) -> None:
    records = [
        json.loads(line) for line in dspark("logs", "verify/0", "--json", "-n", "0").splitlines()
    ]
    assert "verify.serving" in {record["event"] for record in records}
    assert {record["process"] for record in records} == {"verify/0"}
    for group in json.loads(dspark("sd")):
        with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=10) as reply:
            assert b"dspark_rounds_total" in reply.read()


def test_down_lets_streams_finish_and_leaves_no_process_no_folder_and_no_state(
    cluster: Client, home: Path
) -> None:
    cell = find_cell()
    pids = marked(cell.cell_id)
    assert len(pids) >= 5
    broken: list[int] = []
    finished: list[str] = []

    def ask() -> None:
        while True:
            tokens = 0
            try:
                for event in cluster.generate(
                    PROMPT, max_tokens=200, temperature=0.0, ignore_eos=True
                ):
                    if isinstance(event, Chunk):
                        tokens += len(event.token_ids)
                    else:
                        finished.append(event.finish_reason)
            except Unavailable:  # it takes nobody new
                if tokens:
                    broken.append(tokens)
                return

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    while len(finished) < 4:
        time.sleep(0.05)
    down = run("down", "--grace-s", "60")
    for thread in asking:
        thread.join(60)
    assert not broken, "every stream that had begun ended well"
    assert set(finished) == {"length"}
    assert down.stderr.strip().endswith(f"down: {cell.endpoint}")
    assert marked(cell.cell_id) == []
    assert not any(is_alive(pid) for pid in pids)
    assert not Path(cell.ray_dir).exists()
    assert not cell_file().exists()


@pytest.mark.slow  # a `dspark down` elsewhere is given its time
def test_whoever_stays_with_a_cell_learns_that_its_ray_is_gone(
    golden_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    words = ("up", "--target", str(golden_target), "--drafter", "none", "--http", "none", "--block")
    with subprocess.Popen(
        [*DSPARK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as staying:
        assert staying.stdout is not None
        assert staying.stdout.readline().strip(), "it serves"
        cell = find_cell()
        os.kill(cell.ray_pid, signal.SIGKILL)
        _, said = staying.communicate(timeout=240)
    assert staying.returncode == 1
    assert f"dspark: the cell has ended: its Ray cluster (process {cell.ray_pid}) is gone" in said
    assert marked(cell.cell_id) == []
    assert not cell_file().exists()
