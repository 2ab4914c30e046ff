"""Row 27: a tenant cannot tell whether another tenant has asked a question before.

For every secret prompt, one tenant asks it first or does not, by a coin; then another tenant asks
it and measures the time to its first token. How well that time tells the two apart is the area
under the curve: one half is nothing. The same tenant's own second question, which the cache does
spare, shows that the measurement would see a difference. A cache salt and a request id that spell
the first tenant's names are tried as well.
"""

import math
import random
import time
from collections.abc import Sequence
from statistics import median

from scipy.stats import mannwhitneyu

from benchmarks.row import note
from dspark.client import Client
from dspark.client.events import Finished
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.secured_cell import TENANTS, SecuredCell

PROMPT = 240  # tokens: fifteen pages
PAIRS, LONG_PAIRS = 300, 3000
OWN = 100  # questions that are asked twice by their own tenant
MOST_AUC = 0.52


def rows(args: Args) -> Rows:
    pairs = LONG_PAIRS if args.long else PAIRS
    value = _probe(pairs)
    # Of so few pairs chance alone moves the area by this much, at three standard deviations.
    chance = 3 * math.sqrt((2 * pairs + 1) / (12 * pairs * pairs))
    bar = MOST_AUC if args.long else round(0.5 + chance, 3)
    bars = {
        f"AUC <= {bar} over {pairs} pairs, where one's own is above 0.9": value["auc"] <= bar
        and value["own_auc"] > 0.9,
        "0 cached tokens": not value["cached_tokens"] and not value["forged_hits"],
    }
    name = "what one tenant asked shows in no other tenant's times"
    yield statement("27", name, value, bars)


def _probe(pairs: int) -> dict[str, float]:
    draw = random.Random(27)
    with SecuredCell(coordinator={"policy": "off"}) as cell:
        first, second = (
            Client(
                cell.endpoint, token=cell.tenants[name], tls=cell.authority.tls(f"client-{name}")
            )
            for name in TENANTS
        )
        with first, second:
            asked, fresh, cached = list[float](), list[float](), 0
            for number in range(2 * pairs):
                prompt = [draw.randrange(16, 128) for _ in range(PROMPT)]
                before = draw.random() < 0.5
                _ask(first, prompt if before else [draw.randrange(16, 128) for _ in range(PROMPT)])
                took, spared = _ask(second, prompt)
                (asked if before else fresh).append(took)
                cached += spared
                if number % 500 == 499:
                    note(f"{number + 1} questions")
            again, once = [], []
            for _ in range(OWN):
                prompt = [draw.randrange(16, 128) for _ in range(PROMPT)]
                once.append(_ask(first, prompt)[0])
                again.append(_ask(first, prompt)[0])
            forged = _forge(first, second, draw)
    return {
        "auc": round(_auc(asked, fresh), 4),
        "cached_tokens": cached,
        "forged_hits": forged,
        "own_auc": round(_auc(again, once), 4),
        "own_spared_ms": round(1e3 * (median(once) - median(again)), 2),
        "pairs": min(len(asked), len(fresh)),
    }


def _forge(first: Client, second: Client, draw: random.Random) -> int:
    """Cached tokens that names of the first tenant's spelling give the second one."""
    hits = 0
    for salt in ("", "mine", f"{TENANTS[0]}/", f"/{TENANTS[0]}/mine", f"{TENANTS[0]}/mine"):
        prompt = [draw.randrange(16, 128) for _ in range(PROMPT)]
        _ask(first, prompt, salt="mine")
        hits += _ask(second, prompt, salt=salt)[1]
    return hits


def _ask(client: Client, prompt: Sequence[int], salt: str = "") -> tuple[float, int]:
    """(seconds to the first token, prompt tokens the cache spared)."""
    began = time.perf_counter()
    first, spared = 0.0, 0
    with client.generate(
        prompt, max_tokens=1, ignore_eos=True, temperature=0.0, cache_salt=salt, timeout=30
    ) as stream:
        for event in stream:
            first = first or time.perf_counter() - began
            if isinstance(event, Finished):
                spared = event.usage.cached_tokens
    return first, spared


def _auc(low: Sequence[float], high: Sequence[float]) -> float:
    """Chance that one of `low` is below one of `high`, or above it if that is likelier."""
    area = float(mannwhitneyu(high, low).statistic) / (len(low) * len(high))
    return max(area, 1 - area)
