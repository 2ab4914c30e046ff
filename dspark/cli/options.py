"""What several commands share: options of numbers, configuration keys, endpoints and credentials,
and output to the terminal."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import signal
import sys
import time
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dspark.errors import InvalidRequest
from dspark.numerals import number_in, whole_in
from dspark.runtime.setting import SettingBounds

if TYPE_CHECKING:
    from dspark.client import Client

T = TypeVar("T")

RULES = ("token", "block", "coupled")
TOGETHER_S = 0.2  # seconds within which signals are one
ENDPOINT = "coordinator; default: the cluster of this state folder"
_TLS = {
    "tls_ca": "PEM file of the authority servers' certificates must come from; plaintext without "
    "any of these",
    "tls_cert": "PEM file of the certificate to show, where servers ask for one",
    "tls_key": "PEM file of its private key",
    "tls_server_name": "name expected in servers' certificates (their address)",
}


class Parser(argparse.ArgumentParser):
    """A parser with --debug, whose `type=int` and `type=float` reject "1_0" and "nan"; its
    subcommands are such parsers, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter} | options)
        self.register("type", int, _reader(whole_in))
        self.register("type", float, _reader(number_in))
        # Without a default, which would override --debug before a subcommand.
        self.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print the traceback of a failure",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses what this command does not know under its own usage, where argparse would leave
        that to the parser above."""
        known, others = super().parse_known_args(args, namespace)
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return known, others


class HelpFormatter(argparse.HelpFormatter):
    """Names a value by its option or its type, and shows an option's default behind its help."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        named = METAVARS.get(action.dest) or METAVARS.get(action.type)
        return named or action.dest.upper()

    _get_default_metavar_for_positional = _get_default_metavar_for_optional

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return f"{action.help} (%(default)s)" if has_default(action) else action.help


def has_default(action: argparse.Action) -> bool:
    """Whether an option has a default that says something."""
    said = action.default not in (None, False, argparse.SUPPRESS, [], (), "")
    # what takes something away is not given by default, whatever stands there then
    return said and action.nargs != 0


def _reader(read: Callable[[str], T], bounds: SettingBounds | None = None) -> Callable[[str], T]:
    """Wraps a reader for argparse, which reports the message of its error."""

    def argument(text: str) -> T:
        try:
            value = read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if bounds is not None and (problem := bounds.problem(value)):
            raise argparse.ArgumentTypeError(problem)
        return value

    return argument


def folder(text: str) -> Path:
    """The path of a folder, for which help says DIR."""
    return Path(text)


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A reader of lists: one or more values between commas."""
    return lambda text: [read(part.strip()) for part in text.split(",")]


natural, positive = (_reader(whole_in, SettingBounds(least=least)) for least in (0, 1))  # counts
seed = _reader(whole_in, SettingBounds(least=0, most=1 << 62))  # larger than any count
wait_s = _reader(number_in, SettingBounds(least=0))  # seconds
span_s = _reader(number_in, SettingBounds(above=0))
naturals, positives, numbers_from_0, numbers_above_0 = map(
    several, (natural, positive, wait_s, span_s)
)
METAVARS: Mapping[Any, str] = {
    int: "N",
    natural: "N",
    seed: "N",
    positive: "N",
    naturals: "N,N",
    positives: "N,N",
    float: "X",
    wait_s: "S",
    span_s: "S",
    numbers_from_0: "X,X",
    numbers_above_0: "X,X",
    Path: "FILE",
    folder: "DIR",
    "target": "PATH_OR_ID",
    "drafter": "PATH_OR_ID",
    **dict.fromkeys(("endpoint", "address", "http", "serve"), "HOST:PORT"),
}


def add_keys(
    parser: argparse.ArgumentParser,
    cls: type[Any],
    *,
    prefix: str = "",
    only: Collection[str] = (),
    leave_out: Collection[str] = (),
) -> None:
    """Adds a flag for every field of a configuration, with the field's doc as its help; None if it
    is not given."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in leave_out or (only and field.name not in only):
            continue
        option = "--" + (prefix + field.name).replace("_", "-")
        text = str(field.metadata.get("doc", "")).replace("%", "%%")
        if hints[field.name] is bool:
            parser.add_argument(
                option, action=argparse.BooleanOptionalAction, default=None, help=text
            )
            continue
        if field.default not in (dataclasses.MISSING, None, "", ()):
            text += f" ({field.default})"
        kind: Any = hints[field.name] if hints[field.name] in (int, float) else None
        parser.add_argument(option, type=kind, help=text)


def read_keys(
    args: argparse.Namespace, cls: type[T], section: str, *, prefix: str = "", **more: object
) -> T:
    """A configuration from the flags of `add_keys`, over its defaults; `more` overrides both.
    ConfigError names a key."""
    from dspark.runtime.config import load_config

    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return load_config(
        cls,
        section=section,
        flags={name: getattr(args, prefix + name, None) for name in names} | more,
    )


def add_tls(parser: Any) -> None:
    """Adds --tls-*: the certificate shown to a server, and the authority that is trusted."""
    for key, text in _TLS.items():
        what = "NAME" if key == "tls_server_name" else "FILE"
        parser.add_argument("--" + key.replace("_", "-"), metavar=what, help=text)


def add_endpoint(parser: Any, text: str = ENDPOINT) -> None:
    """Adds --endpoint, and the secret and certificates for it."""
    parser.add_argument("--endpoint", help=text)
    parser.add_argument("--token-file", type=Path, help="secret of the endpoint")
    add_tls(parser)


def add_asking(parser: Any, text: str = ENDPOINT) -> None:
    """Adds the options of a command that sends requests: sampling, policy, rule, waiting and
    endpoint."""
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--top-p", type=float, help="keep this much probability")
    parser.add_argument("--seed", type=int, help="key of the draws")
    parser.add_argument("--policy", help="off, fixed:k, threshold:t or adaptive")
    parser.add_argument("--rule", choices=RULES, help="acceptance rule")
    parser.add_argument("--wait", type=wait_s, help="wait at most so long for the cell to be ready")
    add_endpoint(parser, text)


def credentials(args: argparse.Namespace) -> dict[str, Any]:
    """The secret and the certificates for `--endpoint`, as arguments of a client."""
    from dspark.runtime.identity import read_token
    from dspark.runtime.tls import Tls

    return {"token": read_token(args.token_file), "tls": Tls.of(args)}


def open_client(args: argparse.Namespace) -> Client:
    """The client for `--endpoint`, or for the cluster of the state folder."""
    from dspark.client import Client

    return Client(args.endpoint, **credentials(args))


def as_utf_8(name: str, word: Any) -> Any:
    """A word as it was typed, whatever the locale: bytes that its encoding lacks are lone
    surrogates in Python. InvalidRequest names the first byte that is not UTF-8. What is no word
    stays as it is."""
    if not isinstance(word, str) or not re.search("[\udc80-\udcff]", word):
        return word
    typed = word.encode(errors="surrogateescape")
    try:
        return typed.decode()
    except UnicodeDecodeError as error:
        byte, before = typed[error.start], len(typed[: error.start].decode())
        raise InvalidRequest(
            name, f"is not UTF-8: byte 0x{byte:02X} behind {before} characters; is it Latin-1?"
        ) from None


def end_as_by_ctrl_c() -> None:
    """Lets SIGTERM, and a terminal that closes, end this command in order; under nohup the latter
    does not. Signals that come together are one: shell, kernel and wrappers all say it."""
    before = -TOGETHER_S

    def end(number: int, frame: object) -> None:
        nonlocal before
        if (now := time.monotonic()) - before > TOGETHER_S:
            before = now
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def say(line: str) -> None:
    """Prints a line of progress to stderr. A closed pipe or a full disk must not stop the work
    half-way."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def tell(line: str) -> None:
    """Prints the one line on stdout of a command that starts something. If it cannot be written
    (full disk, closed pipe), it goes to stderr, and what serves goes on."""
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        discard_stdout()
        with contextlib.suppress(OSError, ValueError):
            print(f"stdout cannot be written ({error}): {line}", file=sys.stderr, flush=True)


def discard_stdout() -> None:
    """Sends what is left of stdout nowhere: in its buffer it would fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def written_out(text: str) -> str:
    """The text with control characters as escapes, except tabs and line breaks: text of models and
    of foreign files must not control a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def shown(text: str) -> str:
    """Text of a model for stdout: written out in a terminal, unchanged for another program."""
    return written_out(text) if sys.stdout.isatty() else text
