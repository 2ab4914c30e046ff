"""What a client refuses by the name of the field, before it calls anybody."""

import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from dspark.client import AsyncClient, Client, InvalidRequest
from tests.unit.cli.test_client import answered

# Those that are no sampling parameters.
FIELDS = {
    "rule": "rule",
    "timeout": "timeout",
    "resume_s": "resume_s",
    "constraint": "constraint.json_schema",
}


@pytest.fixture(params=[Client, AsyncClient])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Each kind of client, where nobody listens."""
    made = request.param("127.0.0.1:9")
    yield made
    await answered(made.close())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("n", -1, "must be in 1..16, got -1"),
        ("n", 2.0, "must be a whole number, got 2.0"),
        ("max_tokens", -1, "must be at least 1, got -1"),
        ("max_tokens", True, "must be a whole number, got True"),
        ("max_tokens", "3", "must be a whole number, got '3'"),
        ("max_tokens", 2**32, "must be at most 4294967295, got 4294967296"),
        ("min_tokens", -1, "must be at least 0, got -1"),
        ("top_k", -2, "must be in -1..4294967295, got -2"),
        ("logprobs", 2**31, "must be at most 2147483647, got 2147483648"),
        ("seed", 10**30, f"must be at most {2**64 - 1}, got {10**30}"),
        ("seed", -1, f"must be in 0..{2**64 - 1}, got -1"),
        ("seed", 1.5, "must be a whole number, got 1.5"),
        ("temperature", "hot", "must be a number, got 'hot'"),
        ("temperature", True, "must be a number, got True"),
        ("min_p", np.bool_(True), "must be a number, got np.True_"),
        ("logit_bias", {-1: 1.0}, "-1 is not a token id"),
        ("logit_bias", {"1_0": 1.0}, "must be a whole number, got '1_0'"),
        ("logit_bias", {1.7: 1.0}, "must be a whole number, got 1.7"),
        ("logit_bias", {1: "2"}, "must be a number, got '2'"),
        ("logit_bias", [1, 2], "must be a mapping of token ids to numbers, got [1, 2]"),
        ("stop", [3], "must be a text, got 3"),
        ("stop_token_ids", [-1], "-1 is not a token id"),
        ("stop_token_ids", [1.7], "must be a whole number, got 1.7"),
        ("stop_token_ids", [2**32], "4294967296 is not a token id"),
        ("ignore_eos", 1, "must be true or false, got 1"),
        ("rule", "typical", "'typical' is none of token, block, coupled"),
        ("rule", ["token"], "['token'] is none of token, block, coupled"),
        (
            "constraint",
            {"json_schema": {"a": "\ud800"}},
            "holds half of a character (a lone surrogate)",
        ),
        ("timeout", "5", "must be a number, got '5'"),
        ("timeout", 0, "must be above 0, got 0"),
        ("timeout", -1.0, "must be above 0, got -1"),
        ("timeout", float("nan"), "must be above 0, got nan"),
        ("resume_s", "5", "must be a number, got '5'"),
        ("resume_s", -1.0, "must be at least 0, got -1"),
        ("resume_s", float("nan"), "must be at least 0, got nan"),
    ],
)
async def test_what_would_become_another_value_on_the_wire_is_refused_by_name(
    name: str, value: Any, problem: str, either: Any
) -> None:
    field = FIELDS.get(name, f"sampling_params.{name}")
    for ask in (either.generate, either.complete):
        with pytest.raises(InvalidRequest) as refused:
            await answered(ask([9], **{name: value}))
        assert (refused.value.field, str(refused.value)) == (field, f"{field}: {problem}")


@pytest.mark.parametrize(
    "prompt", [[1.7, 2.2], [True], ["1"], [-1], [2**32], 7, b"abc", np.array([1.0])]
)
async def test_a_prompt_is_taken_as_it_is_or_not_at_all(prompt: Any, either: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        either.generate(prompt)
    assert refused.value.field == "tokenized.input_ids"


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("explain", {"request_id": "r", "rounds": -1}, "rounds: must be in 0..4294967295, got -1"),
        ("explain", {"request_id": 5}, "request_id: must be a text, got 5"),
        ("ended", {"most": 1.5}, "most: must be a whole number, got 1.5"),
        ("ended", {"request_id": "\ud800"}, "request_id: holds half of a character"),
    ],
)
async def test_operators_questions_are_read_as_requests_are(
    method: str, arguments: Any, said: str, either: Any
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        await answered(getattr(either, method)(**arguments))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("endpoint", "", "'' is not host:port"),
        ("endpoint", "127.0.0.1", "'127.0.0.1' is not host:port"),
        ("endpoint", "127.0.0.1:99999", "'127.0.0.1:99999' is not host:port"),
        ("endpoint", "localhost:http", "'localhost:http' is not host:port"),
        ("token", "secret\n", "has a line end, or another character"),
        ("token", "geheimé", "has a line end, or another character"),
        ("token", "a\0b", "has a line end, or another character"),
        ("token", "a" * 8000, "8000 characters, at most 7168 are taken"),
    ],
)
async def test_what_no_client_can_be_made_with_is_refused_by_name(
    field: str, value: str, problem: str, kind: Any
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: {re.escape(problem)}"):
        kind(**{"endpoint": "127.0.0.1:9", field: value})
