"""HTTP responses for the errors of `dspark.errors`: OpenAI's shape, or Anthropic's on its routes,
with a status that tells a client what to do."""

from __future__ import annotations

import math
import secrets
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from dspark.errors import (
    ContextExceeded,
    Denied,
    DsparkError,
    Expired,
    Forbidden,
    InvalidRequest,
    Overloaded,
    RequestCancelled,
    Unavailable,
    Unsupported,
)

log = structlog.get_logger("dspark.http")

_INVALID = "invalid_request_error"
_RETRY_UNAVAILABLE_S = 1.0
_UNROUTED = {(404, "Not Found"), (405, "Method Not Allowed")}  # Starlette's messages
_CODES = {
    ContextExceeded: "context_length_exceeded",
    Unsupported: "unsupported_parameter",
}
# Fields of the public gRPC message, as bodies call them.
_NAMES = {"text": "prompt", "tokenized.input_ids": "prompt", "label": "speculation.label"}


class UnknownModel(DsparkError):
    """The request names a model that is not served here."""


def param_of(field: str) -> str:
    """The name that bodies have for a field of the public gRPC message."""
    return _NAMES.get(field, field.removeprefix("sampling_params."))


def described(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """(status, body, headers) for an error."""
    kind, code, param, headers = "server_error", None, None, dict[str, str]()
    message = str(error)
    match error:
        case InvalidRequest():
            status, kind, param = 400, _INVALID, error.field
            # 400 also for known features that are not supported: clients retry a 5xx.
            code = _CODES.get(type(error))
        case UnknownModel():
            status, kind, code, param = 404, _INVALID, "model_not_found", "model"
        case Forbidden():
            status, kind, code = 403, _INVALID, "insufficient_permissions"
        case Denied():
            status, kind, code = 401, _INVALID, "invalid_api_key"
            headers["WWW-Authenticate"] = "Bearer"
        case Overloaded():
            status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"
            headers = _retry(error.retry_after_s)
        case Unavailable():
            status, code, headers = 503, "unavailable", _retry(_RETRY_UNAVAILABLE_S)
        case Expired():
            status, code = 504, "deadline_exceeded"
        case RequestCancelled():
            status, code = 499, "cancelled"
        case HTTPException():
            status, message = error.status_code, str(error.detail)
            headers = dict(error.headers or {})
            kind = _INVALID if status < 500 else kind
        case _:
            reference = secrets.token_hex(4)
            log.error("http.failed", reference=reference, exc_info=error)
            status, message = 500, f"internal error, reference {reference}"
    told = {"message": message, "type": kind, "param": param, "code": code}
    return status, {"error": told}, headers


ID_HEADER = "x-request-id"
NAMED = "request_named"  # key of a scope: the headers with the name that a request is logged under

# Anthropic's error types by status, for its own routes.
_MESSAGES = "/v1/messages"
_KINDS = {
    400: _INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def as_message(status: int, body: dict[str, Any]) -> dict[str, Any]:
    """The body of an error in Anthropic's shape."""
    kind = _KINDS.get(status, _INVALID if status < 500 else "api_error")
    error = {"type": kind, "message": body["error"]["message"]}
    if body["error"]["param"] == "thread":  # its client then sends the whole conversation
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error}


def id_headers(name: str) -> dict[str, str]:
    """The headers with a request's name: Anthropic's clients read the second."""
    return dict.fromkeys((ID_HEADER, "request-id"), name)


def error_response(scope: Scope, error: Exception) -> JSONResponse:
    """The response to `error`, in the shape of the route, with the request's name if it has one."""
    status, body, headers = described(error)
    if name := Headers(scope=scope).get(ID_HEADER):
        headers |= id_headers(name)
    headers |= scope.get(NAMED, {})
    told = as_message(status, body) if scope["path"].startswith(_MESSAGES) else body
    return JSONResponse(told, status, headers)


def _retry(after_s: float) -> dict[str, str]:
    """Headers for a retry: in whole seconds, and in milliseconds for clients that read those."""
    return {
        "Retry-After": str(max(1, math.ceil(after_s))),
        "retry-after-ms": str(max(1, round(1000 * after_s))),
    }


def _routes(app: FastAPI) -> str:
    """The routes of the OpenAPI schema and its own, as text."""
    return ", ".join(
        f"{method.upper()} {path}"
        for path, ways in {**app.openapi()["paths"], "/openapi.json": ["get"]}.items()
        for method in ways
    )


def handle_errors(app: FastAPI) -> None:
    """Installs handlers that answer every error of every route with `error_response`."""

    async def respond(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException) and (error.status_code, error.detail) in _UNROUTED:
            said = f"{request.method} {request.url.path[:200]} is no route here; there are "
            error = HTTPException(error.status_code, said + _routes(app), error.headers)
        return error_response(request.scope, error)

    for kind in (DsparkError, HTTPException, Exception):
        app.add_exception_handler(kind, respond)
