"""The application: routes, errors, and who may come in."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware

from coordinator.http import chat, completions, system, tokenizing
from coordinator.http.door import Door, check_host
from coordinator.http.errors import handle_errors


def build_app(door: Door, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """`routers`: more routes; they bring their own guards."""

    async def from_here(request: Request) -> None:
        if door.local:
            check_host(request)

    # No pages of documentation: they would load scripts from elsewhere. The description itself is at /openapi.json.
    app = FastAPI(title="dspark", docs_url=None, redoc_url=None)
    handle_errors(app)

    mine = (system.routes(door), chat.routes(door), completions.routes(door), tokenizing.routes(door))
    for router in (*mine, *routers):
        app.include_router(router, dependencies=[Depends(from_here)])
    if door.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=door.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "retry-after-ms"],
        )
    return app
