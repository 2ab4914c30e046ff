"""Descriptions of bodies for /openapi.json: routes read them by hand, for bounds and for errors that name the field."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def described_by(kind: type[BaseModel]) -> dict[str, Any]:
    """What FastAPI adds to a route that takes a body of this kind."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    # Parts stand where they are used, so that routes need no shared components.
    parts = schema.pop("$defs", {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema, parts)}}}}


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(parts[str(node["$ref"]).rsplit("/", 1)[-1]], parts)
        return {key: _inlined(value, parts) for key, value in node.items()}
    if isinstance(node, list):
        return [_inlined(value, parts) for value in node]
    return node
