"""Options that are fields of a training room's dataclass: one flag per field, with the field's own words."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from dspark.numerals import whole_in


def add_settings(parser: argparse.ArgumentParser, *, only: Sequence[str] = (), leave_out: Sequence[str] = ()) -> None:
    """Flags of a training run; `samples` stands without one."""
    from dspark.training.settings import Settings

    hints = typing.get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        if field.name in leave_out or (only and field.name not in only):
            continue
        text, required = str(field.metadata["doc"]).replace("%", "%%"), field.default is dataclasses.MISSING
        if field.name == "samples":
            parser.add_argument("samples", metavar="FILE", help=text)
            continue
        kind: Any = _layers if field.name == "taps" else hints[field.name]
        told = text if required or field.default in ("", ()) else f"{text} ({field.default})"
        parser.add_argument(_flag(field.name), type=kind, required=required, metavar=_META.get(kind, "X"), help=told)


def settings_of(args: argparse.Namespace, **more: Any) -> Any:
    """The settings that were given; the rest has its defaults."""
    from dspark.training.settings import Settings

    names = {field.name for field in dataclasses.fields(Settings)}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    return Settings(**(given | more))


def add_asking(parser: argparse.ArgumentParser, *, prefix: str = "") -> None:
    """Flags of regeneration."""
    asking = {
        "temperature": (float, "of the answers (0.7)"),
        "top_p": (float, "nucleus mass (0.8)"),
        "top_k": (int, "likeliest tokens kept; 0: all (20)"),
        "min_p": (float, "least share of the likeliest one (0)"),
        "max_tokens": (int, "longest answer (4096)"),
        "concurrency": (int, "answers asked for at the same time (32)"),
        "answer_timeout_s": (float, "deadline of an answer (600)"),
        "patience_s": (float, "how long a cell that does not answer is waited for (300)"),
    }
    for name, (kind, text) in asking.items():
        parser.add_argument(_flag(prefix + name), type=kind, metavar=_META[kind], help=text)
    if not prefix:
        parser.add_argument("--seed", type=int, metavar="N", help="key of the draws (42)")


def asking_of(args: argparse.Namespace, *, prefix: str = "") -> Any:
    """How answers are asked for."""
    from dspark.training.regenerate import RegenerationSettings

    given = {field.name: getattr(args, prefix + field.name, None) for field in dataclasses.fields(RegenerationSettings)}
    if prefix:
        given["seed"] = getattr(args, "seed", None)
    return RegenerationSettings(**{name: value for name, value in given.items() if value is not None})


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(whole_in(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers") from None


_META: dict[Any, str] = {int: "N", float: "X", str: "NAME", _layers: "1,4,7"}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
