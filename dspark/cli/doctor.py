"""`dspark doctor`: checks this machine, the pair and the cell, and says how to mend what is wrong.

Exit codes: 0 nothing is wrong (there may be warnings), 1 something is. Nothing is changed: a port
is bound and released, a cluster gets one request.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dspark.cli import extras
from dspark.cli.checks import Finding, Level, cluster, doubtful, machine, pair
from dspark.cli.options import add_endpoint, open_client

MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}
COLOURS = {Level.OK: "32", Level.WARN: "33", Level.FAIL: "31"}


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine, the pair and the cell; says how to mend what is wrong",
        description="Exit code 0: nothing is wrong; 1: something is. Changes nothing.",
    )
    add = parser.add_argument
    add("--target", help="target to be served (the shipped one)")
    add("--drafter", help="drafter for it (the shipped one)")
    add("--revision", help="revision of both when they are hub ids")
    add("--address", help="running Ray cluster that is to be joined")
    add("--http", default="127.0.0.1:8000", help="port to try")
    add_endpoint(parser)
    add("--acceptance", action="store_true", help="see what the pair accepts on a few prompts")
    add("--json", action="store_true", help="one JSON object")
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
        told = {"ok": not failed, "failed": failed, "warned": warned, "findings": rows}
        print(json.dumps(told, indent=2))
    else:
        print(f"\n{failed} wrong, {warned} to look at, {len(findings) - failed - warned} fine")
    return 1 if failed else 0


def _guarded(args: argparse.Namespace) -> Iterator[Finding]:
    """Runs all checks; one that raises becomes a finding itself, and the others still run."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": machine.versions,
        "device": machine.device,
        "limits": machine.limits,
        "state": cluster.state,
        "ports": lambda: machine.http_port(args.http),
        "models": lambda: pair.models(
            args.target, args.drafter, args.revision, try_it=args.acceptance
        ),
        "ray": lambda: cluster.ray_access(args.address, os.environ),
        "cell": lambda: cluster.cell(lambda: open_client(args)),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except ModuleNotFoundError as error:
            module = error.name or str(error)
            said = (
                f"not checked: that takes the module {module!r}, of the extra "
                f"{extras.extra_of(module)}"
            )
            yield doubtful(name, said, extras.how_to_install(module))
        except Exception as error:
            if args.debug:
                raise
            said = f"could not be checked: {type(error).__name__}: {error}"
            yield doubtful(name, said, "run again with --debug, or report it")


def _print(finding: Finding) -> None:
    mark = MARKS[finding.level]
    if sys.stdout.isatty():
        mark = f"\033[{COLOURS[finding.level]}m{mark}\033[0m"
    print(f"{mark} {finding.what:<14} {finding.said}")
    if finding.mend:
        print(f"     {'':<14} mend: {finding.mend}")
