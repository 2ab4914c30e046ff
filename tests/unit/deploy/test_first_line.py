"""What a child of a cell says first: the wait for it ends, whoever holds its pipe open."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import processes
from deploy.processes import Child, ProcessCell
from dspark.errors import Unavailable

# It ends at once; what it began holds its pipe, and says half a line or none.
LEAVES = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}]); sys.exit(0)"
HOLDS = "import sys, time; print({!r}, end='', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "late"),
    [
        *((LEAVES.format(HOLDS.format(said)), "") for said in ("", '{"endpoint"')),
        (HOLDS.format(""), r" within 0\.5 s"),
        ("import os, time; os.close(1); time.sleep(0.2)", ""),
    ],
)
def test_a_process_that_holds_the_pipe_does_not_hold_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, late: str
) -> None:
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 0.5)
    cell = ProcessCell(tmp_path, tmp_path, folder=tmp_path / "new" / "logs")
    assert cell.folder.is_dir()
    log = tmp_path / "log"
    log.write_text("nothing to say\n")
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        with pytest.raises(Unavailable, match=f"verify/0 did not start{late}: nothing to say"):
            cell._await_ready(Child("verify/0", command, process, log, "", 0))
    finally:
        cell.stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()
