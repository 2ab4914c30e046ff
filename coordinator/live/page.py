"""The live page's files, as they ship: no build step, nothing from elsewhere. Read once, sent with strict headers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
# Scripts and styles from here and nowhere else, none of them inline; nobody may frame the page; strings never become
# markup.
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


@dataclass(frozen=True, slots=True)
class File:
    body: bytes
    kind: str
    tag: str


class Page:
    """All files by name. No other name is ever looked up, so no path can lead out of the folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}

    def send(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            return Response(status_code=404, headers=HEADERS)
        headers = {**HEADERS, "etag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.kind, headers=headers)

    def read_json(self, name: str) -> Any:
        return json.loads(self._files[name].body)


def _read(path: Path) -> File:
    body = path.read_bytes()
    return File(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
