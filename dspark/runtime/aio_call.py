"""Streams of grpc.aio that end as their peer says."""

from __future__ import annotations

from typing import Any, TypeVar

C = TypeVar("C")


class _Unshaken:
    """Everything of the library's own call but its word for a write that met the end of the
    call."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, text: str) -> None:
        """The peer's status is on its way, and whoever writes waits for that."""


def ending_as_told(call: C) -> C:
    """The same call, at its beginning. A write that meets a call which has ended makes it
    `INTERNAL: Internal error from Core` in grpc.aio where the status is not there yet: who was
    refused would never learn why. Somebody has to read meanwhile, for a status comes behind
    everything else that the peer said."""
    inner = getattr(call, "_cython_call", None)
    if inner is not None:  # else it is another version's, and no worse than without this
        call._cython_call = _Unshaken(inner)  # type: ignore[attr-defined]
    return call
