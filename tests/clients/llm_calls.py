"""llm, the command."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.calling import Thing, run


def said(url: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model = {
            "model_id": "here",
            "model_name": "tiny",
            "api_base": f"{url}/v1",
            "supports_schema": True,
        }
        (Path(folder) / "extra-openai-models.yaml").write_text(
            json.dumps([model]), encoding="utf-8"
        )
        command = [
            sys.executable,
            "-m",
            "llm",
            "-m",
            "here",
            "-n",
            "-o",
            "max_tokens",
            "300",
            *arguments,
        ]
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def prompt(url: str) -> None:
    assert said(url, "def f").strip()


def schema(url: str) -> None:
    given = Thing.model_json_schema() | {"additionalProperties": False}
    for stream in ((), ("--no-stream",)):
        answer = said(url, "--schema", json.dumps(given), *stream, "x =")
        Thing.model_validate_json(answer, strict=True)


run({"llm `prompt`": prompt, "llm `--schema`": schema})
