"""Clients' tokens: a file of many, each with its tenant, looked at again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from pathlib import Path

from dspark.errors import ConfigError
from dspark.runtime.identity import LEAST_TOKEN

MOST_TOKENS = 1024
LOOK_S = 1.0  # between looks at the file
TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")


def same(given: str, secret: str) -> bool:
    """Whether two texts are equal; takes equally long for all texts."""
    return hmac.compare_digest(_digest(given), _digest(secret))


def read_client_tokens(path: str | Path) -> tuple[tuple[str, str], ...]:
    """(tenant, token) of every line `TOKEN` or `TENANT TOKEN`; empty lines and those that begin with # say nothing."""
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"client_token_file: cannot read {path}: {error}") from error
    found: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tenant, token = ("", words[0]) if len(words) == 1 else (words[0], words[-1])
        # A complaint names the line and never shows it.
        if len(words) > 2 or (tenant and not TENANT.fullmatch(tenant)):
            raise ConfigError(f"client_token_file: line {number} of {path} is not TOKEN or TENANT TOKEN")
        if len(token) < LEAST_TOKEN:
            raise ConfigError(f"client_token_file: line {number} of {path}: a token has at least {LEAST_TOKEN} letters")
        found.append((tenant, token))
    if not found:
        raise ConfigError(f"client_token_file: {path} holds no token")
    if len(found) > MOST_TOKENS:
        raise ConfigError(f"client_token_file: {path} holds {len(found)} tokens, at most {MOST_TOKENS} are read")
    if len({token for _, token in found}) != len(found):
        raise ConfigError(f"client_token_file: {path} holds one token twice")
    return tuple(found)


class ClientTokens:
    """The tokens of one file. A file that becomes unreadable leaves the tokens that were known in force."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._known = self._digests()
        self._stamp, self._looked = self._stamped(), time.monotonic()

    def tenant(self, given: str) -> str | None:
        """Whose token this is; None: nobody's."""
        self._look()
        digest = _digest(given)
        # All are compared: the time taken says nothing about which one was close.
        matches = [tenant for tenant, known in self._known if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._known, self._stamp = self._digests(), stamp
        except (OSError, ConfigError):
            return

    def _stamped(self) -> tuple[int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_ino

    def _digests(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((tenant, _digest(token)) for tenant, token in read_client_tokens(self._path))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
