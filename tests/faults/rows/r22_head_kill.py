"""Row 22: SIGKILL of Ray's head (GCS) under running streams, and its restart: streams go on, and
the pool heals.

Ray runs as an operator would run it where the head may die: `ray start --head` with its state on
disk (`RAY_gcs_storage=rocksdb`), and `dspark up --address` into it. While the head is away a
drafter is killed too; once the head is back the controller has to find that out and start another
one.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.row import note
from deploy.head import free_ports
from deploy.process_tags import end_all, marked, new_cell_id
from deploy.ray_environment import environment
from dspark.client import AsyncClient
from dspark.runtime.identity import write_token
from tests.faults.pair import DRAFTER, TARGET
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import Stream, judged, wave

STREAMS = 8
AWAY_S = 5.0  # until a drafter is killed too
# the head is back by then, even under longer streams: Ray ends nodes after 60 s without one
AWAY_MOST_S = 30.0
BAR_S = 60.0
HEAD = "--head --node-ip-address=127.0.0.1 --include-dashboard=false --disable-usage-stats"
POOLS = "--verifiers=2 --drafters=2 --http=none"


OPTIONS = {"kills": 1, "tokens": 800}  # of the head, 20 in a night; of each answer


def rows(args: Args) -> Rows:
    with tempfile.TemporaryDirectory(prefix="dspark-gcs-", dir="/tmp") as name:
        site = Site(Path(name))
        try:
            site.start()
            value = asyncio.run(site.storm(int(args.kills), int(args.tokens)))
        finally:
            site.stop()
    healed = value["healed_s"]
    bars = {
        "0 streams failed, the target's ids or by its law": value["right"] == value["streams"],
        f"the pool whole within {BAR_S:g} s of the head's return": len(healed) == args.kills
        and max(healed, default=0.0) <= BAR_S,
    }
    yield statement("22", "a killed head stops no stream", value, bars)


class Site:
    """One machine with Ray on it and a cell in Ray."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._cell = folder, new_cell_id()
        (folder / "gcs").mkdir()
        write_token(folder / "token")
        self._environ: Mapping[str, str] = {
            **os.environ,
            **environment(folder / "token", self._cell),
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(folder / "gcs"),
            "DSPARK_HOME": str(folder / "home"),
        }
        self.endpoint = ""

    def start(self) -> None:
        (port,) = free_ports(1)
        where = (f"--port={port}", f"--temp-dir={self._folder / 'ray'}")
        self._run("ray.scripts.scripts", "start", *HEAD.split(), *where)
        note("Ray is up")
        pair = (f"--target={TARGET}", f"--drafter={DRAFTER}")
        address = f"--address=127.0.0.1:{port}"
        said = self._run("dspark.cli.main", "up", address, *pair, *POOLS.split())
        self.endpoint = said.strip().splitlines()[0]
        note(f"the cell serves at {self.endpoint}")

    def stop(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "dspark.cli.main", "down"],
            env=self._environ,
            check=False,
            timeout=120,
        )
        end_all(self._cell, 0)

    async def storm(self, kills: int, tokens: int) -> dict[str, Any]:
        token = (self._folder / "home" / "operator_token").read_text().strip()
        streams: list[Stream] = []
        healed: list[float] = []
        async with AsyncClient(self.endpoint, token=token) as client:
            for _ in range(kills):
                mine = wave(STREAMS, tokens)
                running = asyncio.gather(*(stream.run(client) for stream in mine))
                await asyncio.sleep(0.5)
                command = self._kill_head()
                await asyncio.sleep(AWAY_S)
                victim = next(
                    p for p in (await client.status()).processes if p.name.startswith("draft/")
                )
                os.kill(victim.pid, signal.SIGKILL)
                ended, _ = await asyncio.wait({running}, timeout=AWAY_MOST_S - AWAY_S)
                self._begin(command)
                back = time.monotonic()
                await running
                away = "while the head was away" if ended else "soon after the head came back"
                note(
                    f"{sum(one.finish == 'length' for one in mine)} of {len(mine)} streams ended "
                    f"{away}"
                )
                healed.append(round(await self._whole(client, back), 1))
                streams += mine
        return {
            "kills": kills,
            **judged(streams),
            "longest_pause_s": round(max(stream.longest_gap_s for stream in streams), 2),
            "healed_s": healed,
        }

    async def _whole(self, client: AsyncClient, since: float) -> float:
        while True:
            states = [
                p.state
                for p in (await client.status()).processes
                if p.name.startswith(("verify/", "draft/"))
            ]
            took = time.monotonic() - since
            if states.count("serving") == 4 or took > BAR_S + 10:
                return took
            await asyncio.sleep(0.25)

    def _kill_head(self) -> list[str]:
        """Returns the command that began it."""
        for pid in marked(self._cell):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            if words and words[0].endswith("gcs_server"):
                os.kill(pid, signal.SIGKILL)
                return words
        raise SystemExit("no gcs_server was found")

    def _begin(self, command: list[str]) -> None:
        with (self._folder / "gcs.log").open("ab") as log:
            subprocess.Popen(
                command, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )

    def _run(self, module: str, *words: str) -> str:
        command = [sys.executable, "-m", module, *words]
        ran = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, check=False, timeout=300
        )
        if ran.returncode:
            raise SystemExit(f"{module} {words[0]}: {(ran.stderr or ran.stdout).strip()[-2000:]}")
        return ran.stdout
