"""Names that tenants choose, kept apart: one tenant's request ids and cache salts never meet another's.

Inside the cell a name carries its tenant. Two tenants that choose the same name get two names, and no tenant can spell
another's: tenants' names hold no slash.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.requests.request import Request

MAX_TENANT = 64  # characters


def inside(tenant: str, name: str) -> str:
    """What the cell calls it."""
    return f"{tenant}/{name}" if tenant or "/" in name else name


def outside(tenant: str, name: str) -> str:
    """What its tenant calls it: the inverse."""
    return name.removeprefix(f"{tenant}/") if tenant else name.removeprefix("/")


def owned(request: Request) -> Request:
    """As the cell knows it. Prefixes are shared within a tenant at most, and there among equal salts."""
    tenant = request.tenant
    return replace(request, id=inside(tenant, request.id), cache_salt=inside(tenant, request.cache_salt))
