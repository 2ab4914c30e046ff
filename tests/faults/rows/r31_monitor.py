"""Row 31: the losslessness monitor over simulated drafts: draws until a lie is found, and whether
honesty ever is.

The real rule judges, the real watch and the real monitor look on; only target and drafter are
tables. Every lie touches about 0.3 % of the drafts unless it is said otherwise: `acceptance` lowers
the chance to be kept by 0.003, `slot` draws three tokens of a thousand from the slot before's
distribution, `swapped` all of them, `spread` moves three thousandths of the mass from the likelier
half of q to the other half, `unseen` does so among tokens that are kept in any case, so that
acceptance stays what it was; `warm` drafts at temperature 0.9 what it tells as 1, `coarse` draws
from bfloat16.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.row import note
from coordinator.lanes.monitor import FALSE_ALARM, Monitor
from dspark.decoding.acceptance import DrawsWatch, PackedCase, judge
from dspark.runtime.telemetry import Metrics
from dspark.types import Cursor, Rule, SamplingParams, SparseQ
from tests.faults.rows.program import Args, Rows, statement

VOCAB, ENTRIES, SLOTS, SEQUENCES, TABLES = 128, 32, 7, 64, 96
SHARE = 0.003
BAR = 1_000_000  # draws
Floats = npt.NDArray[np.float64]


class Tables:
    """Pairs (p, q) with an acceptance of about 0.8: logits [TABLES, V], ids and q [TABLES,
    ENTRIES], p of the ids."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(0.0, 2.0, (TABLES, VOCAB))
        p = np.exp(self.logits)
        p /= p.sum(axis=1, keepdims=True)
        guess = self.logits + rng.normal(0.0, 0.45, self.logits.shape)
        self.ids = np.argsort(-guess, axis=1)[:, :ENTRIES]
        q = np.exp(np.take_along_axis(guess, self.ids, axis=1))
        self.sent = (q / q.sum(axis=1, keepdims=True)).astype(np.float32)
        exact = self.sent.astype(np.float64)
        self.q: Floats = exact / exact.sum(axis=1, keepdims=True)
        self.kept: Floats = np.minimum(np.take_along_axis(p, self.ids, axis=1) / self.q, 1.0)

    @property
    def acceptance(self) -> float:
        return float((self.q * self.kept).sum(axis=1).mean())


def honest(of: Tables) -> Floats:
    """What tokens are drawn from: [TABLES, ENTRIES]."""
    return of.q


def acceptance(of: Tables) -> Floats:
    worst = np.eye(ENTRIES)[of.kept.argmin(axis=1)]
    mean = (of.q * of.kept).sum(axis=1, keepdims=True)
    share = SHARE / (mean - of.kept.min(axis=1, keepdims=True))
    return (1.0 - share) * of.q + share * worst


def slot(of: Tables) -> Floats:
    return (1.0 - SHARE) * of.q + SHARE * swapped(of)


def swapped(of: Tables) -> Floats:
    other = np.zeros_like(of.q)
    for row in range(TABLES):
        before = dict(zip(of.ids[row - 1].tolist(), of.q[row - 1].tolist(), strict=True))
        # others would be refused as malformed
        other[row] = [before.get(token, 0.0) for token in of.ids[row].tolist()]
    return other / other.sum(axis=1, keepdims=True)


def spread(of: Tables) -> Floats:
    return _moved(of.q, np.ones_like(of.q, np.bool_))


def unseen(of: Tables) -> Floats:
    return _moved(of.q, of.kept >= 1.0)


def _moved(q: Floats, among: Any) -> Floats:
    """SHARE of the mass from the likelier half of `among` to the other half, in proportion."""
    weights = np.where(among, q, 0.0)
    likelier = np.cumsum(weights, axis=1) <= weights.sum(axis=1, keepdims=True) / 2.0
    likelier[:, 0] = True
    up, down = np.where(among & ~likelier, q, 0.0), np.where(among & likelier, q, 0.0)
    scale = [part / np.maximum(part.sum(axis=1, keepdims=True), 1e-12) for part in (up, down)]
    share = np.minimum(SHARE, down.sum(axis=1, keepdims=True))
    share = np.where(up.sum(axis=1, keepdims=True) > 0, share, 0.0)
    return q + share * (scale[0] - scale[1])


def warm(of: Tables) -> Floats:
    """All drafts at temperature 0.9, told as 1."""
    cold = of.q ** (1 / 0.9)
    return cold / cold.sum(axis=1, keepdims=True)


def coarse(of: Tables) -> Floats:
    """All drafts from probabilities rounded to bfloat16."""
    rounded = torch.from_numpy(of.q).bfloat16().double().numpy()
    return rounded / rounded.sum(axis=1, keepdims=True)


def found_after(
    lie: Callable[[Tables], Floats], rule: Rule, most: int, seed: int
) -> tuple[int | None, float]:
    """(draws until the alarm, None without one; evidence at the end as a share of the alarm's)."""
    tables, rng = Tables(seed), np.random.default_rng(seed + 1000)
    ends = np.cumsum(lie(tables), axis=1)
    logits = torch.from_numpy(tables.logits)
    ids, sent = tables.ids.astype("<u4"), tables.sent.astype("<f4")
    metrics = Metrics()
    monitor, watch, params = Monitor(metrics), DrawsWatch(seed), SamplingParams(rule=rule)
    draws = number = 0
    while draws < most and monitor.trusts("d", params):
        chosen = rng.integers(TABLES, size=(SEQUENCES, SLOTS + 1))
        u = rng.random((SEQUENCES, SLOTS))
        place = np.minimum((ends[chosen[:, :SLOTS]] < u[..., None]).sum(axis=-1), ENTRIES - 1)
        tokens = np.take_along_axis(ids[chosen[:, :SLOTS]], place[..., None], axis=-1)[
            ..., 0
        ].tolist()
        cases = []
        for row in range(SEQUENCES):
            tables_of = chosen[row, :SLOTS]
            q = SparseQ(ENTRIES, ids[tables_of].tobytes(), sent[tables_of].tobytes())
            key = SamplingParams(rule=rule, seed=(seed << 40) + number)
            cases.append(PackedCase(Cursor(row, 0, 1, 9), key, row * (SLOTS + 1), tokens[row], q))
            number += 1
        judge(logits[torch.from_numpy(chosen.ravel())], cases, watch=watch)
        sums = watch.sums(dict.fromkeys(range(SEQUENCES), "d"))
        monitor.observe(sums)
        draws += sum(each.slots for each in sums)
    evidence = metrics.value("monitor_evidence", drafter="d")
    return (None if monitor.trusts("d", params) else draws), evidence


OPTIONS = {"runs": 5, "honest": 4_000_000}  # runs of each lie; draws of an honest drafter


def rows(args: Args) -> Rows:
    runs, draws = int(args.runs), int(args.honest)
    began, value, rules = time.monotonic(), {}, (Rule.BLOCK, Rule.TOKEN)
    note(f"acceptance {Tables(0).acceptance:.3f}")
    worst = 0
    for lie in (acceptance, swapped, warm, slot, spread, unseen, coarse):
        found = [found_after(lie, rules[run % 2], 2 * BAR, run)[0] for run in range(runs)]
        value[lie.__name__] = sorted(each if each is not None else -1 for each in found)
        note(f"{lie.__name__}: {value[lie.__name__]} draws ({time.monotonic() - began:.0f} s)")
        if lie in (acceptance, swapped, warm):
            worst = max([worst, *(each if each is not None else 10 * BAR for each in found)])
    alarm, evidence = found_after(honest, Rule.BLOCK, draws, 99)
    told = {
        "found_after": value,
        "honest_draws": draws,
        "honest_alarm": alarm,
        "honest_evidence": evidence,
    }
    bars = {
        f"0.3 % drift, swapped slots, another temperature found within {BAR:g} draws": worst <= BAR,
        f"false alarms <= {FALSE_ALARM:g}": alarm is None,
    }
    yield statement("31", "the monitor finds lies", told, bars)
