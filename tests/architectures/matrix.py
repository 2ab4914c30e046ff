"""Runs one family through the engine in every way that requests meet, and compares ids with the
library's `generate`.

    python -m tests.architectures.matrix          # all families; writes the result and its page
    python -m tests.architectures.matrix mistral  # one of them; prints it

A wrong id, an error and a backend other than the table's are all told by name.
"""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from dspark.errors import CheckpointError, ConfigError
from tests.architectures.families import FAMILIES, Family, model_of
from tests.architectures.serving import begin, finish, prompt
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine

ROOT = Path(__file__).resolve().parents[2]
SAVED = ROOT / "benchmarks" / "results" / "architectures.json"
PAGE = ROOT / "docs" / "architectures.md"
LENGTHS, ANSWER = (5, 40, 300), 24
RANKS = 2  # of targets over several devices, which are processes here
TAKEN_UP_AT = (3, 15)  # tokens of an answer after which it goes on in another place
CLEAR = 2e-4  # between the two largest logits; below it rounding may choose
FOUND = "in company, found in the prefix cache"
_SEEDS = 20


@dataclass(frozen=True)
class Row:
    """What became of one family."""

    config: str
    backend: str  # that served it, or "refused"
    why: str  # it is not paged
    answers: int
    wrong: list[str]  # way, prompt length and index of the first wrong token
    divided: str = ""  # why not over two devices


def run(family: Family, folder: Path) -> Row:
    """Raises nothing but a bug: a refusal is a row, any other error is one of the service."""
    model_of(family).save_pretrained(folder)
    row = compare(folder, family.config)
    if row.backend != "paged":
        return replace(row, divided="not paged")
    parts = compare(folder, family.config, ranks=RANKS)
    wrong = [f"over {RANKS} devices: {each}" for each in parts.wrong]
    return replace(
        row, answers=row.answers + parts.answers, wrong=row.wrong + wrong, divided=parts.why
    )


def compare(folder: Path, config: str, ranks: int = 1) -> Row:
    """Of a target that is there, over so many devices."""
    prompts, answers = _references(folder)
    try:
        engine = VerifyEngine.load(
            VerifyConfig(
                target=str(folder),
                dtype="float32",
                kv_tokens=4096,
                prefill_chunk=64,
                step_prefill_tokens=16,
                tensor_parallel_size=ranks,
            )
        )
    except (CheckpointError, ConfigError) as error:
        return Row(config, "refused", str(error).removeprefix(f"{folder}: "), 0, [])
    wrong = []
    ways = 0
    for way, starts in _ways():
        served = {}
        for key, (at, taken) in enumerate(starts):
            served[key] = [*prompts[at], *answers[at][:taken]]
            begin(engine, key, served[key], len(prompts[at]))
            if way == FOUND:
                held, full = engine.find(key, 1), _full_pages(len(prompts[at]), engine)
                found = held.spared if held is not None else None
                wrong += (
                    []
                    if found == full
                    else [f"{way}, prompt of {len(prompts[at])}, {found} tokens found"]
                )
        finish(engine, served, {key: answers[at][taken:] for key, (at, taken) in enumerate(starts)})
        for key, (at, _) in enumerate(starts):
            engine.release(key, 1)
            got = served[key][len(prompts[at]) :][:ANSWER]
            first = next(
                (n for n, (a, b) in enumerate(zip(got, answers[at], strict=True)) if a != b), None
            )
            wrong += (
                [] if first is None else [f"{way}, prompt of {len(prompts[at])}, token {first}"]
            )
            ways += 1
    engine.close()
    return Row(config, engine.attention_path, engine.attention_reason, ways, wrong)


def _full_pages(tokens: int, engine: VerifyEngine) -> int:
    """Tokens of a prompt that may be found: its last one is run whatever is kept."""
    size = engine.config.page_size
    return (tokens - 1) // size * size if engine.shares_prefixes else 0


def _ways() -> list[tuple[str, list[tuple[int, int]]]]:
    """(name, [(prompt, tokens of the answer that are there already)]) of what runs together."""
    every = list(range(len(LENGTHS)))
    return [
        *(("alone", [(at, 0)]) for at in every),
        ("in company", [(at, 0) for at in every]),
        (FOUND, [(at, 0) for at in every]),
        ("taken up elsewhere", [(at, taken) for at in every for taken in TAKEN_UP_AT]),
    ]


def _references(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and the library's greedy answers to each by a fresh model, without near ties."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    prompts, answers = [], []
    for length in LENGTHS:
        for seed in range(_SEEDS):
            ids, model = prompt(length, 100 * length + seed), load(folder, dtype=torch.float32)
            with torch.inference_mode():
                out = model.generate(
                    torch.tensor([ids]),
                    max_new_tokens=ANSWER,
                    do_sample=False,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
            top = torch.cat(out.logits).float().topk(2).values
            if float((top[:, 0] - top[:, 1]).min()) > CLEAR:
                break
        else:
            raise RuntimeError(
                f"{folder}: none of {_SEEDS} prompts of {length} tokens is answered without a near "
                "tie"
            )
        prompts.append(ids)
        answers.append(out.sequences[0, length:].tolist())
    return prompts, answers


def page(saved: dict[str, Any]) -> str:
    """The documentation of a saved result."""
    rows: dict[str, dict[str, Any]] = saved["families"]
    counts = {
        backend: sum(row["backend"] == backend for row in rows.values())
        for backend in ("paged", "stateful")
    }
    lines = [
        "# Which targets are served",
        "",
        "<!-- Made by `python -m tests.architectures.matrix` from "
        "benchmarks/results/architectures.json. -->",
        "",
        f"A tiny random model of each family, with transformers {saved['transformers']} and torch "
        f"{saved['torch']}.",
        "Its greedy answers are compared with the library's own `generate`, id by id: prompts of",
        f"{', '.join(map(str, LENGTHS))} tokens, alone and in company of the other lengths, with "
        "drafts of 0 to 14",
        "tokens of which 0 to 7 are right, found in the prefix cache, and taken up elsewhere in "
        "mid-answer as after",
        "a preemption.",
        "",
        "* `paged`: sequences share a pass over a pool of pages of keys and values; prefixes are "
        "shared.",
        "* `stateful`: each sequence keeps the library's own state, which is cut back after every "
        "draft; see",
        "  [checkpoints](checkpoints.md#targets).",
        "* refused: `dspark up` stops with that sentence.",
        "",
        f"Paged ones are run again over {RANKS} devices (`verify.tensor_parallel_size`, by the "
        "library's own plan),",
        "which are processes here; an empty last column: their answers are right, too.",
        "",
        f"{len(rows)} families: {counts['paged']} paged, {counts['stateful']} stateful, "
        f"{len(rows) - sum(counts.values())} refused; "
        f"{sum(len(row['wrong']) for row in rows.values())} wrong answers "
        f"of {sum(row['answers'] for row in rows.values())}.",
        "",
        "The same class with other settings may take another path. The log, `Describe` and `dspark "
        "status` say which",
        "one is at work.",
        "",
        "| family | backend | answers | wrong | why not paged | why not over devices |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows.values():
        why, divided = (row[key].replace("|", "\\|") for key in ("why", "divided"))
        lines.append(
            f"| `{row['config'].removesuffix('Config')}` | {row['backend']} | {row['answers']} | "
            f"{len(row['wrong'])} | {why} | {divided} |"
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = {}
    for name in names or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = asdict(run(FAMILIES[name], Path(folder)))
        print(json.dumps({name: rows[name]}), flush=True)
    if not names:
        saved = {
            "command": "python -m tests.architectures.matrix",
            "transformers": transformers.__version__,
            "torch": torch.__version__.partition("+")[0],
            "families": rows,
        }
        SAVED.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(saved), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
