"""The stages of `dspark train all` that need nothing but this room and a client."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from dspark.client import Client
from dspark.model.checkpoint import fingerprint
from dspark.model.location import locate
from dspark.training import calibrate as calibration
from dspark.training import evaluate as evaluation
from dspark.training.caching import make_cache, plan_for
from dspark.training.chat import Chat
from dspark.training.disk import write_whole
from dspark.training.encode import encode_rows
from dspark.training.row_file import read_rows
from dspark.training.settings import Settings
from dspark.training.split import conversation_of, split_prompts

SERVED_PROMPTS = 8


def name_of(target: str) -> str:
    """Names the content of a target."""
    return fingerprint(locate(target))


def split(prompts: Path, out: Path, share: float, seed: int, limit: int) -> dict[str, Any]:
    """Training prompts, and the held-out ones in two halves: one calibrates, the other judges."""
    found = split_prompts(prompts, out / "prompts", held_out=share, seed=seed, limit=limit)
    held = list(read_rows(Path(found["test_file"])))
    halves = {"calibrate": held[::2], "evaluate": held[1::2] or held}
    for name, rows in halves.items():
        path = out / "prompts" / f"{name}.jsonl"
        write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        found[f"{name}_file"] = str(path)
    return found


def encode(rows: Path, settings: Settings, min_supervised: int) -> dict[str, Any]:
    return encode_rows(rows, Path(settings.samples), Chat(settings.target), min_supervised=min_supervised)


def cache(settings: Settings) -> dict[str, Any]:
    """Written in the precision that training reads."""
    plan = plan_for(settings, "bfloat16" if settings.precision == "bf16" else "float32")
    make_cache(settings, plan, Path(settings.cache))
    return {"tokens": plan.tokens, "bytes": plan.bytes, "folder": settings.cache}


def calibrate(settings: Settings, drafter: Path, prompts: Path, out: Path) -> dict[str, Any]:
    """Writes calibration.json beside the drafter's weights."""
    return calibration.calibrate(
        locate(settings.target), drafter, [prompts], plots=out / "calibration", keep=out / "rounds"
    )


def evaluate(settings: Settings, drafter: Path, prompts: Path, out: Path, tokens: int) -> dict[str, Any]:
    return evaluation.evaluate(locate(settings.target), drafter, [prompts], new_tokens=tokens, out=out / "evaluation")


def measure_cell(client: Client, target: str, prompts: Path, tokens: int) -> dict[str, Any]:
    """Greedy answers to some prompts with the cell's policy and without drafting: ids must be the same."""
    chat, found = Chat(target), {}
    rows = [row for _, row in zip(range(SERVED_PROMPTS), read_rows(prompts), strict=False)]
    answers: dict[str, list[tuple[int, ...]]] = {}
    for policy in ("off", ""):
        start, made, rounds, kept = time.perf_counter(), 0, 0, list[tuple[int, ...]]()
        for row in rows:
            turns = conversation_of(_with_one_turn(row))
            assert not isinstance(turns, str)
            answer = client.complete(
                chat.prompt_ids(turns), max_tokens=tokens, temperature=0.0, policy=policy, timeout=600
            )
            kept.append(answer.token_ids)
            made += len(answer.token_ids)
            rounds += answer.end.speculation.rounds
        name = policy or "drafting"
        answers[name] = kept
        seconds = time.perf_counter() - start
        found[name] = {"tokens": made, "tokens_per_second": made / seconds, "tokens_per_round": made / max(1, rounds)}
    return {"same_ids": answers["off"] == answers["drafting"], "prompts": len(rows), **found}


def _with_one_turn(row: dict[str, Any]) -> dict[str, Any]:
    first = row["turns"][0]
    return {"token_ids": first} if isinstance(first, list) else {"turns": [first]}
