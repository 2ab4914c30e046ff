"""Names of two tenants never meet, whatever they choose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.requests.tenancy import inside, outside

TENANTS = st.from_regex(r"[A-Za-z0-9._-]{0,64}", fullmatch=True)
NAMES = st.one_of(st.text(max_size=20), st.builds("/".join, st.lists(st.sampled_from(["", "a", "b"]), max_size=4)))


@given(TENANTS, NAMES, TENANTS, NAMES)
def test_names_are_apart_and_come_back(one: str, name: str, other: str, second: str) -> None:
    assert outside(one, inside(one, name)) == name
    assert (inside(one, name) == inside(other, second)) == ((one, name) == (other, second))


def test_without_tenants_names_are_what_clients_call_them() -> None:
    assert inside("", "chat-1") == "chat-1"
    assert inside("acme", "chat-1") == "acme/chat-1"
    assert inside("", "acme/chat-1") == "/acme/chat-1", "a client without a tenant cannot spell another's name"
