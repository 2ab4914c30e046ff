"""The error tree: the type says which side is at fault. `runtime/server.py` gives each its status.

DsparkError
|-- InvalidRequest         the client sent something malformed in `field`  INVALID_ARGUMENT
|   |-- ContextExceeded    it is longer than the context                  INVALID_ARGUMENT
|   `-- Unsupported        understood, not built                          UNIMPLEMENTED
|-- Overloaded             a bound was reached; retry in `retry_after_s`  RESOURCE_EXHAUSTED
|-- Unavailable            no process can serve this now                  UNAVAILABLE
|-- Expired                the request's time ran out                     DEADLINE_EXCEEDED
|-- RequestCancelled       the client went away, or resumed it elsewhere  ABORTED
|-- Denied                 credentials are missing or wrong               UNAUTHENTICATED
|   `-- Forbidden          the caller is known and may not call this      PERMISSION_DENIED
|-- PeerError              another service broke the protocol             INTERNAL
|-- ConfigError            a configuration value is wrong; the process will not start
|   `-- WrongCommand       the words of a command make no sense
`-- CheckpointError        a checkpoint is not what it says; the process will not start
    `-- UnsupportedFamily  a drafter family that is recognised and not built yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DsparkError(Exception):
    """Base class of every error that this project raises on purpose."""


class InvalidRequest(DsparkError):
    """The client sent something malformed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


def in_short(error: BaseException) -> str:
    """What an error says in its first line, without the path that an OSError repeats. An error of
    the hub says a number there, and the rest after an empty line."""
    said = str(getattr(error, "strerror", None) or error).strip()
    if hasattr(error, "server_message"):
        said = said.split("\n\n", 1)[-1]
    return next(iter(said.splitlines()), type(error).__name__)


@contextmanager
def naming(name: Callable[[str], str]) -> Iterator[None]:
    """Renames the field of an InvalidRequest from the block by `name`, to its sender's name."""
    try:
        yield
    except InvalidRequest as error:
        raise type(error)(name(error.field), error.problem) from None


class ContextExceeded(InvalidRequest):
    """The prompt, or it and the answer together, are longer than the context."""


class Unsupported(InvalidRequest):
    """The field is understood and not built."""


class Overloaded(DsparkError):
    """A bound was reached; nothing is broken."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(DsparkError):
    """No process can serve this now; trying again elsewhere or later is safe."""


class Expired(DsparkError):
    """The request's time ran out."""


class RequestCancelled(DsparkError):
    """The client went away."""


class Denied(DsparkError):
    """Credentials are missing or wrong."""


class Forbidden(Denied):
    """The caller is known and may not call this."""


class PeerError(DsparkError):
    """Another service broke the protocol."""


class ConfigError(DsparkError):
    """A configuration value is wrong."""


class WrongCommand(ConfigError):
    """The words of a command make no sense, whatever is in files and elsewhere: exit code 2."""


class CheckpointError(DsparkError):
    """A checkpoint is not what it says."""


class UnsupportedFamily(CheckpointError):
    """A drafter family that is recognised and not built yet."""
