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
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dspark.errors import InvalidRequest
from dspark.numerals import number_in, whole_in

if TYPE_CHECKING:
    from dspark.client import AsyncClient, Client
    from dspark.runtime.tls import Tls

T = TypeVar("T")

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
        super().__init__(*arguments, **options)
        self.register("type", int, one_whole)
        self.register("type", float, one_number)
        # Without a default, which would override --debug before a subcommand.
        self.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print the traceback of a failure",
        )


def _argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps a reader for argparse, which reports the message of its ValueError."""

    def argument(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


one_whole, one_number = _argument(whole_in), _argument(number_in)


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if (value := whole_in(text)) < least:
            raise ValueError(f"{text} is less than {least}")
        return value

    return _argument(read)


natural, positive = _at_least(0), _at_least(1)  # counts


def numbers(text: str, *, zero: bool = False) -> list[float]:
    """A comma-separated list of finite numbers above 0, or from 0 on with `zero`."""
    try:
        values = [number_in(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all(value >= 0 if zero else value > 0 for value in values):
        raise argparse.ArgumentTypeError(
            f"{text!r}: every number must be {'0 or more' if zero else 'above 0'}"
        )
    return values


def whole(text: str, *, zero: bool = False) -> list[int]:
    """A comma-separated list of whole numbers above 0, or from 0 on with `zero`."""
    values = numbers(text, zero=zero)
    if not all(value == int(value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers")
    return [int(value) for value in values]


def wait_s(text: str) -> float:
    """A number of seconds, 0 or more."""
    with contextlib.suppress(ValueError):
        if 0.0 <= (seconds := number_in(text)) < 1e9:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")


def span_s(text: str) -> float:
    """A number of seconds above 0."""
    if not (seconds := wait_s(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return seconds


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
        kind: Any = hints[field.name] if hints[field.name] in (int, float) else str
        parser.add_argument(option, type=kind, metavar="VALUE", help=text)


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
    parser.add_argument("--endpoint", metavar="HOST:PORT", help=text)
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="secret of the endpoint")
    add_tls(parser)


def add_asking(parser: Any, text: str = ENDPOINT) -> None:
    """Adds the options of a command that sends requests: sampling, policy, rule, waiting and
    endpoint."""
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-p", type=float, metavar="P", help="keep this much probability")
    parser.add_argument("--seed", type=int, help="key of the draws")
    parser.add_argument("--policy", default="", help="off, fixed:k, threshold:t or adaptive")
    parser.add_argument(
        "--rule", default="", choices=["token", "block", "coupled"], help="acceptance rule"
    )
    parser.add_argument(
        "--wait", type=wait_s, metavar="S", help="wait at most so long for the cell to be ready"
    )
    add_endpoint(parser, text)


def tls_of(args: argparse.Namespace) -> Tls | None:
    """TLS options for `--endpoint`; None: plaintext."""
    from dspark.runtime.tls import Tls

    return Tls.of(args)


def open_client(args: argparse.Namespace) -> Client:
    """The client for `--endpoint`, or for the cluster of the state folder."""
    from dspark.client import Client
    from dspark.runtime.identity import read_token

    return Client(args.endpoint, token=read_token(args.token_file), tls=tls_of(args))


def open_async_client(args: argparse.Namespace) -> AsyncClient:
    """Like `open_client`, for asyncio; to be called inside a running loop."""
    from dspark.client import AsyncClient
    from dspark.runtime.identity import read_token

    return AsyncClient(args.endpoint, token=read_token(args.token_file), tls=tls_of(args))


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
    does not."""

    def closed(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # shell and kernel say it both: once is enough
        raise KeyboardInterrupt

    for number, act in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, closed)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, act)


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
