"""`dspark doctor`: what is right and wrong with this machine, this pair and this cell, and how to mend each.

Exit codes: 0 nothing is wrong (warnings may be), 1 something is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client

if TYPE_CHECKING:
    from dspark.cli.checks import Finding

MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `doctor`."""
    parser = commands.add_parser(
        "doctor",
        parents=[shared],
        help="check this machine, the pair and the cell; says how to mend what is wrong",
        description="Exit code 0: nothing is wrong; 1: something is. Changes nothing.",
    )
    parser.add_argument("--target", metavar="PATH_OR_ID", help="target to be served (the shipped one)")
    parser.add_argument("--drafter", metavar="PATH_OR_ID", help="drafter for it (the shipped one)")
    parser.add_argument("--revision", help="revision of both when they are hub ids")
    parser.add_argument("--address", metavar="HOST:PORT", help="running Ray cluster that is to be joined")
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT", help="port to try (127.0.0.1:8000)")
    add_endpoint(parser)
    parser.add_argument(
        "--acceptance", action="store_true", help="load the pair and see what is accepted on a few held prompts"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    findings = []
    for finding in _guarded(args):
        findings.append(finding)
        if not args.json:
            _print(finding)
    failed = sum(finding.level == "fail" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    if args.json:
        rows = [vars(finding) | {"level": str(finding.level)} for finding in findings]
        print(json.dumps({"ok": not failed, "failed": failed, "warned": warned, "findings": rows}, indent=2))
    else:
        print(f"\n{failed} wrong, {warned} to look at, {len(findings) - failed - warned} fine")
    return 1 if failed else 0


def _guarded(args: argparse.Namespace) -> Iterator[Finding]:
    """All checks; one that breaks is itself a finding, and the others go on."""
    from dspark.cli import checks, extras
    from dspark.cli.lifecycle import pair
    from dspark.errors import DsparkError

    def chosen() -> Iterable[Finding]:
        try:
            models = pair(args.target, args.drafter)
        except DsparkError as error:
            return [checks.Finding("pair", checks.Level.FAIL, str(error), "name both")]
        if not models["target"]:
            return [checks.Finding("target", checks.Level.FAIL, "a drafter alone is no pair", "say --target too")]
        return checks.models(models["target"], models["drafter"] or "none", args.revision, try_it=args.acceptance)

    all_checks = (
        ("versions", checks.versions),
        ("device", checks.device),
        ("limits", checks.limits),
        ("state", checks.state),
        ("ports", lambda: checks.ports({} if _holds_http() else {"http": args.http})),
        ("models", chosen),
        ("ray", lambda: checks.ray_access(args.address, os.environ)),
        ("cell", lambda: checks.cell(lambda: open_client(args))),
    )
    for name, check in all_checks:
        try:
            yield from check()
        except ModuleNotFoundError as error:
            module = error.name or str(error)
            said = f"not checked: that takes the module {module!r}, of the extra {extras.extra_of(module)}"
            yield checks.Finding(name, checks.Level.WARN, said, extras.how_to_install(module))
        except Exception as error:
            said = f"could not be checked: {type(error).__name__}: {error}"
            yield checks.Finding(name, checks.Level.WARN, said, "run again with --debug, or report it")


def _holds_http() -> bool:
    """Whether a cell of this state folder has an HTTP port already."""
    from dspark.client import NoCell, find_cell

    try:
        return bool(find_cell().http)
    except NoCell:
        return False


def _print(finding: Finding) -> None:
    mark = MARKS[finding.level]
    if sys.stdout.isatty():
        mark = f"\033[{COLOURS[finding.level]}m{mark}\033[0m"
    print(f"{mark} {finding.what:<14} {finding.said}")
    if finding.mend:
        print(f"     {'':<14} mend: {finding.mend}")
