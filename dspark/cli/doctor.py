"""`dspark doctor`: checks this machine, the pair and the cell, and says how to mend what is wrong.

Exit codes: 0 nothing is wrong (there may be warnings), 1 something is. Nothing is changed: a port
is bound and released, a cluster gets one request.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark import shipped
from dspark.cli import extras
from dspark.cli.options import add_endpoint, open_client
from dspark.errors import DsparkError

if TYPE_CHECKING:
    from dspark.client import Client

LEAST_FILES = 4096  # open files: a coordinator holds one socket per client
LEAST_SHARED_MEMORY = 100_000_000  # bytes of /dev/shm: Ray's store of objects takes 80 MB of it


class Level(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}
COLOURS = {Level.OK: "32", Level.WARN: "33", Level.FAIL: "31"}


@dataclass(frozen=True)
class Finding:
    """The result of a check. what: its subject. said: what was found. mend: how to mend it, empty
    if it is fine."""

    what: str
    level: Level
    said: str
    mend: str = ""


def add_commands(commands: Any) -> None:
    """Adds `doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, the pair and the cell; says how to mend what is wrong",
        description="Exit code 0: nothing is wrong; 1: something is. Changes nothing.",
    )
    parser.add_argument(
        "--target", metavar="PATH_OR_ID", help="target to be served (the shipped one)"
    )
    parser.add_argument("--drafter", metavar="PATH_OR_ID", help="drafter for it (the shipped one)")
    parser.add_argument("--revision", help="revision of both when they are hub ids")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="running Ray cluster that is to be joined"
    )
    parser.add_argument(
        "--http", default="127.0.0.1:8000", metavar="HOST:PORT", help="port to try (127.0.0.1:8000)"
    )
    add_endpoint(parser)
    parser.add_argument(
        "--acceptance",
        action="store_true",
        help="load the pair and see what is accepted on a few held prompts",
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
        print(
            json.dumps(
                {"ok": not failed, "failed": failed, "warned": warned, "findings": rows}, indent=2
            )
        )
    else:
        print(f"\n{failed} wrong, {warned} to look at, {len(findings) - failed - warned} fine")
    return 1 if failed else 0


def _guarded(args: argparse.Namespace) -> Iterator[Finding]:
    """Runs all checks; one that raises becomes a finding itself, and the others still run."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": versions,
        "device": device,
        "limits": limits,
        "state": state,
        "ports": lambda: http_port(args.http),
        "models": lambda: models(args.target, args.drafter, args.revision, try_it=args.acceptance),
        "ray": lambda: ray_access(args.address, os.environ),
        "cell": lambda: cell(lambda: open_client(args)),
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
            yield Finding(name, Level.WARN, said, extras.how_to_install(module))
        except Exception as error:
            if args.debug:
                raise
            said = f"could not be checked: {type(error).__name__}: {error}"
            yield Finding(name, Level.WARN, said, "run again with --debug, or report it")


def _print(finding: Finding) -> None:
    mark = MARKS[finding.level]
    if sys.stdout.isatty():
        mark = f"\033[{COLOURS[finding.level]}m{mark}\033[0m"
    print(f"{mark} {finding.what:<14} {finding.said}")
    if finding.mend:
        print(f"     {'':<14} mend: {finding.mend}")


def versions() -> Iterator[Finding]:
    """Checks Python, and the versions of all distributions in this one's metadata."""
    yield Finding("python", Level.OK, platform.python_version())
    missing: dict[str, list[str]] = {}
    good = 0
    for each in extras.wanted():
        if each.extra in ("dev", "all", "train", "web"):
            continue
        try:
            found = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            missing.setdefault(each.extra, []).append(each.name)
            continue
        if each.fits(found):
            good += 1
        else:
            mend = f"pip install '{each.name}{each.specifier}'"
            yield Finding(each.name, Level.FAIL, f"{found}, wanted {each.specifier}", mend)
    yield Finding("packages", Level.OK, f"{good} at versions that fit")
    for extra, names in missing.items():
        what, level = (f"extra {extra}", Level.WARN) if extra else ("packages", Level.FAIL)
        mend = (
            f"pip install '.[{extra}]' in the checkout"
            if extra
            else "pip install . in the checkout"
        )
        yield Finding(what, level, f"not installed: {', '.join(names)}", mend)


def device() -> Iterator[Finding]:
    """Checks whether torch sees the GPU of this machine."""
    try:
        import torch
    except ModuleNotFoundError:
        yield Finding(
            "device", Level.WARN, "torch is not installed", "pip install '.[serve]' in the checkout"
        )
        return
    there = Path("/proc/driver/nvidia/version").exists()
    if torch.cuda.is_available():
        names = ", ".join(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
        yield Finding("device", Level.OK, f"{names}; torch {torch.__version__}")
    elif there:
        built = (
            f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
        )
        mend = (
            "install a CUDA build of torch that fits the driver (`nvidia-smi` shows the "
            "driver's CUDA version)"
        )
        yield Finding(
            "device", Level.FAIL, f"a GPU is there; torch {torch.__version__} is {built}", mend
        )
    else:
        yield Finding(
            "device",
            Level.OK,
            f"CPU, {os.cpu_count()} cores; torch {torch.__version__}, no GPU here",
        )


def limits() -> Iterator[Finding]:
    """Checks the limits of open files and of shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        mend = (
            f"ulimit -n {LEAST_FILES}"
            if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES
            else (
                f"raise the hard limit of open files ({hard}) in /etc/security/limits.conf or the "
                "container's settings"
            )
        )
        yield Finding(
            "open files", Level.WARN, f"at most {soft}, one is needed per client stream", mend
        )
    else:
        yield Finding(
            "open files",
            Level.OK,
            "unlimited" if soft == resource.RLIM_INFINITY else f"at most {soft}",
        )
    if Path("/dev/shm").is_dir():
        free = shutil.disk_usage("/dev/shm").free
        if free < LEAST_SHARED_MEMORY:
            mend = "give the container --shm-size=256m; Ray is slow without it"
            yield Finding(
                "shared memory", Level.WARN, f"{free // 1_000_000} MB free in /dev/shm", mend
            )
        else:
            yield Finding("shared memory", Level.OK, f"{free // 1_000_000} MB free in /dev/shm")


def http_port(endpoint: str) -> Iterator[Finding]:
    """Checks whether the port is free now; no finding if the cell of this state folder has an HTTP
    port."""
    from dspark.client import NoCell, find_cell
    from dspark.runtime.security import check_listeners

    with contextlib.suppress(NoCell):
        if find_cell().http:
            return
    try:
        check_listeners([("http", endpoint)])
    except DsparkError as error:
        yield Finding(
            "port http", Level.WARN, str(error), "choose another one, or end who holds it"
        )
    else:
        yield Finding("port http", Level.OK, f"{endpoint} is free")


def models(
    target: str | None, drafter: str | None, revision: str | None, *, try_it: bool = False
) -> Iterator[Finding]:
    """Checks whether target and drafter (by default the shipped pair) exist, can be read and fit
    each other: sizes, taps, vocabulary, tokenizer.

    `try_it` measures acceptance on a few held-out prompts, too, which loads the weights of both.
    """
    from dspark.model.config_file import read_drafter_config
    from dspark.model.location import locate
    from dspark.model.pairing import TOKENIZER_NAME, mismatch, sizes_of
    from dspark.targets import folder_of, is_imported

    try:
        chosen = shipped.pair(target, drafter)
    except DsparkError as error:
        yield Finding("pair", Level.FAIL, str(error), "name both")
        return
    target, drafter = chosen["target"], chosen["drafter"] or "none"
    if not target:
        yield Finding("target", Level.FAIL, "a drafter alone is no pair", "say --target too")
        return
    try:
        if is_imported(target) and not folder_of(target).is_dir():
            yield Finding(
                "target", Level.OK, f"{target}: becomes a folder on first use, {folder_of(target)}"
            )
            return
        theirs = locate(target, revision=revision, weights=False)
        sizes = sizes_of(theirs)
    except DsparkError as error:
        yield Finding(
            "target",
            Level.FAIL,
            str(error),
            "name a folder with config.json and *.safetensors, or a hub id",
        )
        return
    text = (theirs / TOKENIZER_NAME).is_file()
    mend = (
        ""
        if text
        else f"put {TOKENIZER_NAME} beside the weights; until then clients send and get token ids "
        "only"
    )
    said = f"{target}: {sizes['layers']} layers, vocabulary {sizes['vocab_size']}"
    yield Finding(
        "target", Level.OK if text else Level.WARN, said + ("" if text else ", no tokenizer"), mend
    )
    if drafter == "none":
        yield Finding("drafter", Level.OK, "none: plain decoding")
        return
    try:
        mine = locate(drafter, revision=revision, weights=False)
        config = read_drafter_config(mine)
        problem = mismatch(config, mine, target=theirs, **sizes)
    except DsparkError as error:
        yield Finding(
            "drafter", Level.FAIL, str(error), "`dspark checkpoint check DRAFTER` says more"
        )
        return
    if problem is not None:
        mend = (
            "serve the drafter that was made for this target; docs/checkpoints.md lists the "
            "released pairs"
        )
        yield Finding("pair", Level.FAIL, problem, mend)
    else:
        said = f"{drafter}: {config.family}, blocks of {config.block_size}, made for this target"
        yield Finding("pair", Level.OK, said)
        if try_it:
            yield from _acceptance(target, drafter, revision)


def _acceptance(target: str, drafter: str, revision: str | None) -> Iterator[Finding]:
    """Measures whether the target accepts the drafter's tokens, which no config value shows."""
    from dspark.model.checkpoint import load_drafter, load_target
    from dspark.training.fitting import PROMPTS, fit, held_prompts

    loaded = load_target(target, revision=revision)
    found = fit(
        loaded,
        load_drafter(drafter, revision=revision, target=target),
        held_prompts(loaded, PROMPTS),
    )
    mend = ""
    if not found.fits:
        mend = (
            "taps are layer ids whose outputs are read, from 0; `dspark checkpoint check` says "
            "what the file names"
        )
    level = Level.OK if found.fits else Level.WARN if found.off_by is not None else Level.FAIL
    yield Finding("acceptance", level, f"{found}, at {found.places} places", mend)


def ray_access(address: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Checks whether the Ray cluster authenticates callers, and whether our token is private."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return  # `versions` reports it
    mode = environ.get("RAY_AUTH_MODE")
    token = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if token.is_file() and token.stat().st_mode & 0o077:
        yield Finding(
            "ray token", Level.FAIL, f"{token} can be read by others", f"chmod 600 {token}"
        )
    if address is None:
        said = (
            f"ray {version}; `dspark up` starts a cluster of its own on loopback, with a token "
            "of its own"
        )
        yield Finding("ray", Level.OK, said)
        return
    from deploy.ray_environment import ASK_TIMEOUT_S, is_guarded

    guarded = is_guarded(address)
    if guarded is None:
        mend = (
            "is the address the GCS port (6379), and is the cluster up? `ray status --address "
            "HOST:PORT`"
        )
        yield Finding(
            "ray",
            Level.FAIL,
            f"nothing that is a Ray cluster answered at {address} within {ASK_TIMEOUT_S:g} s",
            mend,
        )
    elif not guarded:
        mend = "start every node with RAY_AUTH_MODE=token and the same token; see docs/deploy.md"
        yield Finding("ray", Level.WARN, f"the cluster at {address} does not ask who calls", mend)
    elif mode == "disabled" or not (token.is_file() or environ.get("RAY_AUTH_TOKEN")):
        mend = (
            "put its token into ~/.ray/auth_token (mode 600) or RAY_AUTH_TOKEN, and set "
            "RAY_AUTH_MODE=token"
        )
        yield Finding(
            "ray",
            Level.FAIL,
            f"the cluster at {address} asks for a token, and none is set here",
            mend,
        )
    else:
        yield Finding(
            "ray",
            Level.OK,
            f"ray {version}; the cluster at {address} asks for a token, and one is set",
        )


def state() -> Iterator[Finding]:
    """Checks the state folder, and whether it still names a cluster that has ended."""
    from dspark.client.cell import cell_file, find_cell, is_alive
    from dspark.runtime.identity import state_dir

    folder = state_dir()
    if not os.access(folder, os.W_OK):
        yield Finding(
            "state",
            Level.FAIL,
            f"{folder} cannot be written",
            "set DSPARK_HOME to a folder of yours",
        )
        return
    if folder.stat().st_mode & 0o077:
        yield Finding(
            "state",
            Level.WARN,
            f"{folder} holds secrets and is open to others",
            f"chmod 700 {folder}",
        )
    if not cell_file().exists():
        yield Finding("state", Level.OK, f"{folder}: no cluster is up")
        return
    try:
        cell = find_cell()
    except DsparkError as error:
        yield Finding("state", Level.FAIL, str(error), "dspark down")
        return
    if cell.ray_pid and not is_alive(cell.ray_pid):
        yield Finding(
            "state", Level.FAIL, f"{folder} names a cluster that has ended", "dspark down"
        )
        return
    yield Finding("state", Level.OK, f"{folder}: a cluster at {cell.endpoint}")


def cell(connect: Callable[[], Client]) -> Iterator[Finding]:
    """Checks whether every process of a running cell serves. `connect` opens a client of it, or
    raises NoCell if none is up."""
    from dspark.client import NoCell

    try:
        with connect() as client:
            reply = client.status()
    except NoCell:
        return
    except DsparkError as error:
        yield Finding(
            "cell",
            Level.FAIL,
            str(error),
            "`dspark logs coordinator` says why; `dspark down` ends the rest",
        )
        return
    for process in reply.processes:
        if process.state != "serving":
            said = f"{process.name} is {process.condition}"
            yield Finding("cell", Level.WARN, said, f"dspark logs {process.name}")
    for lane in reply.lanes:
        if not lane.cost_curve_in_force:
            said = f"{lane.verifier} has no cost curve, so adaptive sequences verify everything"
            yield Finding("cell", Level.WARN, said, "start it with measure_cost on")
    yield Finding("cell", Level.OK, f"{len(reply.processes)} processes, {len(reply.lanes)} lanes")
