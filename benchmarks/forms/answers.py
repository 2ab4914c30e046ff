"""Answers in 200 schemas and 100 expressions, at temperature 0: `off`, and the default policy.

Every answer that ended by itself has to be valid, and its ids have to be those without drafts.
Tokens a second are of each answer alone, beside the same question without a form.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.forms.cases import expressions, schemas
from benchmarks.row import Row, note
from deploy.processes import ProcessCell
from dspark.loadgen import prometheus

LONGEST = 96  # tokens
Case = tuple[str, dict[str, Any], str]


def cases() -> Iterator[Case]:
    """(name, form, question) of each."""
    for name, schema in schemas():
        yield (
            name,
            {"json": schema},
            f"Invent one example of this as JSON: {', '.join(schema['properties'])}.",
        )
    for name, expression in expressions():
        yield (
            name,
            {"regex": expression},
            f"Write one example of a text that fits the pattern {expression}",
        )


def ask(
    client: httpx.Client,
    question: str,
    form: dict[str, Any] | None,
    policy: str,
    *,
    longest: int = LONGEST,
) -> dict[str, Any]:
    """One answer: text, ids, whether it ended by itself, tokens a second."""
    body = {
        "prompt": f"{question}\n",
        "temperature": 0.0,
        "max_tokens": longest,
        "return_token_ids": True,
    }
    body |= {"structured_outputs": form} if form else {}
    body |= {"speculation": {"policy": policy}} if policy else {}
    while True:
        began = time.perf_counter()
        response = client.post("/v1/completions", json=body)
        if response.status_code != 429:  # on a busy machine no time may be left for the form
            break
        time.sleep(float(response.headers["retry-after"]))
    if response.status_code != 200:
        raise SystemExit(f"{form}: {response.text}")
    (choice,) = response.json()["choices"]
    return {
        "text": choice["text"],
        "ids": choice["token_ids"],
        "ended": choice["finish_reason"] == "stop",
        "tokens_s": len(choice["token_ids"]) / (time.perf_counter() - began),
    }


def valid(form: dict[str, Any], text: str) -> bool:
    import jsonschema

    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    try:
        jsonschema.validate(json.loads(text), form["json"])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def case(client: httpx.Client, name: str, form: dict[str, Any], question: str) -> dict[str, Any]:
    """Asks one question without drafts, with drafts and without its form; returns a row of the
    file."""
    ask(client, question, form, "off", longest=1)  # compiles the form, and fills the prefix cache
    plain, drafted = ask(client, question, form, "off"), ask(client, question, form, "")
    free = ask(client, question, None, "")
    return {
        "case": name,
        "ended": plain["ended"],
        "valid": not plain["ended"] or valid(form, plain["text"]),
        "same": plain["ids"] == drafted["ids"],
        "tokens": len(plain["ids"]),
        "off_tokens_s": round(plain["tokens_s"], 1),
        "default_tokens_s": round(drafted["tokens_s"], 1),
        "free_tokens_s": round(free["tokens_s"], 1),
        "text": plain["text"],
    }


def summed(rows: Sequence[dict[str, Any]]) -> Row:
    wrong = [row["case"] for row in rows if not row["valid"] or not row["same"]]
    value = {
        "cases": len(rows),
        "ended": sum(row["ended"] for row in rows),
        "valid": sum(row["valid"] for row in rows),
        "same_ids": sum(row["same"] for row in rows),
        "wrong": wrong[:5],
        **{
            name: round(statistics.median(row[name] for row in rows), 1)
            for name in ("off_tokens_s", "default_tokens_s", "free_tokens_s")
        },
    }
    bar = "every answer that ended is valid; ids are those without drafts"
    return Row("forms-answers", "answers in forms on the shipped pair", value, bar, not wrong)


def part(said: str) -> list[Case]:
    """Cases of a part I/N: every Nth case from the Ith on."""
    first, step = map(int, said.split("/"))
    return list(cases())[first - 1 :: step]


def compared(client: httpx.Client, wanted: Sequence[Case], kept: Path | None) -> Row:
    """Measures the default policy beside `off`. kept: cases in this file are not asked again."""
    rows: list[dict[str, Any]] = []
    if kept is not None and kept.is_file():
        rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    known = {row["case"] for row in rows}
    for name, form, question in (each for each in wanted if each[0] not in known):
        rows.append(case(client, name, form, question))
        note(f"{name}: {rows[-1]}"[:200])
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
    return summed(rows)


def forced(client: httpx.Client, wanted: Sequence[Case], cell: ProcessCell) -> Row:
    """Tokens of rounds under the default policy, and those without an alternative in the form, as
    the verifier counts them, by kind of form."""
    with cell.client() as asked:
        port = next(each.metrics_port for each in asked.status().processes if each.role == "verify")
    value: dict[str, Any] = {}
    for kind in ("json", "regex"):
        before, ended = _counted(port), list[bool]()
        for name, form, question in (each for each in wanted if kind in each[1]):
            ended.append(ask(client, question, form, "")["ended"])
            note(name)
        tokens, alone = (now - then for now, then in zip(_counted(port), before, strict=True))
        share = round(alone / tokens, 3) if tokens else 0.0
        told = {"tokens": round(tokens), "forced": round(alone), "share": share}
        value[kind] = told | {"answers": len(ended), "ended": sum(ended)}
    return Row("forms-forced", "tokens that a form left no choice for", value, "a figure", None)


def _counted(port: int) -> list[float]:
    """(tokens of forms, forced ones) so far, by the verifier's metrics."""
    page = prometheus.fetch(f"http://127.0.0.1:{port}/metrics")
    return [
        prometheus.total(page, f"dspark_form_{name}_total") for name in ("tokens", "forced_tokens")
    ]
