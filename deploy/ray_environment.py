"""What must stand in the environment before `import ray`: Ray reads it once, at import. Does not import ray."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from dspark.runtime.identity import state_dir

_CARRIED = ("HF_", "TRANSFORMERS_")  # where models are found, for workers on other nodes


def prepare(environ: MutableMapping[str, str]) -> None:
    """Says Ray's authentication mode aloud: token where the user has one, else disabled.

    Ray puts the working folder of a driver first on its workers' import path; from the state folder nothing of the
    user's can stand in for one of our packages. Paths have been made absolute by then.
    """
    say_auth(environ)
    os.chdir(state_dir())


def say_auth(environ: MutableMapping[str, str]) -> None:
    """The part of it that a child with a folder of its own needs."""
    environ.setdefault("RAY_AUTH_MODE", "token" if _has_token(environ) else "disabled")
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def carried(environ: MutableMapping[str, str]) -> dict[str, str]:
    """The variables of this user that workers elsewhere need."""
    return {name: value for name, value in environ.items() if name.startswith(_CARRIED)}


def job_address(environ: Mapping[str, str]) -> str | None:
    """GCS address of the cluster that RAY_ADDRESS names, as it does in a Ray job; None for anything else."""
    named = environ.get("RAY_ADDRESS", "")
    host, _, port = named.rpartition(":")
    return named if host and port.isdigit() and "/" not in named else None


def _has_token(environ: MutableMapping[str, str]) -> bool:
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").exists()
