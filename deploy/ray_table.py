"""What is kept of a cell in Ray's own table, for a controller that Ray restarts: whose cell it is,
and what its operator last said."""

from __future__ import annotations

import json
from typing import Any

import structlog
from ray.experimental import internal_kv

from dspark.errors import in_short

log = structlog.get_logger("deploy.cluster")

NAMESPACE = "dspark"


def kept(cell: str) -> dict[str, Any]:
    """What a controller of this name kept last; empty where none did."""
    said: bytes | None = internal_kv._internal_kv_get(f"{cell}/kept", namespace=NAMESPACE)
    return dict(json.loads(said)) if said else {}


def keep(cell: str, **told: Any) -> None:
    try:
        internal_kv._internal_kv_put(f"{cell}/kept", json.dumps(told), namespace=NAMESPACE)
    except Exception as error:  # Ray's table is away: it holds for as long as this controller
        log.warning("controller.not_kept", reason=in_short(error), **told)


def forget(cell: str) -> None:
    internal_kv._internal_kv_del(f"{cell}/kept", namespace=NAMESPACE)
