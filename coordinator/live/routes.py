"""Routes of the live page: `/`, its files, an answer with every round explained, the cell, the
load.

The page and its files need no key; they are served as they ship, without a build step, with strict
headers. An answer needs a client's key, the pools one that may read metrics, the load an
operator's. Where no keys are set none is required.
"""

from __future__ import annotations

import json
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from coordinator.http.api import Api
from coordinator.http.schema import BodyPart
from coordinator.http.stream import EventStream
from coordinator.live.answer import MAX_TOKENS, AnswerRequest, Policy, Rule, answer_events
from coordinator.live.feed import BackgroundLoad, CellFeed
from coordinator.queue.scheduler import Scheduler
from coordinator.workers.membership import Membership
from dspark.rounds.policy import parse_policy

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
# Scripts and styles from this origin only, none of them inline; no page may frame this one; strings
# never become markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


class LoadRequest(BodyPart):
    """The number of background streams, and their policy and rule of speculation."""

    streams: Annotated[int, Field(ge=0, le=1024)]
    policy: Policy = ""
    rule: Rule = ""


def live_routes(api: Api, membership: Membership, admission: Scheduler, streams: int) -> APIRouter:
    """The routes of the live page. streams: limit of background streams at one time."""
    router = APIRouter(include_in_schema=False)
    page = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}
    load = BackgroundLoad(api, json.loads((FOLDER / "examples.json").read_bytes()), streams)
    feed = CellFeed(api, membership, admission, load)
    client = [Depends(from_this_page), Depends(api.guard)]
    watcher = [Depends(from_this_page), Depends(api.operator_guard)]
    operator = [*watcher, Depends(api.guard)]  # callers that may both read metrics and generate

    @router.get("/")
    async def index() -> Response:
        return await file(INDEX)

    @router.get("/live/page/{name}")
    async def file(name: str) -> Response:
        """A file of the page, with `HEADERS`."""
        if name not in page:
            raise HTTPException(404, "there is no such file")
        return Response(page[name], media_type=guess_type(name)[0], headers=HEADERS)

    @router.get("/live/cell", dependencies=client)
    async def cell() -> dict[str, Any]:
        """Facts of the cell that do not change from frame to frame."""
        terms = api.processor.cell.terms()
        return {
            "model": api.model(terms),
            "drafter": terms.drafter.rstrip("/").rsplit("/", 1)[-1],
            "chat": api.template is not None and api.processor.tokenizer is not None,
            "policy": str(terms.limits.policy),
            "rule": terms.limits.rule.name.lower(),
            "most_streams": load.most,
            "most_tokens": MAX_TOKENS,
        }

    @router.get("/live/events", dependencies=watcher)
    async def events() -> EventStream:
        return feed.stream()

    @router.post("/live/generate", dependencies=client)
    async def generate(request: Request) -> EventStream:
        wish = await api.read(request, AnswerRequest)
        return await answer_events(api, membership.explain, wish)

    @router.post("/live/load", dependencies=operator)
    async def set_load(request: Request) -> dict[str, int]:
        wish = await api.read(request, LoadRequest)
        if wish.policy:
            parse_policy(wish.policy, field="policy")
        feed.set_load(wish.streams, wish.policy, wish.rule)
        return {"streams": load.streams, "most": load.most}

    return router


async def from_this_page(request: Request) -> None:
    """Raises HTTPException 403 if the browser names another site as the origin of a request: other
    sites' pages must not drive this cell."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "requests from other sites are not answered here")
