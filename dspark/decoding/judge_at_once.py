"""Judges a packed pass on the device that ran it, with one synchronisation: inputs are copied
there, decisions come back in one copy.

With a watch the target's probabilities of q's entries come back too. Symbols: `at_once`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding import at_once
from dspark.decoding.at_once import Decision, PaddedCases
from dspark.decoding.block_rule import note_blocks
from dspark.decoding.draws import DrawsWatch
from dspark.decoding.gumbel import exponentials
from dspark.decoding.moving import fetched_together, sent
from dspark.decoding.philox import Purpose
from dspark.decoding.ratio import coins, slots_of
from dspark.decoding.sampling import SamplingColumns
from dspark.decoding.slots import Floats, PackedCase
from dspark.decoding.token_rule import note_tokens
from dspark.types import Rule

ROWS = 1024  # judged at a time: each takes several float64 numbers per token of the vocabulary
Verdicts = list[tuple[int, int]]  # (accepted, next token)


def judge_at_once(
    logits: Tensor,
    cases: Sequence[PackedCase],
    near_ties: Counter[int] | None = None,
    watch: DrawsWatch | None = None,
) -> Verdicts:
    """`acceptance.judge` for shaped logits [T, V]."""
    verdicts: Verdicts = [(0, 0)] * len(cases)
    kinds: dict[str, list[int]] = {"greedy": [], "ratio": [], "coupled": []}
    for index, case in enumerate(cases):
        kinds[
            "greedy"
            if case.params.greedy
            else "coupled"
            if case.params.rule is Rule.COUPLED
            else "ratio"
        ].append(index)
    chosen = [(kind, piece) for kind, all_of in kinds.items() for piece in _pieces(all_of, cases)]
    decisions = []
    for kind, places in chosen:
        piece = [cases[index] for index in places]
        at = given(piece, logits.device, draws=kind == "ratio")
        if kind == "greedy":
            decisions.append(at_once.greedy(logits, at))
            continue
        each = [case.params for case in piece for _ in range(at.rows.shape[1])]
        columns = SamplingColumns.of(each, logits.device)
        if kind == "ratio":
            decisions.append(at_once.ratio(logits, at, columns))
            continue
        noise = exponentials(
            each, _positions(piece, at.rows.shape[1]), logits.shape[-1], logits.device
        )
        decisions.append(at_once.coupled(logits, at, columns, noise))
    for (kind, places), (made, ties, p) in zip(
        chosen, _back(decisions, watched=watch is not None), strict=True
    ):
        for index, verdict, tied in zip(places, made, ties, strict=True):
            verdicts[index] = verdict
            if tied and near_ties is not None:
                near_ties[cases[index].cursor.sequence] += tied
        if watch is not None and kind == "ratio":
            _note(watch, [cases[index] for index in places], made, p)
    return verdicts


def _positions(cases: Sequence[PackedCase], rows: int) -> list[int]:
    """Absolute positions of the tokens behind each of `rows` rows of a case; padding repeats the
    last one."""
    return [
        case.cursor.anchor_position + 1 + min(slot, len(case.draft_ids))
        for case in cases
        for slot in range(rows)
    ]


def _pieces(places: Sequence[int], cases: Sequence[PackedCase]) -> list[list[int]]:
    """Splits cases at these places into groups of at most ROWS padded rows; a longer case is a
    group of its own."""
    made: list[list[int]] = []
    for place in sorted(places, key=lambda place: len(cases[place].draft_ids)):
        if not made or (len(made[-1]) + 1) * (max(len(cases[place].draft_ids), 1) + 1) > ROWS:
            made.append([])
        made[-1].append(place)
    return [sorted(piece) for piece in made]


def given(cases: Sequence[PackedCase], device: torch.device, *, draws: bool) -> PaddedCases:
    """The inputs of these cases on the device, in two copies. draws: with q and coins."""
    lengths = np.array([len(case.draft_ids) for case in cases], np.int64)
    longest = max(int(lengths.max()), 1)
    slots, reach = np.arange(longest + 1), lengths[:, None]
    inside = slots[:-1] < reach
    rows = np.array([case.first_row for case in cases], np.int64)[:, None] + np.minimum(
        slots, reach
    )
    drafted = np.zeros(inside.shape, np.int64)
    drafted[inside] = [token for case in cases for token in case.draft_ids]
    block = np.array([case.params.rule is Rule.BLOCK for case in cases], np.int64)
    accept_u, emit_u = np.zeros(inside.shape), np.zeros(rows.shape)
    widest = max(max(case.q.entries for case in cases), 1) if draws else 0
    q_ids, q_probs = np.zeros((*inside.shape, widest), np.int64), np.zeros((*inside.shape, widest))
    if draws:
        flat, mine = slots_of(cases), _entries(cases, inside, widest)
        q_ids[mine], q_probs[mine] = flat.ids, flat.probs
        accept_u[inside] = coins(Purpose.ACCEPT, cases, flat.lengths, flat.within)
        ends = np.concatenate([slots[: length + 1] + 1 for length in lengths.tolist()])
        emit_u[slots <= reach] = coins(Purpose.EMIT, cases, (lengths + 1).tolist(), ends)
    r, n, d, b, i = _parts(device, rows, lengths, drafted, block, q_ids)
    q, a, e = _parts(device, q_probs, accept_u, emit_u)
    return PaddedCases(r, n, d, b.bool(), i, q, a, e)


def _entries(
    cases: Sequence[PackedCase], inside: npt.NDArray[np.bool_], widest: int
) -> npt.NDArray[np.bool_]:
    """[m, L, K] which entries exist, in the order of `Slots`."""
    entries = np.array([case.q.entries for case in cases], np.int64)
    found: npt.NDArray[np.bool_] = inside[:, :, None] & (np.arange(widest) < entries[:, None, None])
    return found


def _parts(device: torch.device, *arrays: npt.NDArray[Any]) -> list[Tensor]:
    """Copies arrays of one type to the device together."""
    flat = sent(np.concatenate([each.ravel() for each in arrays]), device)
    made = torch.split(flat, [each.size for each in arrays])
    return [part.view(each.shape) for part, each in zip(made, arrays, strict=True)]


def _back(
    decisions: Sequence[Decision], *, watched: bool
) -> list[tuple[Verdicts, list[int], Floats]]:
    """Fetches verdicts, near-ties and p of each decision in one copy. FloatingPointError when some
    logits are no numbers."""
    if not decisions:
        return []
    parts: list[Tensor] = []
    for each in decisions:
        parts += [each.accepted, each.token, each.ties, each.sound] + ([each.p] if watched else [])
    told, made = iter(fetched_together(parts)), []
    for _ in decisions:
        accepted, token, ties, sound = (next(told) for _ in range(4))
        if not sound.all():
            raise FloatingPointError("logits are not numbers")
        verdicts = zip(accepted.astype(int).tolist(), token.astype(int).tolist(), strict=True)
        made.append(
            (list(verdicts), ties.astype(int).tolist(), next(told) if watched else np.empty(0))
        )
    return made


def _note(watch: DrawsWatch, cases: Sequence[PackedCase], verdicts: Verdicts, p: Floats) -> None:
    """Passes a call of the ratio rules to the watch; p [m, L, K] of q's entries."""
    for rule, note in ((Rule.TOKEN, note_tokens), (Rule.BLOCK, note_blocks)):
        rows = [row for row, case in enumerate(cases) if case.params.rule is rule]
        if rows:
            mine = [cases[row] for row in rows]
            lengths = np.array([len(case.draft_ids) for case in mine])
            inside = np.arange(p.shape[1]) < lengths[:, None]
            own: Floats = p[rows][_entries(mine, inside, p.shape[2])]
            note(watch, mine, slots_of(mine), own, [verdicts[row][0] for row in rows])
