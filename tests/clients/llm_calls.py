"""llm, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.calling import run


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
    fields = {"kind": {"enum": ["plain", "fancy"]}, "good": {"type": "boolean"}}
    given = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    for stream in ((), ("--no-stream",)):
        made = json.loads(said(url, "--schema", json.dumps(given), *stream, "x ="))
        assert made["kind"] in ("plain", "fancy"), made
        assert isinstance(made["good"], bool), made


run({"llm `prompt`": prompt, "llm `--schema`": schema})
