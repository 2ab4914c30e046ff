"""The `dspark` command: parses the command line, runs a command, returns its exit code.

Parsing imports nothing heavy; each command imports what it needs when it runs. `dspark generate`
works with grpcio and protobuf alone.

Exit codes: 0 done, 1 it failed (one sentence on stderr says why), 2 the command line is wrong, 130
interrupted.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence

import dspark
from dspark.cli import (
    bench,
    certificates,
    chat,
    checkpoint,
    conformance,
    discovery,
    doctor,
    generate,
    health,
    judging,
    lifecycle,
    logs,
    profile,
    serve,
    simulate,
    status,
    top,
    train,
)
from dspark.cli.extras import how_to_install
from dspark.cli.options import Parser, discard_stdout, written_out
from dspark.errors import DsparkError, WrongCommand

EPILOG = """exit codes: 0 done, 1 failed, 2 wrong command line, 130 interrupted.
Commands find the cluster through the state folder; DSPARK_HOME names another folder: one folder,
one cluster."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="dspark",
        description="DSpark speculative decoding served from two pools of gRPC services.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"dspark {dspark.__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help="print the version and end"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    for_cells = (lifecycle, status, top, logs, doctor, health, discovery, chat, generate, bench)
    others = (serve, profile, simulate, judging, checkpoint, certificates, conformance, train)
    for module in (*for_cells, *others):
        module.add_commands(commands)
    ray = commands.add_parser(
        "ray",
        help="run one of Ray's own commands against the cluster of this cell",
        description="dspark ray -- status; dspark ray -- list actors; dspark ray -- logs. Address "
        "and token are set. What asks Ray's dashboard needs a cell of `dspark up --dashboard`, "
        "or a cluster that has one.",
    )
    ray.set_defaults(run=_ray)
    return parser


def _ray(args: argparse.Namespace) -> int:
    from deploy.ray_environment import run

    return run(args.rest)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    # gRPC's remarks on closing connections are of no use to users
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # an answer may hold characters that the terminal's encoding lacks
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us: a socket would get its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the process's life
    code = _run(list(sys.argv[1:] if argv is None else argv))
    try:
        print(end="", flush=True)  # here, where it can be told what went wrong
    except BrokenPipeError:  # the reader of our output is gone: end without a message
        discard_stdout()
    except OSError as error:
        discard_stdout()
        print(f"dspark: stdout cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _run(words: list[str]) -> int:
    rest: list[str] = []
    if words[:1] == ["ray"] and words[1:2] not in (["-h"], ["--help"]):
        words, rest = words[:1], words[1:]  # not parsed here: the options are Ray's own
    args = argparse.Namespace(debug=False, rest=rest)
    try:
        build_parser().parse_args(words, args)
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except SystemExit as stop:  # argparse ends so, after its message
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("dspark: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0  # its reader had enough
    except Exception as error:
        if args.debug:
            raise
        print(f"dspark: {written_out(_sentence(error))}", file=sys.stderr)
        return 2 if isinstance(error, WrongCommand) else 1


def _sentence(error: Exception) -> str:
    """The message that users get for an error."""
    if isinstance(error, DsparkError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        module = error.name or str(error)
        return f"this command needs the module {module!r}; {how_to_install(module)}"
    if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
        return f"{error.filename or 'an output'}: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error}; --debug shows where"


if __name__ == "__main__":
    sys.exit(main())
