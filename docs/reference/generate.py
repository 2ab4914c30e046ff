"""Writes the reference pages from what the code says: configuration, command line, metrics and the
wire protocol.

python docs/reference/generate.py          # writes the pages
python docs/reference/generate.py --check  # exits 1 and names the pages that are out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from protocol import protocol
from writing import cell, page

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


sys.path.insert(0, str(ROOT))


def configuration() -> str:
    """Every key of every configuration class: type, default, meaning."""
    from deploy.autoscale import AutoscaleConfig
    from deploy.config import ClusterConfig
    from deploy.service_registry import ROOMS, config_class

    lines = [
        "# Configuration",
        "",
        "One YAML file with a section per process (`--config FILE`), over it the environment",
        "(`DSPARK_<SECTION>__<KEY>`), over that the flags (`--page-size 32` sets `page_size`). An "
        "unknown key is an",
        "error that names it and where it came from. Lists are comma-separated in the environment "
        "and in flags.",
    ]
    sections: list[tuple[str, str, type]] = [
        ("cluster", "`dspark up`", ClusterConfig),
        ("autoscale", "`dspark up`", AutoscaleConfig),
    ]
    sections += [(str(role), f"`dspark serve {role}`", config_class(role)) for role in ROOMS]
    for section, command, cls in sections:
        lines += ["", f"## {section}", "", f"{_first_paragraph(cls)} Read by {command}.", ""]
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for field in dataclasses.fields(cls):
            kind = str(field.type).replace("|", "\\|")
            lines.append(
                f"| `{field.name}` | {kind} | {_default(field)} | "
                f"{cell(field.metadata.get('doc', ''))} |"
            )
    return page(lines)


def command_line() -> str:
    """Arguments and options of every command, from its parser."""
    from dspark.cli.options import METAVARS, has_default

    lines = [
        "# Command line",
        "",
        "`dspark serve ROLE` takes the keys of that role's section in `configuration.md` too.",
    ]
    for name, parser, said in _every_command():
        lines += ["", f"## dspark {name}", "", " ".join((parser.description or said).split())]
        options = [
            action
            for action in parser._actions
            if action.help != argparse.SUPPRESS and action.dest != "help"
        ]
        options = [
            action for action in options if not isinstance(action, argparse._SubParsersAction)
        ]
        if options:
            lines += ["", "| argument | default | meaning |", "| --- | --- | --- |"]
        for action in options:
            value = action.metavar or METAVARS.get(action.dest) or METAVARS.get(action.type)
            written = f"`{', '.join(action.option_strings) or value or action.dest}`"
            if action.choices:
                written += f" {', '.join(map(str, action.choices))}"
            default = f"`{action.default}`" if has_default(action) else ""
            meaning = (
                (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
            )
            lines.append(f"| {cell(written)} | {cell(default)} | {cell(meaning)} |")
    return page(lines)


def _every_command() -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """The commands; of the roles of `serve` what all of them take."""
    from deploy.service_registry import ROOMS, config_class
    from dspark.cli.main import build_parser

    shown, *others = (f"serve {role}" for role in ROOMS)
    for name, parser, said in _commands(build_parser()):
        if name == shown:
            keys = {field.name for field in dataclasses.fields(config_class(next(iter(ROOMS))))}
            for action in parser._actions:
                if action.dest in keys:
                    action.help = argparse.SUPPRESS
            parser.description = f"One process by hand, without Ray. ROLE: {', '.join(ROOMS)}."
            parser.set_defaults(name="ROLE/0")
            yield "serve ROLE", parser, said
        elif name not in (*others, "serve", "train"):
            yield name, parser, said


def metrics() -> str:
    """Every metric a process shows, with its labels."""
    from dspark.runtime.telemetry import Metrics

    lines = [
        "# Metrics",
        "",
        "Every process serves `/metrics` on a port of its own and exposes all of these metrics; "
        "those that do not",
        "apply to it stay at zero. A counter's samples end in `_total`, a histogram's in "
        "`_bucket`, `_sum` and",
        "`_count`.",
        "",
        "| metric | kind | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for collector in Metrics().registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else ():
            labels = ", ".join(f"`{label}`" for label in getattr(collector, "_labelnames", ()))
            lines.append(
                f"| `{family.name}` | {family.type} | {labels} | {cell(family.documentation)} |"
            )
    return page(lines)


def _commands(
    parser: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Every command with its parser and the line its parent says about it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                yield f"{path}{name}", sub, said.get(name, "")
                yield from _commands(sub, f"{path}{name} ")


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def _default(field: Any) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "empty"
    return {None: "none", (): "empty", "": "empty"}.get(field.default, f"`{field.default}`")


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "command-line.md": command_line,
    "metrics.md": metrics,
    "protocol.md": protocol,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 when a page is out of date"
    )
    args = parser.parse_args(argv)
    stale = []
    for name, make in PAGES.items():
        text, path = make(), HERE / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not args.check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if args.check else 'written'}: {', '.join(stale)}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
