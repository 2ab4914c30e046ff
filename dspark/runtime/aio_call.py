"""A correction to grpc.aio: streams that end with the status that their peer sent."""

from __future__ import annotations

from typing import Any, TypeVar

C = TypeVar("C")


class _Unshaken:
    """The library's own call, without its error for a write to a call that has ended."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, text: str) -> None:
        """Does nothing: the peer's status is on its way, and the writer waits for that."""


def ending_as_told(call: C) -> C:
    """Changes a call that has just begun, so that it ends with its peer's status; returns it. In
    grpc.aio a write to a call that has ended makes it `INTERNAL: Internal error from Core` where
    the status has not arrived yet, which hides why a call was refused. The stream must be read
    meanwhile, because the status arrives behind all messages of the peer."""
    inner = getattr(call, "_cython_call", None)
    if inner is not None:  # else another version of grpc, left as it is
        call._cython_call = _Unshaken(inner)  # type: ignore[attr-defined]
    return call
