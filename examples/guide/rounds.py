"""Confidence, the loop, and why nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Generator, Tensor, randn

from dspark import plots
from dspark.decoding import reference
from dspark.types import Rule, SamplingParams
from guide.pair import PROMPT, Tour, agreeing


def confidences(tour: Tour) -> str:
    """What a real block says of itself."""
    ids = list(tour.tokenizer.encode("def read(path):\n    with open(path"))
    drawn: list[int] = []

    def pick(logits: Tensor) -> int:
        drawn.append(int(logits.argmax()))
        return drawn[-1]

    told = np.array(tour.draft(ids, pick))
    wanted = tour.logits([*ids, *drawn], len(drawn) + 1).argmax(-1).tolist()
    kept = agreeing(drawn, wanted[:-1])
    figure, (axes,) = plots.panels(1, (7, 3.2))
    axes.bar(
        range(len(drawn)),
        told,
        color=["tab:green" if k < kept else "tab:red" for k in range(len(drawn))],
    )
    axes.plot(range(len(drawn)), told.cumprod(), color="black", marker=".", label="survival")
    axes.set_xticks(range(len(drawn)), tour.pieces(drawn), rotation=45)
    axes.set_ylabel("chance")
    plot = tour.save(figure, "confidences")
    return f"""## 4. How sure is it?

Beside every token stands a *confidence*: the chance that it is accepted, given that the ones before
it were. Here the prompt ends in `{tour.text(ids).splitlines()[-1].strip()}`; bars are confidences,
green where the target agreed ({kept} of {len(drawn)}). Their running product, the line, is
*survival*: the chance that the block is still alive at a slot.

{plot}

Survival is a promise one can budget with, if it is honest: among slots with survival 0.7, seven in
ten must live. `dspark calibrate` sees to it, slot by slot."""


def whole(_at: int, told: Sequence[float]) -> int:
    """A schedule: every slot is verified."""
    return len(told)


def nothing(_ids: Sequence[int], _pick: Callable[[Tensor], int]) -> list[float]:
    """A drafter that does not draft."""
    return []


def the_loop(tour: Tour) -> str:
    """Draft, choose a prefix, verify, repeat."""
    prompt, params = tour.tokenizer.encode(PROMPT), SamplingParams(temperature=0.0, rule=Rule.BLOCK)
    run, plain = (
        reference.generate(prompt, tour.logits, drafter, whole, params, max_tokens=tour.tokens)
        for drafter in (tour.draft, nothing)
    )
    same = "the very tokens" if run.token_ids == plain.token_ids else "NOT the tokens"
    shown = "\n".join(
        f"| {n + 1} | {made.accepted} of {made.prefix} | "
        f"{' '.join(tour.pieces(made.draft_ids[: made.accepted]))} "
        f"**{tour.pieces([made.next_token])[0]}** |"
        for n, made in enumerate(run.rounds[:6])
    )
    committed, kept = sum(made.accepted + 1 for made in run.rounds), len(run.token_ids)
    past = f" (the last round runs past token {kept})" if committed > kept else ""
    return f"""## 5. The loop

`dspark/decoding/reference.py` holds the whole algorithm on one page. Its first rounds (the token in
bold is the target's own):

| round | accepted | tokens |
| ---: | --- | --- |
{shown}

{kept} tokens in {len(run.rounds)} rounds, tau {committed / len(run.rounds):.1f}{past}; they are
{same} of plain decoding."""


def losslessness(tour: Tour) -> str:
    """At temperature 1 too: by arithmetic, and by noise that both sides share."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    kept, lost = np.minimum(p, q), np.maximum(p - q, 0.0)
    added = (1.0 - kept.sum()) * lost / lost.sum()
    rows = "\n".join(
        f"| {token} | {p[n]:.3f} | {q[n]:.3f} | {kept[n]:.3f} | {added[n]:.3f} | "
        f"{kept[n] + added[n]:.3f} |"
        for n, token in enumerate("abcd")
    )
    prompt = tour.tokenizer.encode("import os\n\n\ndef ")
    said = _four_ways(tour, prompt)
    same = (
        "the same"
        if all(run.token_ids == said[0].token_ids for run in said)
        else "DIFFERENT THINGS"
    )
    return f"""## 6. Nothing is lost

At a temperature the target does not have *one* next token but probabilities p, and the drafter
draws from its own q. Accept a draft x with chance min(1, p(x) / q(x)); on a rejection draw from
what q left of p. What comes out follows p exactly:

| token | p | q | drafted and kept | added after a rejection | together |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

Whatever the drafter is, good or hostile, only speed changes. With the *coupled* rule not even the
draws change: both sides draw by the same noise, keyed by the request's seed. Four ways to
answer with seed 7 at temperature 1, whole blocks, odd prefixes, a drafter that babbles at
confidence 0.99, and no drafter at all, took {", ".join(str(len(run.rounds)) for run in said)}
rounds and said {same}:

```text
{tour.text([*prompt, *said[0].token_ids])}
```"""


def _four_ways(tour: Tour, prompt: Sequence[int]) -> list[reference.ReferenceRun]:
    babble = Generator().manual_seed(1)

    def hostile(_ids: Sequence[int], pick: Callable[[Tensor], int]) -> list[float]:
        return [
            0.99 for _ in range(5) if pick(randn(tour.target.vocab_size, generator=babble)) >= 0
        ]

    def odd(at: int, told: Sequence[float]) -> int:
        return at % len(told)

    params = SamplingParams(temperature=1.0, rule=Rule.COUPLED, seed=7)
    return [
        reference.generate(
            prompt, tour.logits, drafter, schedule, params, max_tokens=tour.tokens // 2
        )
        for drafter, schedule in (
            (tour.draft, whole),
            (tour.draft, odd),
            (hostile, whole),
            (nothing, whole),
        )
    ]
