"""`dspark train STAGE`: from prompts and a target to a drafter. Every stage can be run again: it
goes on where it was.

split        prompts -> train.jsonl, calibrate.jsonl, evaluate.jsonl
overlap      evaluation prompts that training text has seen, counted and left out
regenerate   the target's own answers, through a running cell
encode       conversations -> samples (token ids)
cache        the target's hidden states of all samples, on disk
drafter      training, by one worker or several
vocabulary   the tokens a smaller head needs
all          everything, for one target
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dspark.cli import train_all
from dspark.cli.options import (
    add_endpoint,
    add_keys,
    credentials,
    end_as_by_ctrl_c,
    folder,
    natural,
    positive,
    read_keys,
    say,
)


def add_commands(commands: Any) -> None:
    from dspark.training.settings import RegenerationSettings, Settings

    parser = commands.add_parser(
        "train",
        help="train a drafter for a target (dspark train --help lists its stages)",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    stages = parser.add_subparsers(required=True, metavar="STAGE")

    split = stages.add_parser("split", help="prompts to a training and a held-out part")
    add = split.add_argument
    add("prompts", type=Path, help="JSONL: conversations, messages, turns or prompt")
    add("--out", type=folder, required=True, help="where the three parts go")
    add("--held-out", type=float, default=0.05, help="share held out")
    add("--limit", type=natural, default=0, help="rows to keep, drawn with the seed; 0: all")
    add("--seed", type=int, default=42, help="key of the split")
    split.set_defaults(stage=_split)

    overlap = stages.add_parser("overlap", help="prompts that training text has seen")
    add = overlap.add_argument
    add("prompts", type=Path, nargs="+", help="JSONL of evaluation prompts")
    add("--training", type=Path, nargs="+", required=True, help="JSONL that is trained on")
    add("--out", type=folder, help="where clean prompts go, under their names")
    overlap.set_defaults(stage=_overlap)

    regenerate = stages.add_parser("regenerate", help="answers of the target, through a cell")
    add = regenerate.add_argument
    add("prompts", type=Path, help="rows of {id, conversations}")
    add("--target", required=True, help="the target that is served: its tokenizer")
    add("--out", type=Path, required=True, help="grows row by row")
    add_endpoint(regenerate)
    add_keys(regenerate, RegenerationSettings)
    regenerate.set_defaults(stage=_regenerate)

    encode = stages.add_parser("encode", help="conversations to samples")
    add = encode.add_argument
    add("rows", type=Path, help="what `regenerate` wrote")
    add("--target", required=True, help="whose tokenizer and template are used")
    add("--out", type=Path, required=True, help="the file of samples")
    add("--max-length", type=positive, default=4096, help="tokens of a conversation")
    add("--min-supervised", type=natural, default=14, help="fewer are dropped")
    encode.set_defaults(stage=_encode)

    cache = stages.add_parser("cache", help="the target's hidden states on disk")
    add = cache.add_argument
    add("samples", metavar="FILE", help="what `encode` wrote")
    add_keys(cache, Settings, only=("target", "family", "taps", "layers", "block_size", "device"))
    add("--out", type=folder, required=True, help="folder of the cache")
    add("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of the hidden states")
    add("--estimate", action="store_true", help="say how large it gets and stop")
    cache.set_defaults(stage=_cache)

    drafter = stages.add_parser("drafter", help="train a drafter, or go on training it")
    add = drafter.add_argument
    add("samples", metavar="FILE", help="what `encode` wrote")
    add_keys(drafter, Settings, leave_out=("samples",))
    add("--workers", type=positive, default=1, help="more than one: by Ray Train")
    add("--gpus", action="store_true", help="each worker of several reserves a GPU")
    add("--address", help="Ray cluster of the workers (one of its own)")
    drafter.set_defaults(stage=_drafter)

    vocabulary = stages.add_parser("vocabulary", help="the tokens the target writes most")
    add = vocabulary.add_argument
    add("samples", type=Path, help="what `encode` wrote")
    add("--tokens", type=positive, required=True, help="how many a head may keep")
    add("--out", type=Path, required=True, help="for `checkpoint convert`")
    vocabulary.set_defaults(stage=_vocabulary)

    train_all.add_stage(stages)
    for stage in stages.choices.values():
        stage.add_argument("--json", action="store_true", help="print one JSON object")


def _run(args: argparse.Namespace) -> int:
    """Runs a stage; its result goes to stdout, progress to stderr."""
    result: dict[str, Any] = args.stage(args)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {json.dumps(value) if isinstance(value, dict | list) else value}")
    return 0


def _split(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.split import split_prompts

    return split_prompts(
        args.prompts, args.out, held_out=args.held_out, seed=args.seed, limit=args.limit
    )


def _overlap(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.overlap import separate

    return separate(args.prompts, args.training, out=args.out)


def _regenerate(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.settings import RegenerationSettings

    asking = read_keys(args, RegenerationSettings, "regenerate")
    return train_all.ask(
        args.endpoint, args.target, asking, args.prompts, args.out, **credentials(args)
    )


def _encode(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.chat import Chat
    from dspark.training.samples import encode_rows

    bounds = {"max_length": args.max_length, "min_supervised": args.min_supervised}
    counts = encode_rows(args.rows, args.out, Chat(args.target), **bounds)
    return counts | {"file": str(args.out)}


def _cache(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.features import make_cache, plan_for
    from dspark.training.settings import Settings

    settings = read_keys(args, Settings, "train", out=str(args.out))
    plan = plan_for(settings, args.dtype)
    told = plan.to_json()
    size = {name: told[name] for name in ("num_samples", "num_tokens", "bytes_per_token", "bytes")}
    say(f"{plan.num_tokens:,} tokens of {plan.bytes_per_token:,} bytes: {plan.bytes / 1e9:.3f} GB")
    if not args.estimate:
        make_cache(settings, plan, args.out)
    return size | {"folder": str(args.out)}


def _vocabulary(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.samples import most_written

    return most_written(args.samples, args.tokens, args.out)


def _drafter(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.record import StepLog
    from dspark.training.settings import Settings
    from dspark.training.trainer import LOG, train_drafter

    settings = read_keys(args, Settings, "train")
    if args.workers > 1:
        from deploy.train_workers import train_with_workers

        end_as_by_ctrl_c()
        folder = train_with_workers(
            settings, workers=args.workers, gpus=args.gpus, address=args.address, say=say
        )
    else:
        folder = train_drafter(settings)
    return {"drafter": str(folder)} | StepLog(Path(settings.out) / LOG).last()
