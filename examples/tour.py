"""A guided tour of speculative decoding with DSpark, on the demo pair, on a CPU, in a few minutes.

    python examples/tour.py                 # prints the tour; writes tour.md and its plots to ./tour
    python examples/tour.py --out docs      # how docs/tour.md was made

Read it from top to bottom: every step is a function, its text is what the page says, its numbers are measured.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot
from transformers import AutoTokenizer

from dspark.decoding import reference
from dspark.model.anchored import entries_at
from dspark.model.calibration import load_calibration
from dspark.model.checkpoint import LoadedTarget, load_drafter, load_target
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.fresh import fresh_drafter
from dspark.model.target import TargetTaps
from dspark.types import Law, Rule
from training import loss, metrics
from training.anchors import draw_anchors, label_blocks
from training.asked import answers, questions
from training.held_out import files
from training.judged import judged

MODELS = Path(__file__).parents[1] / "models"
PROMPT = "Worksheet on greatest common divisors\n\nProblem 1: Find the greatest common divisor of 84 and 36."


@dataclass(slots=True)
class Tour:
    """The pair, and how far to go."""

    target: LoadedTarget
    drafter: BlockDrafter
    tokenizer: Any
    folder: Path  # of the plots
    tokens: int  # of an answer
    rows: int  # prompts of a domain
    steps: int  # of the training

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [repr(self.tokenizer.decode([i]))[1:-1].replace("|", "\\|") for i in ids]

    def logits(self, ids: Sequence[int], rows: int) -> torch.Tensor:
        """The target's logits after each of the last `rows` tokens, [rows, V]."""
        return self.target.model(input_ids=torch.tensor([list(ids)]), logits_to_keep=rows, use_cache=False).logits[0]

    def propose(self, ids: Sequence[int]) -> Any:
        """One block after the last token of `ids`, the anchor, which the target has not read yet."""
        past = torch.tensor(list(ids[:-1]))
        with TargetTaps(self.target.model, self.drafter.target_layer_ids) as taps:
            self.target.model(input_ids=past[None], use_cache=False)
            features = taps.collect()[0]
        at = torch.tensor([len(past)])
        entries, _ = entries_at(self.drafter, features=features, token_ids=past, anchors=at)
        size = self.drafter.config.block_size
        anchor = torch.tensor([ids[-1]])
        return self.drafter.propose(anchor_ids=anchor, anchor_positions=at, context=entries, slots=size)

    def draft(self, ids: Sequence[int], pick: Callable[[torch.Tensor], int]) -> list[float]:
        """A block for the reference loop: tokens through `pick`, slot by slot; returns calibrated confidences."""
        proposal, previous = self.propose(ids), [ids[-1]]
        for _ in range(self.drafter.config.block_size):
            previous.append(pick(proposal.step(torch.tensor(previous[-1:]))[0]))
        raw = proposal.confidence_logits(torch.tensor([previous[:-1]]))[0]
        return [float(c) for c in load_calibration(MODELS / "demo-dspark", block_size=len(raw)).apply(raw, "greedy")]

    def save(self, figure: Any, name: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        figure.tight_layout()
        figure.savefig(self.folder / f"{name}.png", dpi=100)
        pyplot.close(figure)
        return f"![{name}]({self.folder.name}/{name}.png)"


def plain_decoding(tour: Tour) -> str:
    """One token for every pass of the target."""
    ids = list(tour.tokenizer.encode(PROMPT))
    start = len(ids)
    for _ in range(tour.tokens):
        ids.append(int(tour.logits(ids, 1)[0].argmax()))
    return f"""## 1. A plain decoder

A language model reads a text and says how likely every token is as the next one. We take the likeliest, append
it, and
ask again: {len(ids) - start} tokens are {len(ids) - start} passes, each through all {tour.target.num_layers} layers.

```
{tour.text(ids)}
```

A pass over eight tokens costs little more than one over a single token, because most of its time goes into fetching
weights. So if somebody *guessed* the next tokens, one pass could check all guesses at once. That is
speculative decoding."""


def autoregressive_draft(tour: Tour) -> str:
    """A small language model guesses, one token after another."""
    assistant = load_target(MODELS / "demo-assistant")
    ids, guesses, rounds, passes = list(tour.tokenizer.encode(PROMPT)), 4, 0, 0
    start = len(ids)
    while len(ids) < start + tour.tokens:
        drafted: list[int] = []
        for _ in range(guesses):
            logits = assistant.model(input_ids=torch.tensor([ids + drafted]), logits_to_keep=1).logits[0, -1]
            drafted.append(int(logits.argmax()))
            passes += 1
        wanted = tour.logits(ids + drafted, guesses + 1).argmax(-1).tolist()
        kept = next((k for k in range(guesses) if drafted[k] != wanted[k]), guesses)
        ids += [*drafted[:kept], wanted[kept]]
        rounds += 1
    return f"""## 2. Let a small model guess

`demo-assistant` has two thin layers. It drafts {guesses} tokens, the target checks them in one pass: as long
as a guess is
what the target would have said, it stays; the first wrong one is replaced by the target's own token. The
answer is that
of step 1, token for token, in {rounds} passes of the target instead of {len(ids) - start}:
{(len(ids) - start) / rounds:.1f}
tokens a round, the target's own counted. We call that number *tau*.

The price: {passes} passes of the assistant, one after another. A longer draft costs proportionally more, and a better
drafter is a bigger one."""


def block_draft(tour: Tour) -> str:
    """All slots in one pass, with and without the sequential head."""
    prompt = list(tour.tokenizer.encode(PROMPT))
    ids = list(prompt)
    for _ in range(tour.tokens):
        ids.append(int(tour.logits(ids, 1)[0].argmax()))
    size, found = tour.drafter.config.block_size, []
    for at in range(len(prompt), len(ids) - size):
        proposal = tour.propose(ids[: at + 1])
        on = [ids[at]]
        for _ in range(size):
            on.append(int(proposal.step(torch.tensor(on[-1:]))[0].argmax()))
        off = tour.drafter.base_logits(proposal.hidden)[0].argmax(-1).tolist()
        truth = ids[at + 1 : at + 1 + size]
        found.append((truth, off, on[1:]))
    lengths = [[_run(drafts[way], truth) for truth, *drafts in found] for way in (0, 1)]
    most = int(np.argmax(np.array(lengths[1]) - np.array(lengths[0])))
    truth, off, on = found[most]
    rows = "\n".join(
        f"| {k + 1} | {t} | {a}{'' if a == t else ' ✗'} | {b}{'' if b == t else ' ✗'} |"
        for k, (t, a, b) in enumerate(zip(*map(tour.pieces, (truth, off, on)), strict=True))
    )
    return f"""## 3. A whole block in one pass

DSpark's drafter does not write token after token. It takes the anchor (the newest token) and {size - 1} masks,
looks at
what the *target* thought of the text so far, hidden states of layers {list(tour.drafter.target_layer_ids)},
and fills all
{size} slots in one pass through {tour.drafter.config.num_hidden_layers} layers. But slots that are filled side
by side do
not know of each other: each bets on the likeliest token of its place, and two bets need not fit together. The
*sequential
head* mends that: a table of rank {tour.drafter.config.markov_rank} adds, slot by slot, a bias that depends on
the token
just drawn before.

| slot | the target says | head off | head on |
| ---: | --- | --- | --- |
{rows}

Over {len(found)} places of the answer a block is right up to slot {np.mean(lengths[0]):.2f} on average without
the head,
and up to {np.mean(lengths[1]):.2f} with it."""


def _run(draft: Sequence[int], truth: Sequence[int]) -> int:
    return next((k for k in range(len(truth)) if draft[k] != truth[k]), len(truth))


def confidences(tour: Tour) -> str:
    """What a real block says of itself."""
    ids = list(tour.tokenizer.encode("def read(path):\n    with open(path"))
    drawn: list[int] = []

    def pick(logits: torch.Tensor) -> int:
        drawn.append(int(logits.argmax()))
        return drawn[-1]

    told = np.array(tour.draft(ids, pick))
    wanted = tour.logits([*ids, *drawn], len(drawn) + 1).argmax(-1).tolist()
    kept = _run(drawn, wanted[:-1])
    figure, axes = pyplot.subplots(figsize=(7, 3.2))
    axes.bar(range(len(drawn)), told, color=["tab:green" if k < kept else "tab:red" for k in range(len(drawn))])
    axes.plot(range(len(drawn)), told.cumprod(), color="black", marker=".", label="survival")
    axes.set_xticks(range(len(drawn)), tour.pieces(drawn), rotation=45)
    axes.set_ylabel("chance")
    axes.legend()
    plot = tour.save(figure, "confidences")
    return f"""## 4. How sure is it?

Beside every token stands a *confidence*: the chance that it is accepted, given that the ones before it were. Here the
prompt is `{tour.text(ids[:-1]).splitlines()[-1].strip()}`...; bars are confidences, green where the target agreed
({kept} of {len(drawn)}). Their running product, the line, is *survival*: the chance that the block is still
alive at a slot.

{plot}

Survival is a promise one can budget with, if it is honest: among slots with survival 0.7, seven in ten must live.
`dspark calibrate` sees to it with one temperature per slot."""


def the_loop(tour: Tour) -> str:
    """Draft, choose a prefix, verify, repeat."""
    prompt = tour.tokenizer.encode(PROMPT)
    law = Law(temperature=0.0, rule=Rule.BLOCK)
    run = reference.generate(prompt, tour.logits, tour.draft, lambda _at, told: len(told), law, max_tokens=tour.tokens)
    plain = reference.generate(
        prompt, tour.logits, lambda _ids, _pick: [], lambda _at, _told: 0, law, max_tokens=tour.tokens
    )
    same = "the very tokens" if run.token_ids == plain.token_ids else "NOT the tokens"
    shown = "\n".join(
        f"| {n + 1} | {made.accepted} of {made.prefix} | {' '.join(tour.pieces(made.draft_ids[: made.accepted]))} "
        f"**{tour.pieces([made.next_token])[0]}** |"
        for n, made in enumerate(run.rounds[:6])
    )
    return f"""## 5. The loop

`dspark/decoding/reference.py` holds the whole algorithm on one page. Its first rounds (the token in bold is
the target's
own):

| round | accepted | tokens |
| ---: | --- | --- |
{shown}

{len(run.token_ids)} tokens in {len(run.rounds)} rounds, tau
{sum(m.accepted + 1 for m in run.rounds) / len(run.rounds):.1f};
they are {same} of plain decoding."""


def losslessness(tour: Tour) -> str:
    """At temperature 1 too: by arithmetic, and by a race that both sides run."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    kept = np.minimum(p, q)
    lost = np.maximum(p - q, 0.0)
    shown = kept + (1.0 - kept.sum()) * lost / lost.sum()
    rows = "\n".join(
        f"| {token} | {p[n]:.3f} | {q[n]:.3f} | {kept[n]:.3f} | {shown[n] - kept[n]:.3f} | {shown[n]:.3f} |"
        for n, token in enumerate("abcd")
    )
    prompt = tour.tokenizer.encode("import os\n\n\ndef ")
    law = Law(temperature=1.0, rule=Rule.COUPLED, seed=7)

    babble = torch.Generator().manual_seed(1)

    def hostile(ids: Sequence[int], pick: Callable[[torch.Tensor], int]) -> list[float]:
        return [0.99 for _ in range(5) if pick(torch.randn(tour.target.vocab_size, generator=babble)) >= 0]

    said = [
        reference.generate(prompt, tour.logits, drafter, schedule, law, max_tokens=tour.tokens // 2)
        for drafter, schedule in (
            (tour.draft, lambda _at, told: len(told)),
            (tour.draft, lambda at, told: at % len(told)),
            (hostile, lambda _at, told: len(told)),
            (lambda _ids, _pick: [], lambda _at, _told: 0),
        )
    ]
    same = all(run.token_ids == said[0].token_ids for run in said)
    return f"""## 6. Nothing is lost

At a temperature the target does not have *one* next token but a law p, and the drafter draws from its own law
q. Accept
a draft x with chance min(1, p(x) / q(x)); on a rejection draw from what q left of p. What comes out follows p
exactly:

| token | p | q | drafted and kept | added after a rejection | together |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

Whatever the drafter is, good or hostile, only speed changes. With the *coupled* rule not even the draws change: both
sides run one race over the vocabulary, keyed by the request's seed. Four ways to answer with seed 7 at temperature 1,
whole blocks, odd prefixes, a drafter that babbles at confidence 0.99, and no drafter at all, took
{", ".join(str(len(run.rounds)) for run in said)} rounds and said {"the same" if same else "DIFFERENT THINGS"}:

```
{tour.text([*prompt, *said[0].token_ids])}
```"""


def threshold_sweep(tour: Tour) -> str:
    """Fewer verified tokens for little tau."""
    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    size, told = tour.drafter.config.block_size, []
    scales = load_calibration(MODELS / "demo-dspark", block_size=size).temperatures("sampled", "token")
    for path in files("evaluate"):
        asked = questions(path, tour.target, rows=tour.rows)
        drawn = answers(
            tour.target, asked, temperature=1.0, rule=Rule.TOKEN, seed=0, new_tokens=tour.tokens, room=size + 1
        )
        texts = list(judged(tour.target, tour.drafter, drawn, temperature=1.0, rule=Rule.TOKEN, seed=1, cut=64))
        points = metrics.sweep(texts, size, tour.tokens, [n / 10 for n in range(10)], scales and np.array(scales))
        axes.plot(
            [point["verified_per_committed"] for point in points],
            [point["tau"] for point in points],
            marker=".",
            label=path.stem,
        )
        told.append(f"{path.stem} {points[0]['tau']:.1f}")
        half = points[3]
        told[-1] += (
            f" ({half['tau']:.1f} with {1 - half['verified'] / points[0]['verified']:.0%} fewer tokens verified)"
        )
    axes.set_xlabel("verified tokens per committed token")
    axes.set_ylabel("tau")
    axes.legend()
    plot = tour.save(figure, "sweep")
    return f"""## 7. What confidence is good for

Verifying a token that will be rejected is work for nothing, and under load it is work that another request could have
used. Cut a block before the first slot whose confidence is below a threshold, sweep the threshold from 0
(right end of
each line) to 0.9 (left end):

{plot}

tau of whole blocks, and at a threshold of 0.3: {"; ".join(told)}. On text that is hard to guess most of a
block can go
unverified for nothing. A scheduler does better than a threshold: it gives every request what its survival is worth at
the present load (`coordinator/prefix_scheduler.py`). Cutting is lossless as long as whether a slot is verified
does not
depend on the token in it."""


def mini_training(tour: Tour) -> str:
    """The two heads, from nothing."""
    config = tour.drafter.config
    fresh = as_block(
        fresh_drafter(
            config,
            embedding=tour.drafter.embed_tokens.weight,
            lm_head=tour.drafter.lm_head.weight,
            generator=torch.Generator().manual_seed(0),
        )
    )
    student = as_block(load_drafter(MODELS / "demo-dspark"))
    student.markov_head.load_state_dict(fresh.markov_head.state_dict())
    student.confidence_head.load_state_dict(fresh.confidence_head.state_dict())
    student.requires_grad_(False)
    heads = [*student.markov_head.parameters(), *student.confidence_head.parameters()]
    for weight in heads:
        weight.requires_grad_(True)
    asked = [q for path in files("calibrate") for q in questions(path, tour.target, rows=tour.rows)]
    texts = [
        a.ids
        for a in answers(
            tour.target, asked, temperature=1.0, rule=Rule.TOKEN, seed=5, new_tokens=tour.tokens, room=config.block_size
        )
    ]
    optimizer = torch.optim.AdamW(heads, lr=5e-3)
    generator, log = torch.Generator().manual_seed(0), []
    for step in range(tour.steps):
        ids = texts[step % len(texts)]
        with torch.no_grad(), TargetTaps(tour.target.model, student.target_layer_ids) as taps:
            hidden = tour.target.model.model(input_ids=ids, use_cache=False).last_hidden_state
            features = taps.collect()
        supervised = torch.ones(ids.shape)
        anchors = draw_anchors(supervised, 32, generator=generator)
        labels = label_blocks(input_ids=ids, loss_mask=supervised, anchors=anchors, block_size=config.block_size)
        out = student(
            features=features, input_ids=ids, anchor_positions=anchors.positions, block_keep_mask=anchors.keep
        )
        wanted = loss.target_slot_logits(
            last_hidden=hidden,
            anchor_positions=anchors.positions,
            block_size=config.block_size,
            lm_head=tour.target.model.lm_head,
        )
        sums = loss.block_loss(
            corrected_logits=out.corrected_logits,
            confidence_logits=out.confidence_logits,
            target_logits=wanted,
            target_ids=labels.target_ids,
            eval_mask=labels.eval_mask,
            decay=4.0,
        )
        optimizer.zero_grad()
        loss.mix(sums, loss.LossWeights()).backward()
        optimizer.step()
        log.append(loss.figures(sums))
    figure, panes = pyplot.subplots(1, 2, figsize=(8, 3))
    names = {"confidence_abs_error": "error of confidence", "tau_probabilistic": "tau of a block, teacher forced"}
    smooth = max(1, min(len(texts), len(log) // 3))  # every text once
    for pane, (name, title) in zip(panes, names.items(), strict=True):
        values = np.convolve([row[name] for row in log], np.ones(smooth) / smooth, "valid")
        pane.plot(range(smooth, len(log) + 1), values)
        pane.set_xlabel("step")
        pane.set_title(title, fontsize=10)
    plot = tour.save(figure, "training")
    first, last = log[: max(1, len(log) // 5)], log[-max(1, len(log) // 5) :]
    error = [np.mean([row["confidence_abs_error"] for row in part]) for part in (first, last)]
    return f"""## 8. Where the heads come from

Forget both heads, keep the rest of the drafter frozen, and train {sum(w.numel() for w in heads):,} weights for
{len(log)} steps of 32 blocks on text that the target wrote. Three terms: a little cross-entropy, mostly the distance
between the two laws, which is exactly what acceptance costs, and the confidence's own; the label of a slot's
confidence
is 1 - distance / 2, the chance that it would be accepted.

{plot}

The error of confidence went from {error[0]:.3f} to {error[1]:.3f} in {len(log)} steps. A whole drafter takes
longer: `dspark train` does
it for a target of your own, `dspark calibrate` and `dspark evaluate` say how good it is."""


STEPS = (
    plain_decoding,
    autoregressive_draft,
    block_draft,
    confidences,
    the_loop,
    losslessness,
    threshold_sweep,
    mini_training,
)
HEAD = """# A tour of speculative decoding

Made by `python examples/tour.py --out docs` on the demo pair in `models/`, on a CPU; every number below was
measured by
the code of the step. The program reads like this page.
"""


def wrapped(page: str) -> str:
    """Paragraphs filled to one width; tables, pictures, headings and listings as they are."""
    parts, listing = [], False
    for part in page.split("\n\n"):
        keep = listing or part.startswith(("|", "!", "#", "```", "    ", "---"))
        listing ^= part.count("```") % 2 == 1
        parts.append(part if keep else textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(parts)


def run(folder: Path, *, tokens: int = 64, rows: int = 8, steps: int = 120) -> Path:
    """Takes the tour, prints it and writes `tour.md` below `folder`."""
    drafter = as_block(load_drafter(MODELS / "demo-dspark")).requires_grad_(False)
    tour = Tour(
        target=load_target(MODELS / "demo-target"),
        drafter=drafter,
        tokenizer=AutoTokenizer.from_pretrained(MODELS / "demo-target", local_files_only=True),
        folder=folder / "tour",
        tokens=tokens,
        rows=rows,
        steps=steps,
    )
    begun, parts = time.monotonic(), [HEAD]
    for step in STEPS:
        with torch.inference_mode(step is not mini_training):
            parts.append(wrapped(step(tour)))
        print(parts[-1], end="\n\n", flush=True)
    parts.append(f"---\n{time.monotonic() - begun:.0f} seconds on {torch.get_num_threads()} thread(s).")
    page = folder / "tour.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tour"), help="where tour.md and its plots go (./tour)")
    parser.add_argument("--threads", type=int, default=1, help="of the processor (1)")
    parser.add_argument("--short", action="store_true", help="a hasty tour, for trying it out")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    print("written:", run(chosen.out, **({"tokens": 20, "rows": 2, "steps": 6} if chosen.short else {})))
