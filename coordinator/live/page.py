"""The live page's files, as they ship: no build step, nothing from elsewhere. Sent with strict headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
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


class Page(StaticFiles):
    """All files by name; none from beyond the folder."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, follow_symlink=True)  # as some installers lay files

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(HEADERS)
        for name in ("etag", "last-modified"):  # of times and sizes, which files of two versions may share
            del response.headers[name]
        return response

    def read_json(self, name: str) -> Any:
        return json.loads((FOLDER / name).read_bytes())
