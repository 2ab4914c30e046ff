"""`dspark train all`: makes a drafter and a report from a target's folder and a file of prompts.

Stages run in order and are recorded in `chain.json`; a chain that was stopped goes on with its
unfinished stage, which resumes if it can. Answers come from the cell at `--endpoint`, or from
processes of the chain's own that end with the stage.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark.cli.options import add_endpoint, add_keys, credentials, natural, positive, read_keys


def add_stage(stages: Any) -> None:
    from dspark.training.settings import RegenerationSettings, Settings

    parser = stages.add_parser("all", help="everything: target and prompts to drafter and report")
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help="JSONL, as `split` reads it")
    add("--target", required=True, help="folder or hub id of the target")
    add("--out", required=True, metavar="DIR", help="where everything goes")
    add_keys(parser, Settings, leave_out=("target", "out", "samples", "cache", "start"))
    add("--cache", action="store_true", help="keep the target's hidden states on disk")
    add("--limit", type=natural, default=0, help="prompts that are used; 0: all")
    add("--held-out-share", type=float, default=0.1, help="prompts held out")
    add("--min-supervised", type=natural, default=14, help="shorter answers are dropped")
    add_endpoint(parser, "a cell that serves the target (one of its own)")
    add("--answer-tokens", type=positive, default=128, help="longest answer in evaluation")
    add_keys(parser, RegenerationSettings, prefix="ask_", leave_out=("seed",))
    parser.set_defaults(stage=_all)


def _all(args: argparse.Namespace) -> dict[str, Any]:
    from dspark.training.chain_stages import Chain
    from dspark.training.disk import only_writer

    out, (settings, asking) = Path(args.out), _read(args)
    identity = _identity(args, settings, asking)
    with only_writer(out):
        return _run(args, settings, asking, Chain(out, identity))


def _read(args: argparse.Namespace) -> tuple[Any, Any]:
    """The settings of training and of asking for answers."""
    from dspark.training.settings import RegenerationSettings, Settings

    out = Path(args.out)
    places = {
        "samples": str(out / "samples.safetensors"),
        "out": str(out / "train"),
        "cache": str(out / "cache") if args.cache else "",
    }
    asking = read_keys(args, RegenerationSettings, "ask", prefix="ask_", seed=args.seed)
    return read_keys(args, Settings, "train", **places), asking


def _run(args: argparse.Namespace, settings: Any, asking: Any, chain: Any) -> dict[str, Any]:
    from dspark.model.location import locate
    from dspark.training import chain_stages as stages
    from dspark.training.calibrate import calibrate
    from dspark.training.chat import Chat
    from dspark.training.evaluate import evaluate
    from dspark.training.metrics import plain
    from dspark.training.samples import encode_rows

    out, target, samples = chain.out, settings.target, Path(settings.samples)
    chain.do(
        "split",
        lambda: stages.split(
            args.prompts,
            out,
            settings,
            share=args.held_out_share,
            limit=args.limit,
            answer=args.answer_tokens,
        ),
    )
    # where they are now: the chain may have been begun in another folder
    learned, fitted, held_out = (
        out / "prompts" / f"{part}.jsonl" for part in ("train", "calibrate", "evaluate")
    )
    rows = out / "regenerated.jsonl"
    chain.do("regenerate", lambda: _regenerate(args, settings, asking, learned, rows))
    chain.do(
        "encode",
        lambda: encode_rows(rows, samples, Chat(target), min_supervised=args.min_supervised),
    )
    if settings.cache:
        chain.do("cache", lambda: stages.cache(settings))
    chain.do("train", lambda: stages.train(settings))
    drafter = out / "train" / "drafter"
    plots, keep = out / "calibration", out / "answers"
    chain.do(
        "calibrate",
        lambda: calibrate(locate(target), drafter, [fitted], plots=plots, keep=keep),
    )
    tokens, told = args.answer_tokens, out / "evaluation"
    chain.do(
        "evaluate",
        lambda: evaluate(locate(target), drafter, [held_out], new_tokens=tokens, out=told),
    )
    chain.do("serve", lambda: _serve(target, drafter, held_out, out, tokens))
    report = stages.write_report(out, {**chain.notes, "settings": asdict(settings)})
    done = plain(chain.notes["stages"])
    return {"drafter": str(drafter), "report": str(report), "stages": done}


def _identity(args: argparse.Namespace, settings: Any, asking: Any) -> dict[str, Any]:
    """Everything the results depend on, by the names of the options."""
    from dspark.model.checkpoint import fingerprint
    from dspark.model.location import locate
    from dspark.training.disk import content_digest
    from dspark.training.settings import settled

    return {
        "target": fingerprint(locate(settings.target)),
        "prompts": content_digest(args.prompts),
        **settled(settings),
        "keep_tokens": content_digest(Path(settings.keep_tokens)) if settings.keep_tokens else None,
        "cache": bool(settings.cache),
        **{f"ask_{name}": value for name, value in settled(asking).items() if name != "seed"},
        **{
            name: getattr(args, name)
            for name in ("limit", "held_out_share", "min_supervised", "answer_tokens")
        },
    }


def _regenerate(
    args: argparse.Namespace, settings: Any, asking: Any, prompts: Path, rows: Path
) -> dict[str, Any]:
    if args.endpoint:
        return ask(args.endpoint, settings.target, asking, prompts, rows, **credentials(args))
    from deploy.processes import ProcessCell

    with ProcessCell(settings.target, "", drafters=0, folder=rows.parent / "logs") as cell:
        # plain decoding: there is no drafter yet
        return ask(cell.endpoint, settings.target, asking, prompts, rows)


def ask(
    endpoint: str | None, target: str, asking: Any, prompts: Path, rows: Path, **credentials: Any
) -> dict[str, Any]:
    """Regenerates the answers of all rows of `prompts` through a cell."""
    from dspark.client import AsyncClient
    from dspark.training.chat import Chat
    from dspark.training.regenerate import regenerate

    async def run() -> dict[str, Any]:
        async with AsyncClient(endpoint, **credentials) as client:
            return await regenerate(client, prompts, rows, Chat(target), asking)

    return asyncio.run(run())


def _serve(target: str, drafter: Path, prompts: Path, out: Path, tokens: int) -> dict[str, Any]:
    """Measures a cell with the new pair on held-out prompts, with its drafter and without."""
    from deploy.processes import ProcessCell
    from dspark.training.chain_stages import measure_cell

    with ProcessCell(target, drafter, folder=out / "logs") as cell, cell.client() as client:
        return measure_cell(client, target, prompts, tokens)
