"""`dspark scale verify=2 draft=3`: changes either pool of a running cell; returns when the new sizes serve."""

from __future__ import annotations

import argparse
from typing import Any

from dspark.errors import ConfigError

WORDS = {"on": True, "off": False}


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `scale`."""
    parser = commands.add_parser(
        "scale",
        parents=[shared],
        help="change the size of either pool while it serves",
        description="dspark scale verify=2 draft=3. Workers that leave get nothing new; streams go on. "
        "autoscale=on|off: whether pools follow the load by themselves, within section `autoscale` of the file.",
    )
    parser.add_argument("sizes", nargs="*", metavar="POOL=N", help="verify=N, draft=N or autoscale=on|off")
    parser.add_argument("--verifiers", type=int, metavar="N", help="the same as verify=N")
    parser.add_argument("--drafters", type=int, metavar="N", help="the same as draft=N")
    parser.set_defaults(run=_scale)


def read_sizes(words: list[str]) -> tuple[dict[str, int], bool | None]:
    """Sizes of `verify` and `draft`, and `autoscale`, as given; raises ConfigError with the word to blame."""
    given: dict[str, int] = {}
    autoscale: bool | None = None
    for word in words:
        name, _, value = word.partition("=")
        if name in given:
            raise ConfigError(f"scale: {name} is given twice")
        if name in ("verify", "draft") and value.isascii() and value.isdigit():
            given[name] = int(value)
        elif name == "autoscale" and value in WORDS:
            autoscale = WORDS[value]
        else:
            raise ConfigError(f"scale: {word!r} is not verify=N, draft=N, autoscale=on or autoscale=off")
    return given, autoscale


def _scale(args: argparse.Namespace) -> int:
    from deploy.scale import scale
    from dspark.cli.options import say

    given, autoscale = read_sizes(args.sizes)
    for name, flag in (("verify", args.verifiers), ("draft", args.drafters)):
        if flag is not None:
            given[name] = flag
    if not given and autoscale is None:
        raise ConfigError("scale: say what to change, as in `dspark scale verify=2 draft=3`")
    verifiers, drafters = scale(given.get("verify"), given.get("draft"), autoscale, say)
    print(f"{verifiers} verifiers, {drafters} drafters")
    return 0
