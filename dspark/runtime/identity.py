"""The identity of a process, and the folder that holds a user's state and tokens."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dspark.errors import ConfigError, in_short
from dspark.whole_file import placed

# characters of any secret: a listener takes 8 KiB of metadata, gRPC's own included
LEAST_TOKEN, LONGEST_TOKEN = 16, 7 * 1024
DEFAULT_CELL = "dspark"


def new_incarnation() -> int:
    """A number no other process start has: 63 random bits, never 0."""
    return secrets.randbits(63) | 1


def model_name(model: str | None, served: str | None = None) -> str:
    """The name of a model for clients: the served name, the folder's name, or the hub id; empty
    where there is none."""
    if served or not model:
        return served or ""
    path = Path(model)
    return path.name if path.is_absolute() or model.startswith(".") or path.is_dir() else model


class NoState(ConfigError):
    """The state folder cannot be written. Callers that only cache there go on without it."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(
            f"{path}: this state folder cannot be written ({in_short(error)}); DSPARK_HOME names "
            "another"
        )


def state_dir() -> Path:
    """The user's state folder, created on first use with access for its owner only.

    `DSPARK_HOME` names another one: one folder, one cluster.
    """
    home, states = os.environ.get("DSPARK_HOME"), os.environ.get("XDG_STATE_HOME", "")
    # a relative XDG_STATE_HOME is to be ignored, by its specification
    path = Path(home or Path(states if os.path.isabs(states) else "~/.local/state") / "dspark")
    try:
        path = path.expanduser().resolve()
        str(path).encode()  # Ray takes no other names, and would say so after minutes
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError, UnicodeError) as error:  # a home is not known: the second
        raise NoState(path, error) from error
    if home:  # other processes have other working folders, and so has this one when it joins Ray
        os.environ["DSPARK_HOME"] = str(path)
    return path


def read_token(path: str | Path | None, key: str = "token_file") -> str | None:
    """The shared secret in `path`; None when no path is given. `key` is the setting to blame."""
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: cannot read {path}: {in_short(error)}") from error
    check_token(token, f"{key}: {path}")
    return token


def check_token(token: str, where: str) -> None:
    """Raises ConfigError, which begins with `where` and does not show it, for a secret that is too
    short or too long, or that no call can carry."""
    if not LEAST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise ConfigError(
            f"{where} holds {len(token)} characters, {LEAST_TOKEN} to {LONGEST_TOKEN} are taken"
        )
    if not token.isprintable():
        raise ConfigError(f"{where} holds a line end, or another character that is not in tokens")


def write_token(path: Path) -> str:
    """Draws a secret into `path`, readable by its owner only; returns it."""
    token = secrets.token_urlsafe(32)
    put_token(path, token)
    return token


def put_token(path: Path, token: str) -> None:
    """Writes a given secret atomically, because other processes may be reading the file."""
    try:
        with placed(path, mode=0o600) as file:
            file.write_text(token + "\n", encoding="ascii")
    except OSError as error:
        raise NoState(path.parent, error) from error
