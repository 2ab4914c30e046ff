"""Routes beside the answers: models, health, metrics, version."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from coordinator.http.door import Door
from coordinator.http.errors import UnknownModel
from dspark.errors import DsparkError


def routes(door: Door) -> APIRouter:
    router = APIRouter()
    began = int(time.time())

    def card() -> dict[str, Any]:
        terms = door.desk.cell.terms()
        return {
            "id": door.model(terms),
            "object": "model",
            "created": began,
            "owned_by": "dspark",
            "root": terms.model,
            "max_model_len": terms.limits.longest,
            "drafter": terms.drafter or None,
            "block_size": terms.block_size,
            "policy": str(terms.limits.policy),
            "rule": terms.limits.rule.name.lower(),
        }

    @router.get("/v1/models", dependencies=[Depends(door.guard)], tags=["OpenAI"])
    async def models() -> dict[str, Any]:
        """What is served: one target."""
        return {"object": "list", "data": [card()]}

    @router.get("/v1/models/{name:path}", dependencies=[Depends(door.guard)], tags=["OpenAI"])
    async def model(name: str) -> dict[str, Any]:
        """The served target, by its name."""
        found = card()
        if name not in (found["id"], found["root"]):
            raise UnknownModel(f"the model {name[:200]!r} is not served here; {found['id']!r} is")
        return found

    @router.get("/health", tags=["operation"])
    async def health() -> Response:
        """200 while there is somebody to serve with whose first requests have run, 503 without and before the end. A
        full queue is healthy."""
        try:
            ready = door.desk.cell.terms().ready
        except DsparkError:
            return Response(status_code=503)
        return Response(status_code=200 if ready and not door.desk.cell.draining else 503)

    @router.get("/metrics", dependencies=[Depends(door.operator_guard)], tags=["operation"])
    async def metrics() -> Response:
        """Of this process, for Prometheus."""
        return Response(generate_latest(door.metrics.exposed), media_type=CONTENT_TYPE_LATEST)

    @router.get("/version", tags=["operation"])
    async def version() -> dict[str, str]:
        return {"version": door.version}

    return router
