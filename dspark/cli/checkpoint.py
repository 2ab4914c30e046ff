"""`dspark checkpoint check|convert|share|import`: inspects a drafter's folder, writes the drafter
in the other format or without the target's tables, and reads a target from a GGUF file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dspark.cli.options import end_as_by_ctrl_c, folder

NOTE = """check loads every tensor and says what it is; convert writes the speculators format; share
leaves out what is a copy of the target's; import makes a folder of a GGUF target."""


def add_commands(commands: Any) -> None:
    group = commands.add_parser(
        "checkpoint", help="check, convert or import checkpoints", description=NOTE
    )
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="load a drafter of any family and format")
    add = check.add_argument
    add("drafter", help="DeepSpec or speculators format, or a language model")
    add("--revision", help="of a hub id")
    add("--target", help="also say whether it was made for this target")
    add("--json", action="store_true", help="one JSON object instead of lines")
    check.set_defaults(run=_check)
    where = "folder to write, which must not be there yet"
    convert = actions.add_parser("convert", help="write a drafter in the speculators format")
    add = convert.add_argument
    made_of = "DSpark, DFlash or Eagle3, Qwen3 layers, tables of its own"
    add("drafter", metavar="PATH", type=Path, help=made_of)
    add("out", type=folder, help=where)
    add("--verifier", help="name of the target, for the file")
    add("--share-tables", action="store_true", help="leave out what is a copy of the target's")
    add("--keep-tokens", type=Path, help="JSON list of the ids the head may draft")
    convert.set_defaults(run=_convert)
    share = actions.add_parser("share", help="leave out a drafter's copies of the target's tables")
    add = share.add_argument
    add("drafter", metavar="PATH", type=Path, help="of any family but a language model")
    add("out", type=folder, help=where)
    add("--target", required=True, help="whose tables the drafter has")
    add("--dtype", choices=["float32", "bfloat16", "float16"], help="round to it (as it is stored)")
    share.set_defaults(run=_share)
    taken = actions.add_parser("import", help="write a GGUF target as an ordinary model folder")
    add = taken.add_argument
    made_of = "a .gguf file, a known name (smollm2), or its wheel"
    add("source", metavar="FILE_OR_NAME", help=made_of)
    add("out", type=folder, help=where)
    add("--json", action="store_true", help="one JSON object, of a failure too")
    taken.set_defaults(run=_import)


def _check(args: argparse.Namespace) -> int:
    from dspark.model.formats.report import report

    said = report(args.drafter, revision=args.revision, target=args.target)
    if args.json:
        print(json.dumps(said))
    else:
        for key, value in said.items():
            print(f"{key.replace('_', ' '):<24}{value}")
    return 0


def _convert(args: argparse.Namespace) -> int:
    from dspark.model.formats.convert import to_speculators
    from dspark.model.formats.vocabulary import read_ids
    from dspark.model.weights_file import new_folder

    keep = None if args.keep_tokens is None else read_ids(args.keep_tokens)
    end_as_by_ctrl_c()
    with new_folder(args.out) as out:
        to_speculators(
            args.drafter,
            out,
            verifier=args.verifier,
            share_tables=args.share_tables,
            keep_tokens=keep,
        )
    print(args.out)
    return 0


def _share(args: argparse.Namespace) -> int:
    import torch

    from dspark.model.formats.convert import without_tables
    from dspark.model.weights_file import new_folder

    dtype = None if args.dtype is None else getattr(torch, args.dtype)
    end_as_by_ctrl_c()
    with new_folder(args.out) as out:
        without_tables(args.drafter, out, target=args.target, dtype=dtype)
    print(args.out)
    return 0


def _import(args: argparse.Namespace) -> int:
    from dspark.errors import DsparkError
    from dspark.gguf.wheel import import_target

    end_as_by_ctrl_c()
    try:
        import_target(args.source, args.out)
    except DsparkError as error:
        if not args.json:
            raise
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps({"folder": str(args.out)}) if args.json else args.out)
    return 0
