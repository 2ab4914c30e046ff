"""Row 26: checkpoints that are wrong in any way are refused at start, quickly, by the name of what is wrong.

Forty ways to be wrong, each a copy of a sound pair with one thing changed; then headers with random bytes changed,
which must be refused or be the same model. Loaded in this process, whose memory is watched.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.row import Row, note
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from dspark.errors import CheckpointError, ConfigError, DsparkError
from faults.bad_checkpoints import CONFIGS, HEADER, WEIGHTS, Spoil, raw
from faults.rows.program import arguments, most_resident_mb, quantile
from faults.simulated import DRAFTER, TARGET
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine

LIMIT_S = 5.0


def load(role: str, folder: Path) -> None:
    if role == "target":
        VerifyEngine.load(VerifyConfig(target=str(folder), measure_cost=False, kv_tokens=256))
    else:
        DraftEngine.load(DraftConfig(drafter=str(folder), measure_cost=False, context_tokens=256))


def attempt(role: str, source: Path, spoil: Spoil) -> tuple[str, float]:
    """("" when it was refused as it should, else what happened; seconds of processor)."""
    with tempfile.TemporaryDirectory(prefix="dspark-bad-") as name:
        folder = Path(name) / "model"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*cases*", "loss*"))
        spoil(folder)
        began = time.process_time()
        try:
            load(role, folder)
            problem = "it was loaded"
        except (CheckpointError, ConfigError) as error:
            problem = "" if str(folder) in str(error) or any(c.isalpha() for c in str(error)) else "it names nothing"
        except (DsparkError, Exception) as error:
            problem = f"{type(error).__name__}: {str(error)[:120]}"
        return problem, time.process_time() - began


def fuzz(role: str, source: Path, count: int) -> tuple[int, list[str], float]:
    """(refused, problems, slowest) of headers with random bytes changed."""
    draw = random.Random(f"fuzz/{role}")
    refused, problems, slowest = 0, [], 0.0
    (length,) = HEADER.unpack_from((source / "model.safetensors").read_bytes())

    def change(data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            made[draw.randrange(8 + length)] = draw.randrange(256)
        return bytes(made)

    for number in range(count):
        problem, seconds = attempt(role, source, raw(change))
        slowest = max(slowest, seconds)
        if not problem:
            refused += 1
        elif problem != "it was loaded":  # a byte of a space or of metadata may say the same as before
            problems.append(f"fuzz {number}: {problem}")
    return refused, problems, slowest


def main() -> int:
    args = arguments(__doc__)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    for role, source in (("target", TARGET), ("drafter", DRAFTER)):
        load(role, source)  # what loading takes anyway
    before = most_resident_mb()
    took: list[float] = []
    wrong: list[str] = []
    cases = 0
    for role, source in (("drafter", DRAFTER), ("target", TARGET)):
        for name, spoil in {**WEIGHTS, **CONFIGS}.items():
            problem, seconds = attempt(role, source, spoil)
            cases += 1
            took.append(seconds)
            if problem:
                wrong.append(f"{role}, {name}: {problem}")
                note(wrong[-1])
    tried = 250_000 if args.long else 60
    refused, problems, slowest = fuzz("drafter", DRAFTER, 2 * tried)
    value = {
        "cases": cases,
        "refused": cases - len(wrong),
        "wrong": wrong[:8],
        "slowest_s": round(max(took), 2),
        "median_s": round(quantile(took, 0.5), 3),
        "fuzzed": 2 * tried,
        "fuzzed_refused": refused,
        "fuzzed_problems": problems[:3],
        "slowest_fuzzed_s": round(slowest, 2),
        "resident_growth_mb": round(most_resident_mb() - before, 1),
    }
    holds = not wrong and not problems and max(took) <= LIMIT_S and slowest <= LIMIT_S
    bar = f"100 % refused, each with a name, in <= {LIMIT_S:g} s of processor"
    return Row("26", "bad checkpoints are refused at start", value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
