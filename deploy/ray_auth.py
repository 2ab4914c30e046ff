"""Does this Ray cluster ask who calls? Asked of Ray itself, by calling it without a token, before anything runs there.

Whoever reaches a Ray cluster that does not ask can run code as its user. Does not import ray.
"""

from __future__ import annotations

import grpc

from deploy.fleet import NothingStarted
from dspark.runtime.channel import sync_channel
from dspark.runtime.security import is_loopback, split_endpoint

ASK_TIMEOUT_S = 10.0
_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # reads only, and answers an empty question


def is_guarded(address: str) -> bool | None:
    """Whether the GCS at `address` refuses a stranger; None: its answer says neither."""
    with sync_channel(address) as channel:
        ask = channel.unary_unary(_METHOD)
        try:
            ask(b"", timeout=ASK_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return True
            return None
    return False


def check_guarded(address: str, *, insecure: bool) -> None:
    """Refuses a cluster that strangers can drive: one that does not ask and can be reached from elsewhere."""
    if insecure or (guarded := is_guarded(address)):
        return
    host, _ = split_endpoint(address)
    if is_loopback(host):
        return
    if guarded is None:
        raise NothingStarted(
            f"the Ray cluster at {address} did not say within {ASK_TIMEOUT_S:g} s whether it asks for a token; "
            "try again, or say --insecure"
        )
    raise NothingStarted(
        f"the Ray cluster at {address} does not ask for a token: whoever reaches it can run code there. "
        "Start it with RAY_AUTH_MODE=token, or say --insecure"
    )
