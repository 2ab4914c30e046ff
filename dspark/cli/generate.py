"""`dspark generate`: streams the answer to one prompt to the terminal. Needs only grpcio and
protobuf."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dspark.cli import health
from dspark.cli.options import add_asking, as_utf_8, naturals, open_client, shown
from dspark.errors import InvalidRequest, WrongCommand, in_short
from dspark.numerals import number_in, whole_in


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("generate", help="stream one answer")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt")
    source.add_argument("--prompt-file", type=Path, help="read the prompt from a file, - is stdin")
    source.add_argument("--token-ids", type=naturals, metavar="1,2,3", help="the prompt in ids")
    add = parser.add_argument
    add("--max-tokens", type=int, help="longest answer (256)")
    add("--top-k", type=int, help="keep the N likeliest tokens, 0 keeps all")
    add("--min-p", type=float, help="keep tokens of this share of the likeliest one")
    add("--repetition-penalty", type=float, help="over prompt and answer; 1 is none")
    add("--presence-penalty", type=float, help="once, for tokens of the answer")
    add("--frequency-penalty", type=float, help="per occurrence in the answer")
    add(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID=B",
        help="add B to a logit; repeatable",
    )
    add("--n", type=int, help="answers to the same prompt, shown one after the other")
    add("--logprobs", type=int, help="tell log-probabilities, N likeliest (with --json)")
    add(
        "--prompt-logprobs",
        type=int,
        help="the same of the prompt; with --max-tokens 0 of it alone",
    )
    add("--min-tokens", type=int, help="nothing ends the answer before")
    add("--stop", action="append", metavar="TEXT", help="end the answer here; repeatable")
    add(
        "--stop-token-id",
        action="append",
        type=int,
        dest="stop_token_ids",
        help="end at this token; repeatable",
    )
    add(
        "--include-stop", action="store_true", default=None, dest="include_stop_str_in_output",
        help="show what ended it",
    )  # fmt: skip
    add(
        "--ignore-eos",
        action="store_true",
        default=None,
        help="go on past the target's stop tokens",
    )
    add("--request-id", metavar="ID", help="its name, for `status --explain` and `Abort`")
    add(
        "--drafter",
        metavar="NAME",
        help="replica that drafts, e.g. draft/1; while it is away none does",
    )
    add("--label", metavar="NAME", help="count acceptance under this name in the metrics")
    add("--timeout", type=float, metavar="S", help="deadline")
    add_asking(parser)
    add("--json", action="store_true", help="one JSON object at the end, nothing streamed")
    parser.set_defaults(run=_generate)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return whole_in(token), number_in(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=BIAS") from None


def _prompt(args: argparse.Namespace) -> str | list[int]:
    if args.token_ids is not None:
        ids: list[int] = args.token_ids
        return ids
    if args.prompt_file is None:
        return str(args.prompt)
    try:
        if str(args.prompt_file) == "-":
            return str(as_utf_8("prompt-file", sys.stdin.read()))
        return str(args.prompt_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            "prompt-file", f"{args.prompt_file} cannot be read: {in_short(error)}"
        ) from None


def _generate(args: argparse.Namespace) -> int:
    from dspark.client import Completion, Options

    options = {name: value for name, value in vars(args).items() if name in Options.__annotations__}
    options["logit_bias"] = dict(args.logit_bias or ())
    args.prompt = as_utf_8("prompt", args.prompt)
    for name, words in options.items():
        many = isinstance(words, list)
        options[name] = [as_utf_8(name, word) for word in words] if many else as_utf_8(name, words)
    for name in ("logprobs", "prompt_logprobs"):
        if options[name] is not None and not args.json:
            raise WrongCommand(f"{name.replace('_', '-')}: is told with --json alone")
    if args.wait is not None:
        health.wait_for(args)
    at_once = args.json or (args.n or 1) > 1  # pieces of several answers would mix
    with open_client(args) as client:
        has_text = args.json or client.model_info().has_tokenizer
        if not has_text and args.token_ids is None:
            raise InvalidRequest("prompt", "the target has no tokenizer; give --token-ids")
        events = []
        with client.generate(_prompt(args), timeout=args.timeout, **options) as stream:
            for event in stream:
                events.append(event)
                if not at_once:
                    print(_shown(event, has_text), end="", flush=True)
    answer = Completion.of(events)
    if args.json:
        print(json.dumps(answer.as_json()))
        return 0
    if at_once:
        for choice in answer.choices:
            print(f"[{choice.index}] {_shown(choice, has_text)}")
    else:
        print()
    print(_summary(answer), file=sys.stderr)
    return 0


def _shown(part: Any, has_text: bool) -> str:
    """The text of a part, or its ids if the target has no tokenizer."""
    return shown(str(part.text)) if has_text else "".join(f"{token} " for token in part.token_ids)


def _summary(answer: Any) -> str:
    spec, times, usage = answer.end.speculation, answer.end.timings, answer.end.usage
    rate = 1000 / times.itl_ms if times.itl_ms else 0.0
    return (
        f"[{usage.completion_tokens} tokens, {answer.end.finish_reason}; "
        f"{spec.mean_acceptance_length:.2f} tokens a round with {spec.policy or 'no policy'}; "
        f"first after {times.ttft_ms:.0f} ms, then {rate:.0f} tokens/s]"
    )
