"""What a room's shell does on its node: secrets at hand, and addresses that others can reach."""

import stat
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from deploy import actors
from deploy.actors import DsparkProcess
from deploy.topology import ProcessRole
from dspark.runtime.identity import read_token, write_token

SECRET = "drawn-by-this-dspark-up"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The process a shell hosts, with the settings it was started with."""
    process = SimpleNamespace(endpoint="127.0.0.1:7000", incarnation=5, http_url=None, settings={})

    async def start_room(
        role: ProcessRole, settings: Mapping[str, Any], *, name: str
    ) -> SimpleNamespace:
        process.settings = dict(settings)
        return process

    monkeypatch.setattr(actors, "start_room", start_room)
    monkeypatch.setattr(actors, "configure_logging", lambda **_: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "state"))
    return process


async def _start(settings: Mapping[str, Any], secret: str = SECRET) -> dict[str, Any]:
    return await DsparkProcess("cell/verify/0").start(
        "verify", settings, name="verify/0", secrets={"token_file": secret}
    )


@pytest.mark.parametrize("before", ["nothing", "the secret", "another cell's"])
async def test_a_room_reads_the_secret_of_its_own_cell(
    started: SimpleNamespace, tmp_path: Path, before: str
) -> None:
    (tmp_path / "state").mkdir()
    wanted = tmp_path / "state" / "worker_token"
    if before == "another cell's":
        write_token(wanted)
        wanted.chmod(0o644)
    elif before == "the secret":
        wanted.write_text(f"{SECRET}\n")
        wanted.chmod(0o600)
    await _start({"token_file": str(wanted)})
    assert read_token(started.settings["token_file"]) == SECRET
    (mine,) = [
        path for path in wanted.parent.iterdir() if str(path) == started.settings["token_file"]
    ]
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    if before == "another cell's":  # which goes on reading it
        assert mine != wanted
        assert wanted.stat().st_mode & 0o077


async def test_cells_of_one_node_keep_their_secrets_apart(
    started: SimpleNamespace, tmp_path: Path
) -> None:
    elsewhere = {"token_file": "/another/node/worker_token"}
    await _start({**elsewhere, "cell": "one"})
    first = started.settings["token_file"]
    await _start({**elsewhere, "cell": "two"}, "another-secret-of-another-cell")
    assert read_token(first) == SECRET


@pytest.mark.parametrize(
    ("endpoint", "http", "told"),
    [
        ("0.0.0.0:7000", "http://0.0.0.0:8000", ("10.0.0.7:7000", "http://10.0.0.7:8000")),
        ("[::]:7000", "https://[::]:8000", ("10.0.0.7:7000", "https://10.0.0.7:8000")),
        ("127.0.0.1:7000", None, ("127.0.0.1:7000", "")),
    ],
)
async def test_who_listens_everywhere_is_reached_by_the_node_s_address(
    started: SimpleNamespace, endpoint: str, http: str | None, told: tuple[str, str]
) -> None:
    started.endpoint, started.http_url = endpoint, http
    said = await _start({})
    assert (said["endpoint"], said["http"]) == told
