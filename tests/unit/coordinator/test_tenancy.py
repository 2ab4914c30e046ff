"""Names of two tenants never meet, whatever they choose."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.requests.request import Request, inside, outside, owned
from dspark.rounds.policy import Off
from dspark.types import SamplingParams

TENANTS = st.from_regex(r"[A-Za-z0-9._-]{0,64}", fullmatch=True)
NAMES = st.one_of(
    st.text(max_size=20), st.builds("/".join, st.lists(st.sampled_from(["", "a", "b"]), max_size=4))
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(TENANTS, NAMES, TENANTS, NAMES)
def test_names_are_apart_and_come_back(one: str, name: str, other: str, second: str) -> None:
    assert outside(one, inside(one, name)) == name
    assert (inside(one, name) == inside(other, second)) == ((one, name) == (other, second))


def test_without_tenants_names_are_what_clients_call_them() -> None:
    assert inside("", "chat-1") == "chat-1"
    assert inside("acme", "chat-1") == "acme/chat-1"
    assert inside("", "acme/chat-1") == "/acme/chat-1", "who has none spells no other's name"


def test_a_request_s_id_and_salt_are_its_tenant_s() -> None:
    request = Request("r", (5, 6), SamplingParams(), 9, Off(), cache_salt="s", tenant="acme")
    assert (owned(request).id, owned(request).cache_salt) == ("acme/r", "acme/s")
    plain = Request("r", (5, 6), SamplingParams(), 9, Off(), cache_salt="s")
    assert (owned(plain).id, owned(plain).cache_salt) == ("r", "s")
