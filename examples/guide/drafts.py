"""Plain decoding, a draft written token by token, and a draft written as a block."""

from __future__ import annotations

import numpy as np
import torch

from dspark.model.checkpoint import load_target
from guide.pair import ASSISTANT, PROMPT, Tour, agreeing

GUESSES = 4


def plain_decoding(tour: Tour) -> str:
    """One token for every pass of the target."""
    prompt, answer = tour.plain()
    return f"""## 1. A plain decoder

A language model reads a text and says how likely every token is as the next one. We take the
likeliest, append it, and ask again: {len(answer)} tokens are {len(answer)} passes, each through all
{tour.target.num_layers} layers.

```text
{tour.text([*prompt, *answer])}
```

A pass over eight tokens costs little more than one over a single token, because most of its time
goes into fetching weights. So if somebody *guessed* the next tokens, one pass could check all
guesses at once. That is speculative decoding."""


def autoregressive_draft(tour: Tour) -> str:
    """A small language model guesses, one token after another."""
    assistant = load_target(ASSISTANT)
    ids, rounds, passes = list(tour.tokenizer.encode(PROMPT)), 0, 0
    start = len(ids)
    while len(ids) < start + tour.tokens:
        drafted: list[int] = []
        for _ in range(GUESSES):
            logits = assistant.model(
                input_ids=torch.tensor([ids + drafted]), logits_to_keep=1
            ).logits[0, -1]
            drafted.append(int(logits.argmax()))
            passes += 1
        wanted = tour.logits(ids + drafted, GUESSES + 1).argmax(-1).tolist()
        kept = agreeing(drafted, wanted[:-1])
        ids += [*drafted[:kept], wanted[kept]]
        rounds += 1
    made = len(ids) - start
    return f"""## 2. Let a small model guess

The assistant is a language model of one thin layer. It drafts {GUESSES} tokens, the target checks
them in one pass: as long as a guess is what the target would have said, it stays; the first wrong
one is replaced by the target's own token. The answer is that of step 1, token for token, in
{rounds} passes of the target instead of {made}: {made / rounds:.1f} tokens a round, the target's
own counted. We call that number *tau*.

The price: {passes} passes of the assistant, one after another. A longer draft costs proportionally
more, and a better drafter is a bigger one."""


def block_draft(tour: Tour) -> str:
    """All slots in one pass, with and without the sequential head."""
    prompt, answer = tour.plain()
    ids, found = [*prompt, *answer], []
    for at in range(len(prompt), len(ids) - tour.slots):
        proposal, on = tour.propose(ids[: at + 1]), [ids[at]]
        for _ in range(tour.slots):
            on.append(int(proposal.step(torch.tensor(on[-1:]))[0].argmax()))
        off = tour.drafter.base_logits(proposal.hidden)[0].argmax(-1).tolist()
        found.append((ids[at + 1 : at + 1 + tour.slots], off, on[1:]))
    without, with_head = (
        [agreeing(drafts[way], truth) for truth, *drafts in found] for way in (0, 1)
    )
    truth, off, on = found[int(np.argmax(np.subtract(with_head, without)))]
    rows = "\n".join(
        f"| {k + 1} | {t} | {a}{'' if a == t else ' ✗'} | {b}{'' if b == t else ' ✗'} |"
        for k, (t, a, b) in enumerate(zip(*map(tour.pieces, (truth, off, on)), strict=True))
    )
    shape = tour.drafter.config
    return f"""## 3. A whole block in one pass

DSpark's drafter does not write token after token. It takes the anchor (the newest token) and
{tour.slots - 1} masks, looks at what the *target* thought of the text so far, hidden states of
layers {list(tour.drafter.target_layer_ids)}, and fills all {tour.slots} slots in one pass through
{shape.num_hidden_layers} layers. But slots that are filled side by side do not know of each other:
each bets on the likeliest token of its place, and two bets need not fit together. The *sequential
head* mends that: a table of rank {shape.markov_rank} adds, slot by slot, a bias that depends on the
token just drawn before.

| slot | the target says | head off | head on |
| ---: | --- | --- | --- |
{rows}

At {len(found)} places of the answer, the first {np.mean(without):.2f} slots of a block are right on
average without the head, and the first {np.mean(with_head):.2f} with it."""
