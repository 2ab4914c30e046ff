"""`dspark generate`: one prompt, streamed to the terminal as it is committed. Needs grpcio and protobuf alone."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.errors import InvalidRequest

if TYPE_CHECKING:
    from dspark.client import Client


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `generate`."""
    parser = commands.add_parser("generate", parents=[shared], help="stream one answer")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt")
    source.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from a file, - is stdin")
    source.add_argument("--token-ids", type=_ids, metavar="1,2,3", help="the prompt as token ids")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest tokens, 0 keeps all")
    parser.add_argument("--top-p", type=float, metavar="P", help="keep this much probability")
    parser.add_argument("--seed", type=int, help="key of the draws")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer here; repeatable")
    parser.add_argument("--ignore-eos", action="store_true", default=None, help="go on past the target's stop tokens")
    parser.add_argument("--policy", default="", help="off, fixed:k, threshold:t or greedy")
    parser.add_argument("--rule", default="", choices=["token", "block", "coupled"], help="acceptance rule")
    parser.add_argument("--timeout", type=float, metavar="S", help="deadline in seconds")
    parser.add_argument(
        "--endpoint", metavar="HOST:PORT", help="coordinator; default: the cluster of this state folder"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="secret of the endpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, stream nothing")
    parser.set_defaults(run=_generate)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None


def open_client(args: argparse.Namespace) -> Client:
    """The client for `--endpoint`, or for the cluster of the state folder."""
    from dspark.client import Client
    from dspark.runtime.identity import read_token

    return Client(args.endpoint, token=read_token(args.token_file))


def _prompt(args: argparse.Namespace) -> str | list[int]:
    if args.token_ids is not None:
        ids: list[int] = args.token_ids
        return ids
    if args.prompt_file is None:
        return str(args.prompt)
    try:
        return sys.stdin.read() if str(args.prompt_file) == "-" else args.prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("prompt-file", f"{args.prompt_file} cannot be read: {error}") from None


def _generate(args: argparse.Namespace) -> int:
    from dspark.client import Completion, Finished
    from dspark.client.events import gather

    options = {
        name: getattr(args, name)
        for name in ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "ignore_eos", "policy", "rule")
    }
    with open_client(args) as client:
        has_text = args.json or client.model_info().has_tokenizer
        events = []
        with client.generate(_prompt(args), timeout=args.timeout, **options) as stream:
            for event in stream:
                events.append(event)
                if not args.json:
                    # A target without a tokenizer answers in ids.
                    shown = event.text if has_text else "".join(f"{token} " for token in event.token_ids)
                    print(shown, end="", flush=True)
    end = events[-1]
    assert isinstance(end, Finished)
    answer = Completion(*gather(events), end)
    if args.json:
        print(json.dumps(answer.as_json()))
    else:
        print()
        print(_summary(answer), file=sys.stderr)
    return 0


def _summary(answer: Any) -> str:
    spec, times, usage = answer.end.speculation, answer.end.timings, answer.end.usage
    rate = 1000 / times.itl_ms if times.itl_ms else 0.0
    return (
        f"[{usage.completion_tokens} tokens, {answer.end.finish_reason}; "
        f"{spec.mean_acceptance_length:.2f} tokens a round with {spec.policy or 'no policy'}; "
        f"first after {times.ttft_ms:.0f} ms, then {rate:.0f} tokens/s]"
    )
