"""Answers in 200 schemas and 100 expressions on the shipped pair, at temperature 0: `off`, and the default policy.

    python -m benchmarks.forms_answers --part 1/12 --kept FILE
    python -m benchmarks.forms_answers --kept FILE            # whatever of it is not done yet, then the row
    python -m benchmarks.forms_answers --forced               # another row: tokens that a form left no choice for

Every answer that ended by itself has to be valid, and its ids have to be those without drafts. Tokens a second are of
each answer alone, beside the same question without a form. Cases in FILE are not asked again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.forms_cases import expressions, schemas
from benchmarks.row import Row, note
from deploy.processes import ProcessCell
from dspark import shipped
from dspark.decoding.masking import in_form
from dspark.model.checkpoint import load_target
from dspark.types import Constraint, ConstraintKind
from verify_service.grammars.compiling import compiled, make_compiler
from verify_service.grammars.grammars import CompiledGrammar

LONGEST = 96  # tokens


def cases() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(name, form, question) of each."""
    for name, schema in schemas():
        form = {"json_schema": schema}
        yield name, form, f"Invent one example of this as JSON: {', '.join(schema['properties'])}."
    for name, expression in expressions():
        yield name, {"regex": expression}, f"Write one example of a text that fits the pattern {expression}"


def ask(
    client: httpx.Client, question: str, form: dict[str, Any] | None, policy: str, *, longest: int = LONGEST
) -> dict[str, Any]:
    """One answer: text, ids, whether it ended by itself, tokens a second."""
    body: dict[str, Any] = {
        "prompt": f"{question}\n",
        "temperature": 0.0,
        "max_tokens": longest,
        "return_token_ids": True,
    }
    if policy:
        body["speculation"] = {"policy": policy}
    if form is not None:
        body["structured_outputs"] = {"json" if name == "json_schema" else name: value for name, value in form.items()}
    while True:
        began = time.perf_counter()
        response = client.post("/v1/completions", json=body)
        if response.status_code != 429:  # on a busy machine no time may be left for the form
            break
        time.sleep(float(response.headers["retry-after"]))
    if response.status_code != 200:
        raise SystemExit(f"{form}: {response.text}")
    answer = response.json()
    spent = time.perf_counter() - began
    (choice,) = answer["choices"]
    return {
        "text": choice["text"],
        "ids": choice["token_ids"],
        "ended": choice["finish_reason"] == "stop",
        "tokens_s": len(choice["token_ids"]) / spent,
    }


def valid(form: dict[str, Any], text: str) -> bool:
    import jsonschema

    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    try:
        jsonschema.validate(json.loads(text), form["json_schema"])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def case(client: httpx.Client, name: str, form: dict[str, Any], question: str) -> dict[str, Any]:
    """One row of the file."""
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


def shown(rows: Sequence[dict[str, Any]], as_json: bool) -> int:
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
    return Row("forms-answers", "answers in forms on the shipped pair", value, bar, not wrong).show(as_json=as_json)


def forced(client: httpx.Client, wanted: Sequence[tuple[str, dict[str, Any], str]], until: float) -> dict[str, Any]:
    """Of answers under the default policy, by kind of form: tokens, those that were the only ones to come, and those
    of them that came behind one that was chosen."""
    target = load_target(shipped.TARGET)
    compiler = make_compiler(target.folder, target.vocab_size, target.stop_ids)
    told = {"json_schema": Counter[str](), "regex": Counter[str]()}
    for name, form, question in wanted:
        if time.monotonic() > until:
            break
        answer = ask(client, question, form, "")
        ((kind, given),) = form.items()
        text = given if kind == "regex" else json.dumps(given)
        made = compiled(compiler, Constraint(ConstraintKind[kind.upper()], text))
        matcher, before = CompiledGrammar(made, target.stop_ids).matcher(), False
        ids = answer["ids"]
        if answer["ended"] and ids[-1:] != list(target.stop_ids[:1]):
            ids = [*ids, target.stop_ids[0]]
        for token in ids:
            single = in_form(matcher.masks(()), (), 0).forced[0]
            told[kind] += Counter(tokens=1, forced=single, runs=single and not before)
            matcher.accept([token])
            before = single
        told[kind] += Counter(answers=1, ended=answer["ended"])
        note(f"{name}: {dict(told[kind])}")
    return {kind: {**counts, "share": round(counts["forced"] / counts["tokens"], 3)} for kind, counts in told.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms_answers", description=__doc__)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every Nth case from the Ith on")
    parser.add_argument("--kept", type=Path, help="rows of cases, one a line; goes on behind them")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no case after so long")
    parser.add_argument("--forced", action="store_true", help="count tokens that were the only ones to come")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    first, step = map(int, args.part.split("/"))
    rows: list[dict[str, Any]] = []
    if args.kept is not None and args.kept.is_file():
        rows = [json.loads(line) for line in args.kept.read_text(encoding="utf-8").splitlines()]
    known = {row["case"] for row in rows}
    wanted = [each for each in list(cases())[first - 1 :: step] if each[0] not in known]
    began = time.monotonic()
    if wanted:
        with (
            ProcessCell(shipped.TARGET, shipped.drafter(), coordinator={"http": "127.0.0.1:0"}) as cell,
            httpx.Client(base_url=cell.children["coordinator/0"].http, timeout=120.0) as client,
        ):
            if args.forced:
                value = forced(client, wanted, began + args.seconds)
                return Row("forms-forced", "tokens that a form left no choice for", value, "a figure", True).show(
                    as_json=args.json
                )
            for name, form, question in wanted:
                if time.monotonic() - began > args.seconds:
                    break
                rows.append(case(client, name, form, question))
                note(f"{name}: {rows[-1]}"[:200])
                if args.kept is not None:
                    with args.kept.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
    if not rows:
        raise SystemExit(f"no case began within {args.seconds:g} s")
    return shown(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
