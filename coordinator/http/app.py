"""The application: routes, errors, and who may come in."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware

from coordinator.http import chat, completions, system
from coordinator.http.api import Api, check_host
from coordinator.http.errors import handle_errors


def build_app(api: Api, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """`routers`: more routes; they bring their own guards."""

    async def from_here(request: Request) -> None:
        if api.local:
            check_host(request)

    # No pages of documentation: they would load scripts from elsewhere. The description itself is at /openapi.json.
    app = FastAPI(title="dspark", docs_url=None, redoc_url=None)
    handle_errors(app)

    mine = (system.routes(api), chat.routes(api), completions.routes(api), system.tokenizing_routes(api))
    for router in (*mine, *routers):
        app.include_router(router, dependencies=[Depends(from_here)])
    if api.config.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=api.config.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", "retry-after-ms"],
        )
    return app
