"""Keys for the processes of a cell, in files of a test's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.runtime.identity import write_token


def key_files(folder: Path, clients: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Settings of each role: workers that share a key, clients of these by tenant; "" has none."""
    write_token(folder / "worker")
    lines = [f"{tenant} {key}".strip() + "\n" for tenant, key in clients.items()]
    (folder / "clients").write_text("".join(lines), encoding="utf-8")
    workers = {"token_file": str(folder / "worker")}
    door = {**workers, "client_token_file": str(folder / "clients")}
    return {"verify": workers, "draft": workers, "coordinator": door}
