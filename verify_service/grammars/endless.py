"""JSON schemas of which no value ever ends: references lead back to themselves before anything is complete. Pure."""

from __future__ import annotations

from typing import Any

_WITHIN = ("object", "array")  # values of other types always end


def ends(root: Any) -> bool:
    """Whether some value of this schema is finite. The compiler says itself what leads nowhere."""
    known: set[int] = set()
    under_way: set[int] = set()

    def finite(schema: Any) -> bool:
        if not isinstance(schema, dict) or id(schema) in known:
            return True
        if id(schema) in under_way:
            return False
        under_way.add(id(schema))
        found = _finite(schema)
        under_way.discard(id(schema))
        if found:
            known.add(id(schema))
        return found

    def _finite(schema: dict[str, Any]) -> bool:
        if "$ref" in schema:
            return finite(_referred(root, schema["$ref"]))
        for name, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
            if isinstance(schema.get(name), list):
                return enough([finite(each) for each in schema[name]])
        types = schema.get("type")
        kinds = [types] if isinstance(types, str) else types if isinstance(types, list) else []
        if "const" in schema or "enum" in schema or any(kind not in _WITHIN for kind in kinds):
            return True
        objects = "object" in kinds or (not kinds and "properties" in schema)
        arrays = "array" in kinds or (not kinds and not objects and ("items" in schema or "prefixItems" in schema))
        if not objects and not arrays:
            return True
        return (objects and _object(schema)) or (arrays and _array(schema))

    def _object(schema: dict[str, Any]) -> bool:
        declared, required = schema.get("properties"), schema.get("required")
        if not isinstance(declared, dict) or not isinstance(required, list):
            return True
        return all(finite(declared[name]) for name in required if isinstance(name, str) and name in declared)

    def _array(schema: dict[str, Any]) -> bool:
        least, first = schema.get("minItems", 0), schema.get("prefixItems")
        if not isinstance(least, int) or least < 1:
            return True
        heads = first[:least] if isinstance(first, list) else []
        return all(map(finite, heads)) and (least <= len(heads) or finite(schema.get("items")))

    return finite(root)


def _referred(root: Any, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    here = root
    for word in reference[1:].split("/")[1:]:
        here = here.get(word.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
    return here
