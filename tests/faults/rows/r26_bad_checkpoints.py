"""Row 26: checkpoints that are wrong in any way are refused at start, quickly, by the name of what
is wrong.

Forty ways to be wrong, each a copy of a sound pair with one thing changed, and what the refusal has
to say; then headers with random bytes changed, which must be refused or be the same model. The pair
is the demo's, whose files are large enough for memory to show; each copy is made in a child of this
process and loaded in another, whose memory is watched.
"""

import contextlib
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.row import note
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from dspark.errors import CheckpointError, ConfigError, DsparkError
from tests.faults import pair
from tests.faults.bad_checkpoints import CONFIGS, DRAFTER, HEADER, TARGET, WEIGHTS, Case, raw
from tests.faults.forked import forked
from tests.faults.rows.program import Args, Rows, quantile, statement
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine

LIMIT_S, PATIENCE_S = 5.0, 60.0
MEMORY, ANYWAY_MB = 1.1, 1.0  # of the folder's bytes; and what a load takes that reads nothing


def load(role: str, folder: Path) -> None:
    if role == "target":
        VerifyEngine.load(VerifyConfig(target=str(folder), measure_cost=False, kv_tokens=256))
    else:
        DraftEngine.load(DraftConfig(drafter=str(folder), measure_cost=False, context_tokens=256))


@dataclass(slots=True)
class Attempt:
    """problem: "" when it was refused as it should, else what happened. seconds: of processor.
    grown_mb: what the load took of memory at most; folder_mb: bytes of its files."""

    problem: str
    seconds: float
    grown_mb: float = 0.0
    folder_mb: float = 0.0

    @property
    def too_much(self) -> bool:
        return self.grown_mb > MEMORY * self.folder_mb + ANYWAY_MB


@contextlib.contextmanager
def copied(source: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dspark-bad-") as name:
        folder = Path(name) / "model"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*cases*", "loss*", "*.png"))
        yield folder


def attempt(role: str, source: Path, case: Case) -> Attempt:
    spoil, names = case
    with copied(source) as folder:
        forked(lambda: spoil(folder) and None, PATIENCE_S)
        try:
            made, grown_mb = forked(lambda: refusal(role, folder, names), PATIENCE_S)
        except RuntimeError as error:  # it died, or it hangs
            made, grown_mb = Attempt(str(error), PATIENCE_S), 0.0
        size = sum(file.stat().st_size for file in folder.parent.rglob("*") if file.is_file())
        return replace(made, grown_mb=grown_mb, folder_mb=size / 1e6)


def refusal(role: str, folder: Path, names: str) -> Attempt:
    """names: a pattern of what the message has to say, beside the folder."""
    began = time.process_time()
    try:
        load(role, folder)
        problem = "it was loaded"
    except (CheckpointError, ConfigError) as error:
        said = str(error).replace(str(folder), "", 1)
        named = said != str(error) and re.search(names, said)
        problem = "" if named else f"it names something else: {said[:120]}"
    except (DsparkError, Exception) as error:
        problem = f"{type(error).__name__}: {str(error)[:120]}"
    return Attempt(problem, time.process_time() - began)


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
        with copied(source) as folder:
            raw(change)(folder)
            tried = refusal(role, folder, names="")
        slowest = max(slowest, tried.seconds)
        if not tried.problem:
            refused += 1
        elif tried.problem != "it was loaded":
            # a byte of a space or of metadata may say the same as before
            problems.append(f"fuzz {number}: {tried.problem}")
    return refused, problems, slowest


def rows(args: Args) -> Rows:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    for role, source in (("target", TARGET), ("drafter", DRAFTER)):
        load(role, source)  # what loading takes anyway
    tried: dict[str, Attempt] = {}
    for role, source in (("drafter", pair.DRAFTER), ("target", pair.TARGET)):
        for name, case in {**WEIGHTS, **CONFIGS}.items():
            tried[f"{role}, {name}"] = made = attempt(role, source, case)
            if made.problem or made.too_much:
                note(f"{role}, {name}: {made}")
    wrong = [f"{name}: {made.problem}" for name, made in tried.items() if made.problem]
    greedy = {name: round(made.grown_mb) for name, made in tried.items() if made.too_much}
    seconds = [made.seconds for made in tried.values()]
    dearest = max(tried, key=lambda name: tried[name].grown_mb - MEMORY * tried[name].folder_mb)
    count = 500_000 if args.long else 120
    refused, problems, slowest = fuzz("drafter", DRAFTER, count)
    value = {
        "cases": len(tried),
        "refused": len(tried) - len(wrong),
        "wrong": wrong[:8],
        "slowest_s": round(max(seconds), 2),
        "median_s": round(quantile(seconds, 0.5), 3),
        "too_much_memory": greedy,
        "dearest": {
            "case": dearest,
            "grown_mb": round(tried[dearest].grown_mb, 1),
            "folder_mb": round(tried[dearest].folder_mb, 1),
        },
        "fuzzed": count,
        "fuzzed_refused": refused,
        "fuzzed_problems": problems[:3],
        "slowest_fuzzed_s": round(slowest, 2),
    }
    bars = {
        "100 % refused, each with a name": not wrong and not problems,
        f"in <= {LIMIT_S:g} s of processor": max(*seconds, slowest) <= LIMIT_S,
        f"<= {MEMORY:g} x the folder's bytes (+ {ANYWAY_MB:g} MB)": not greedy,
    }
    yield statement("26", "bad checkpoints are refused at start", value, bars)
