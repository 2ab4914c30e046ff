"""Who may come in by HTTP: pages of named origins, and whoever a certificate or a key says."""

import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from coordinator.config import CoordinatorConfig
from coordinator.http.api import make_api
from dspark.errors import ConfigError
from tests.certificates import Authority
from tests.keys import key_files, token_files
from tests.services.http_cell import HttpCell, synthetic_pair

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"model": "synthetic", "prompt": "abc", "max_tokens": 4}


def test_pages_of_named_origins_may_ask() -> None:
    page = {
        "origin": "https://chat.example",
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",  # of a page on the Internet
    }
    with HttpCell(
        workers=False, cors_origin=("https://chat.example", "http://localhost:3000")
    ) as cell:
        for origin, allowed in (("https://chat.example", True), ("https://evil.example", False)):
            asked = httpx.options(cell.url + COMPLETIONS, headers=page | {"origin": origin})
            assert (asked.headers.get("access-control-allow-origin") == origin) is allowed
            assert (asked.status_code == 200) is allowed
            answer = httpx.get(f"{cell.url}/version", headers={"origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
    with HttpCell(workers=False) as cell:
        answer = httpx.get(f"{cell.url}/version", headers=page)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["*", "chat.example", "https://chat.example/path", "https://", "ftp://x"]
)
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    config = CoordinatorConfig(http="127.0.0.1:0", cors_origin=(origin,))
    with pytest.raises(ConfigError, match="cors_origin: "):
        make_api(config, None)  # type: ignore[arg-type]


def test_certificates_say_who_calls_and_are_renewed_while_serving(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, files = token_files(tmp_path, "worker")
    with HttpCell(workers=False, **authority.settings(), **files) as cell:
        assert cell.url.startswith("https://")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{cell.url}/health", verify=authority.context())
        for name, models, metrics in (
            ("client-acme", 503, 403),
            ("operator", 503, 200),
            ("monitor", 403, 200),
            ("node", 403, 403),
        ):
            shows = authority.context(name)
            asked = (("/v1/models", models), ("/metrics", metrics), ("/health", 503))
            for path, status in asked:
                assert httpx.get(cell.url + path, verify=shows).status_code == status, (name, path)
        authority.check_renewal(cell.url.removeprefix("https://"))


def test_a_key_is_the_clients_token(tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker", "client")
    client = tokens["client"]
    with HttpCell(workers=False, **files) as cell:
        # an operator's last
        keys = ((None, 401), ("wrong", 401), (client, 503), (tokens["worker"], 503))
        for key, status in keys:
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": str(key)}):
                answer = cell.post(COMPLETIONS, BODY, headers=headers if key else {})
                assert answer.status_code == status, answer.text
        assert cell.post(COMPLETIONS, BODY).json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{cell.url}/health").status_code == 503  # asks nobody
        # metrics are open here, to who shows a key of another role as well
        for headers in ({}, {"authorization": f"Bearer {client}"}):
            assert httpx.get(f"{cell.url}/metrics", headers=headers).status_code == 200
        with cell.openai(api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        refused = cell.coordinator.metrics.value("refusals_total", reason="unauthenticated")
        assert refused == 6, "as often as somebody was not let in"


def test_tenants_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    keys = {name: f"the-key-of-the-tenant-{name}" for name in ("acme", "bolt")}
    with HttpCell(synthetic_pair(tmp_path), **key_files(tmp_path, keys)["coordinator"]) as cell:

        def headers(tenant: str) -> dict[str, str]:
            return {"authorization": f"Bearer {keys[tenant]}", "x-request-id": "one"}

        body = {**BODY, "stream": True, "max_tokens": 50_000, "ignore_eos": True}
        url = cell.url + COMPLETIONS
        with httpx.stream("POST", url, json=body, headers=headers("acme"), timeout=30) as running:
            lines = running.iter_lines()  # held on to: a stream ends with whoever reads its lines
            next(lines)
            # The same name is another request, of another tenant as of the same.
            for tenant in keys:
                answer = cell.post(COMPLETIONS, BODY, headers=headers(tenant))
                assert (answer.status_code, answer.headers["x-request-id"]) == (200, "one")
                assert re.fullmatch(r"cmpl-one-[0-9a-f]{8}", answer.json()["id"])
        cell.freed()
        assert cell.cancelled == 1
