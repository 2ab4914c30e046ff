"""The tables of the results page, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from training.lab import results
from training.lab.plan import BLOCK, BLOCKS, DEPTHS, LAYERS, SEEDS, Run, dspark
from training.lab.results import Result, Results
from training.lab.statistics import Interval, differences, intervals

HOT, GREEDY = "T=1", "T=0"
NAMES = {
    dspark().kind: f"DSpark, {LAYERS} layers",
    Run("dflash").kind: f"DFlash, {LAYERS} layers",
    Run("eagle3", layers=1).kind: "Eagle3, 1 layer",
    dspark(layers=2).kind: "DSpark, 2 layers",
    Run("mtp", layers=1, block=1).kind: "MTP-1",
    Run("lm", layers=2).kind: "language model, 2 layers",
}
OURS = dspark().kind
RIVALS = (
    (OURS, Run("dflash").kind),
    (OURS, Run("eagle3", layers=1).kind),
    (dspark(layers=2).kind, Run("dflash").kind),
    (dspark(layers=2).kind, Run("eagle3", layers=1).kind),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))


def cell(value: Interval) -> str:
    return f"{value.middle:.2f} ({value.low:.2f}-{value.high:.2f})"


def signed(value: Interval) -> str:
    return f"{value.middle:+.2f} ({value.low:+.2f} to {value.high:+.2f})"


def families(found: Results, temperature: str) -> str:
    rows, domains = [], list[str]()
    for kind, name in NAMES.items():
        if kind in found:
            measured = intervals(results.of_seeds(found[kind], temperature))
            domains = list(measured)
            rows.append([name, str(len(found[kind])), *map(cell, measured.values())])
    return table(["drafter", "seeds", *domains], rows)


def comparisons(found: Results, temperature: str) -> str:
    """Differences of tau on the same prompts and seeds, and whether the two means' own intervals are apart."""
    rows, domains = [], list[str]()
    for ours, theirs in RIVALS:
        if ours in found and theirs in found:
            a, b = (results.of_seeds(found[kind], temperature) for kind in (ours, theirs))
            seeds = min(len(a), len(b))
            a, b = a[:seeds], b[:seeds]
            gaps = differences(a, b)
            domains = list(gaps)
            apart = intervals(a)["mean"].apart_from(intervals(b)["mean"])
            rows.append([f"{NAMES[ours]} less {NAMES[theirs]}", *map(signed, gaps.values()), "yes" if apart else "no"])
    return table(["tau of", *domains, "own intervals apart"], rows)


def slots(found: Results, temperature: str, domain: str) -> str:
    rows = []
    for kind, name in NAMES.items():
        if kind in found:
            shares = results.acceptance(found[kind], temperature, domain)
            rows.append([name, *(f"{share:.2f}" for share in shares), *[""] * (BLOCK - len(shares))])
    return table(["drafter", *(f"slot {k}" for k in range(1, BLOCK + 1))], rows)


def first(found: Results, run: Run) -> Result | None:
    """The run of the ablations' seed."""
    same = [result for result in found.get(run.kind, ()) if result["run"]["seed"] == SEEDS[0]]
    return same[0] if same else None


def mean_tau(result: Result | None, temperature: str = HOT) -> str:
    return "" if result is None else cell(intervals([results.counts(result, temperature)])["mean"])


def depths(found: Results) -> str:
    rows = [
        [str(n), mean_tau(first(found, dspark(layers=n))), mean_tau(first(found, Run("dflash", layers=n)))]
        for n in DEPTHS
    ]
    return table(["layers", "DSpark", "DFlash"], rows)


def blocks(found: Results) -> str:
    rows = [
        [str(n), mean_tau(first(found, dspark(block=n))), mean_tau(first(found, Run("dflash", block=n)))]
        for n in BLOCKS
    ]
    return table(["block", "DSpark", "DFlash"], rows)


def heads(found: Results) -> str:
    names = {"none": "none (Markov off)", "vanilla": "vanilla", "gated": "gated", "rnn": "rnn"}
    rows = []
    for head, name in names.items():
        result = first(found, dspark(head=head))
        if result is not None:
            rows.append([name, mean_tau(result), mean_tau(result, GREEDY), f"{result['parameters']:,}"])
    return table(["sequential head", HOT, GREEDY, "trained parameters"], rows)


def training(found: Results) -> str:
    """Where the curves ended: what the last tenth of the steps still gained, and what twice the steps do."""
    rows = []
    for kind, name in NAMES.items():
        if kind not in found:
            continue
        result = found[kind][0]
        curve = result["curve"]
        run = Run(**result["run"])
        longer = first(found, Run(**{**result["run"], "seed": SEEDS[0], "stretch": 2}))
        rows.append(
            [
                name,
                f"{result['parameters']:,}",
                f"{curve[-1]['step']:,}",
                f"{sum(r['seconds'] for r in found[kind]) / len(found[kind]):.0f}",
                f"{curve[-1]['held_out_tau']:.3f}",
                f"{curve[-1]['held_out_tau'] - curve[-1 - max(1, len(curve) // 10)]['held_out_tau']:+.3f}",
                mean_tau(first(found, run)),
                mean_tau(longer),
            ]
        )
    return table(
        [
            "drafter",
            "trained parameters",
            "steps",
            "seconds",
            "held-out tau",
            "gained in the last tenth",
            "tau, T=1, seed 0",
            "twice the steps",
        ],
        rows,
    )


def speed(milliseconds: Mapping[str, Mapping[str, float]]) -> str:
    """Milliseconds of a block by kind, one sequence and sixteen."""
    rows = [
        [NAMES.get(kind, f"`{kind}`"), *(f"{ms:.2f}" for ms in times.values())] for kind, times in milliseconds.items()
    ]
    return table(["drafter", "1 sequence", "16 sequences"], rows)
