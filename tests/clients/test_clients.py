"""Clients of other people do what docs/openai.md says, each with its real package."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.http_cell import HttpCell, target_that_calls

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("DSPARK_CLIENTS", ROOT / ".venv-clients/bin/python"))
PROGRAMS = {
    "langchain_openai_calls": "langchain_openai",
    "litellm_calls": "litellm",
    "llm_calls": "llm",
    "pydantic_ai_calls": "pydantic_ai",
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpCell]:
    with HttpCell(**target_that_calls(tmp_path_factory.mktemp("target"))) as running:
        yield running


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_call_of_the_table_works(program: str, cell: HttpCell) -> None:
    if not PYTHON.is_file():
        pytest.skip(f"no {PYTHON}: `make clients` makes an environment with the clients")
    there = subprocess.run(
        [PYTHON, "-c", f"import {PROGRAMS[program]}"], capture_output=True, check=False
    )
    if there.returncode:
        pytest.skip(f"{PROGRAMS[program]} is not in {PYTHON.parent.parent}: `make clients`")
    command = [PYTHON, "-m", f"tests.clients.{program}", cell.url]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    failed = {name: error for name, error in told.items() if error}
    assert not failed, "\n\n".join(f"{name}:\n{error}" for name, error in failed.items())
    documented = (ROOT / "docs/openai.md").read_text(encoding="utf-8")
    assert [name for name in told if f"| {name} |" not in documented] == []
    cell.freed()
