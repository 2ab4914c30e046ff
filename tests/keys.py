"""Keys for the processes of a cell, in files of a test's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.runtime.identity import write_token


def token_files(folder: Path, *roles: str) -> tuple[dict[str, str], dict[str, str]]:
    """(a token for each role, settings that name their files); "worker" is the processes' own."""
    tokens = {role: write_token(folder / role) for role in roles}
    files = {f"{role}_token_file": str(folder / role) for role in roles}
    if "worker" in roles:
        files["token_file"] = files.pop("worker_token_file")
    return tokens, files


def key_files(folder: Path, clients: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Settings of each role: workers that share a key, clients of these by tenant; "" has none."""
    _, workers = token_files(folder, "worker")
    lines = [f"{tenant} {key}".strip() + "\n" for tenant, key in clients.items()]
    (folder / "clients").write_text("".join(lines), encoding="utf-8")
    door = {**workers, "client_token_file": str(folder / "clients")}
    return {"verify": workers, "draft": workers, "coordinator": door}
