"""What is kept of a cell in Ray's own table, for a controller that Ray restarts: whose cell it is,
and what its operator last said."""

from __future__ import annotations

import structlog
from ray.experimental import internal_kv

from dspark.errors import in_short

log = structlog.get_logger("deploy.cluster")

NAMESPACE = "dspark"
AUTOSCALE, SIZES, OWNER = "autoscale", "sizes", "owner"


def taken_over(cell: str, cell_id: str) -> tuple[str | None, str | None]:
    """What was last said to the controller of this very cell: its autoscaling and its sizes. What
    an earlier cell of this name left is deleted."""
    if kept(cell, OWNER) == cell_id:  # Ray restarted it
        return kept(cell, AUTOSCALE), kept(cell, SIZES)
    forget(cell)
    keep(cell, OWNER, cell_id)
    return None, None


def forget(cell: str) -> None:
    for what in (OWNER, AUTOSCALE, SIZES):
        internal_kv._internal_kv_del(f"{cell}/{what}", namespace=NAMESPACE)


def kept(cell: str, what: str) -> str | None:
    said: bytes | None = internal_kv._internal_kv_get(f"{cell}/{what}", namespace=NAMESPACE)
    return None if said is None else said.decode()


def keep(cell: str, what: str, said: str) -> None:
    try:
        internal_kv._internal_kv_put(f"{cell}/{what}", said, namespace=NAMESPACE)
    except Exception as error:  # Ray's table is away: it holds for as long as this controller
        log.warning("controller.not_kept", what=what, said=said, reason=in_short(error))
