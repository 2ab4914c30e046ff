"""Answers in a form, through HTTP and gRPC, coordinator, verifier and drafter, on the tiny pair."""

import enum
import json
import re
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
import regex

from dspark.cli.status import line
from dspark.client import AsyncClient, Client
from dspark.errors import InvalidRequest
from dspark.types import Constraint
from tests.services import workers
from tests.services.http_cell import TARGET, HttpCell, explained, in_schema, of_module
from verify_service.grammars import grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["plain", "süß"]},
        "sizes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "maxItems": 2,
        },
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
FORMAT = in_schema(SCHEMA, strict=True)


def form(**outputs: Any) -> Any:
    """A form in vLLM's words."""
    return {"extra_body": {"structured_outputs": outputs}}


cell = of_module(policy="fixed:3")


def check(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def test_every_answer_that_ended_fits_its_schema(cell: HttpCell) -> None:
    for rule in ("token", "block", "coupled"):
        extra = {"speculation": {"rule": rule}}
        more = {"n": 2, "temperature": 1.0, "logprobs": True}
        made = cell.chat(response_format=FORMAT, extra_body=extra, **more)
        assert [choice.finish_reason for choice in made.choices] == ["stop"] * 2
        for choice in made.choices:
            check(choice.message.content)
            assert all(one.logprob <= 0.0 for one in choice.logprobs.content)
    cell.freed()


def test_drafts_do_not_change_an_answer(cell: HttpCell) -> None:
    for fields in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}):
        texts = set()
        for policy in ("off", "fixed:7", "threshold:0.5"):
            extra = {"speculation": {"policy": policy}}
            made = cell.chat(response_format=FORMAT, extra_body=extra, **fields)
            texts.add(made.choices[0].message.content)
        assert len(texts) == 1
        check(texts.pop())


def test_an_answer_has_its_form_through_a_front_end_of_its_own(cell: HttpCell) -> None:
    async def said() -> str:
        async with (
            workers.frontend(coordinator=cell.coordinator.endpoint, target=str(TARGET)) as front,
            AsyncClient(front.endpoint) as client,
        ):
            answer = await client.complete(
                "def f", max_tokens=40, constraint={"regex": "[ab]{5}"}, timeout=60
            )
            return answer.text

    assert re.fullmatch("[ab]{5}", cell.run(said))


class Kind(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Part(pydantic.BaseModel):
    size: int = pydantic.Field(description="How much of it.", ge=0, le=99)
    kind: Kind


class Thing(pydantic.BaseModel):
    part: Part
    spare: Part | None
    others: list[Kind] = pydantic.Field(max_length=2)


def test_a_class_of_pydantic_comes_back_as_one_of_its_objects(cell: HttpCell) -> None:
    asked: Any = {"model": "target", "messages": [{"role": "user", "content": "x ="}]}
    asked |= {"max_tokens": 600, "temperature": 1.0, "seed": 3}
    made = cell.openai().chat.completions.parse(response_format=Thing, **asked)
    assert isinstance(made.choices[0].message.parsed, Thing)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
        ({"choice": ["red", "grün"]}, "red|grün"),
        ({"grammar": 'root ::= "<" [a-z]{1,20} ">"'}, "<[a-z]{1,20}>"),
    ],
)
def test_vllm_s_words(wanted: dict[str, Any], fits: str, cell: HttpCell) -> None:
    stops = {"min_tokens": 2, "repetition_penalty": 1.3}
    made = cell.chat(temperature=1.0, extra_body={"structured_outputs": wanted, **stops})
    assert made.choices[0].finish_reason == "stop"
    assert re.fullmatch(fits, made.choices[0].message.content)
    seven = {"structured_outputs": {"choice": ["7"]}, "min_tokens": 9}
    assert cell.chat(max_tokens=9, extra_body=seven).choices[0].message.content == "7"
    completed = cell.openai().completions.create(
        model="target", prompt="x = ", max_tokens=60, **form(**wanted)
    )
    assert completed.choices[0].finish_reason == "stop"
    assert re.fullmatch(fits, completed.choices[0].text)


def test_log_probabilities_tell_of_no_token_that_may_not_come(cell: HttpCell) -> None:
    shape, end = "[a-z]{4,9}-[0-9]{2}", "<|endoftext|>"
    made = cell.chat(temperature=0.0, logprobs=True, top_logprobs=20, **form(regex=shape))
    told = made.choices[0].logprobs.content
    assert {len(one.top_logprobs) for one in told} > {20}, "somewhere few may come"
    before = ""
    for one in told:
        tokens = [other.token for other in one.top_logprobs]
        assert one.token in tokens or len(tokens) == 20
        assert all(other.logprob <= 0.0 for other in one.top_logprobs)
        for token in tokens:
            text = before if token == end else before + token
            assert regex.fullmatch(shape, text, partial=token != end), (before, token)
        before += one.token
    assert before == made.choices[0].message.content + end
    completed = cell.openai().completions.create(
        model="target", prompt="x = ", logprobs=5, **form(choice=["7"])
    )
    assert completed.choices[0].logprobs.top_logprobs[0] == {"7": 0.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": in_schema({"type": "no"})}, "format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (form(regex="(?=a)"), "structured_outputs"),
        (form(regex="a", choice=["a"]), "structured_outputs"),
        (form(choice=["a", "a"]), "structured_outputs"),
        ({"response_format": FORMAT, "extra_body": {"ignore_eos": True}}, "ignore_eos"),
        ({"response_format": FORMAT, **form(regex="a")}, "structured_outputs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_kept_is_refused_by_name(
    fields: dict[str, Any], param: str, stream: bool, cell: HttpCell
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        cell.chat(stream=stream, **fields)
    assert param in str(refused.value.param)
    cell.freed()


def test_grpc_has_the_same(cell: HttpCell) -> None:
    with Client(cell.coordinator.endpoint) as client:

        def said(**options: Any) -> str:
            return "".join(
                chunk.text for chunk in client.generate("x = ", **{"max_tokens": 400, **options})
            )

        check(said(constraint={"json_schema": SCHEMA}, temperature=1.0))
        assert said(constraint={"choice": ["7"]}) == "7"
        for wrong in ({"regex": "("}, {"json_schema": "{"}, {"regex": ""}, {"nonsense": "x"}):
            with pytest.raises(InvalidRequest, match="constraint"):
                said(constraint=wrong)


def test_metrics_tell_what_forms_did(cell: HttpCell) -> None:
    names = ("form_tokens", "form_forced_tokens", "form_refused_drafts")

    def told() -> dict[str, float]:
        return {name: cell.verifier.metrics.value(f"{name}_total") for name in names}

    before = told()
    made = cell.chat(temperature=0.0, **form(regex="abcdefgh[0-9]{4}"))
    cell.freed()
    after = {name: value - before[name] for name, value in told().items()}
    assert after["form_tokens"] >= made.usage.completion_tokens - 1, "the first is of no round"
    assert 1 <= after["form_forced_tokens"] < after["form_tokens"], (
        "its end at least is forced, its digits are not"
    )
    assert after["form_refused_drafts"] >= 1, "no drafter expects this"


def shown(cell: HttpCell, shape: str) -> list[dict[str, Any]]:
    """Events of an answer as the live page gets them."""
    asked = {"messages": [{"role": "user", "content": "x"}], "shape": shape, "policy": "fixed:3"}
    answer = cell.post("/live/generate", asked)
    told = filter(None, answer.text.split("\n\n"))
    return [json.loads(event.removeprefix("data: ")) for event in told]


def tokens_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = [event for event in events if event["type"] in ("first", "round")]
    return [token for event in told for token in event["tokens"]]


def test_the_live_page_tells_what_forms_did_to_every_token_and_draft(cell: HttpCell) -> None:
    events = shown(cell, "abc[0-9]{4}xyz")
    tokens = tokens_of(events)
    assert re.fullmatch("abc[0-9]{4}xyz", "".join(token["text"] for token in tokens))
    assert not any(token["forced"] for token in tokens if token["text"].isdigit())
    assert tokens[-1]["forced"], "nothing but the end may follow"
    rounds = [event["told"] for event in events if event["type"] == "round"]
    fates = [
        (place == told["accepted"], slot["fate"])
        for told in rounds
        for place, slot in enumerate(told["slots"])
    ]
    assert (True, "forbidden") in fates, "no drafter expects this"
    assert (False, "forbidden") not in fates
    assert all(told["slots"][0]["fate"] != "forbidden" for told in rounds if told["slots"]), (
        "it was drafted by the form"
    )
    check("".join(token["text"] for token in tokens_of(shown(cell, json.dumps(SCHEMA)))))


def test_explain_tells_what_forms_did(cell: HttpCell) -> None:
    shape = {"constraint": {"regex": "[0-9]{400}xyz"}, "policy": "fixed:3"}
    rounds, _ = explained(cell, "shaped", prompt="x", max_tokens=500, **shape)
    assert all(len(told.forced) == len(told.token_ids) for told in rounds)
    assert rounds[-1].forced[-1]
    assert "forced)" in line(rounds[-1])
    fallen = [told for told in rounds if "forbidden" in {slot.fate for slot in told.slots}]
    assert fallen
    assert "!" in line(fallen[0])


def test_a_verifier_that_keeps_no_form_says_so(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "find_spec", lambda name: None)
    with pytest.raises(openai.BadRequestError, match="xgrammar is not installed") as refused:
        cell.chat(**form(choice=["nowhere"]))
    assert refused.value.code == "unsupported_parameter"
    cell.freed()


def compiling(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> list[str]:
    """What was asked of a verifier that fails so once, or has no time once."""
    mine, failed = cell.verifier.engine._grammars, list[str]()
    ask = mine._ask

    def broken(constraint: Constraint, cpu_s: float, wall_s: float) -> bytes | None:
        failed.append(constraint.text)
        if len(failed) > 1:
            return bytes(ask(constraint, cpu_s, wall_s))
        if fault is not None:
            raise fault
        return None

    monkeypatch.setattr(mine, "_ask", broken)
    return failed


def test_a_fault_of_the_compiler_is_not_the_client_s(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = compiling(cell, monkeypatch, OSError("broken"))
    made = cell.chat(**form(choice=["broken"]))
    assert len(failed) == 2
    assert made.choices[0].message.content == "broken"
    cell.freed()


def test_who_came_when_no_time_was_left_for_a_form_is_told_to_come_again(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(cell, monkeypatch, None)
    with pytest.raises(openai.RateLimitError, match="no time was left") as refused:
        cell.chat(**form(choice=["busy"]))
    assert refused.value.response.headers["retry-after"] == "1"
    assert cell.chat(**form(choice=["busy"])).choices[0].message.content == "busy"
    cell.freed()
