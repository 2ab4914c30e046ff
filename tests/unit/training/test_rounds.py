"""Rounds replayed on the target's text follow the law of rounds that are really played."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dspark.decoding.gumbel import exponentials
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.training import lockstep, rounds
from dspark.training.asked import drawing
from dspark.training.shape import make_drafter
from dspark.types import Rule, SamplingParams
from tests.unit.model.tiny import dense, walked
from tests.unit.training.pipeline import short_run


def target_of(vocabulary: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=64,
            intermediate_size=64,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=0,
        )
    )


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    made = target_of(24).eval()
    # Residual branches start as nothing; give them something to say.
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return made.requires_grad_(False)


def drafter_of(model: Qwen3ForCausalLM, block: int) -> BlockDrafter:
    """One layer that reads two of the target's four."""
    target: Any = SimpleNamespace(model=model, folder=Path(), vocab_size=model.config.vocab_size)
    settings = short_run(Path(), Path(), Path(), block_size=block, taps=(1, 2))
    return as_block(make_drafter(target, settings)).eval().requires_grad_(False)


def features_of(model: Qwen3ForCausalLM, drafter: BlockDrafter, ids: torch.Tensor) -> torch.Tensor:
    """[T, F] of a text [1, T]."""
    with rounds.TargetTaps(model, drafter.config.target_layer_ids) as taps:
        model(input_ids=ids)
        return taps.collect()[0]


def judged(
    drafter: BlockDrafter, model: Qwen3ForCausalLM, temperature: float
) -> rounds.JudgedBlocks:
    """The blocks of a text of all tokens."""
    text, anchors = torch.arange(24).unsqueeze(0), torch.arange(4, 20)
    params, generator = SamplingParams(temperature), torch.Generator()
    return rounds.judge(drafter, model, text, anchors, params, generator=generator)


def test_no_coin_draws_a_token_without_a_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    for coin, token in ((0.0, 1), (1.0, 2)):
        # the least, and one that rounding makes of the largest
        monkeypatch.setattr(torch, "rand", lambda *shape, coin=coin, **_: torch.full(shape, coin))
        assert drawing(1.0, 0)(logits, 0).tolist() == [token]


def test_rounds_skip_the_prefill_token_and_stop_at_the_end_of_the_text() -> None:
    ends = [False] * 12
    blocks = [2, 0, 0, 1, 0, 0, 0]
    assert [(made.at, made.emitted) for made in rounds.play(blocks, blocks, ends, 6)] == [
        (0, 3),
        (3, 2),
    ]
    ends[2] = True
    assert [(made.at, made.emitted) for made in rounds.play([7], [7], ends, 6)] == [(0, 2)]
    # the target's own token ends it: the round was played whole
    assert rounds.play([1], [2], ends, 6) == [rounds.EvaluatedRound(0, 2, 1, 2)]


def test_replayed_greedy_rounds_keep_what_played_ones_keep(model: Qwen3ForCausalLM) -> None:
    drafter = drafter_of(model, block=3)
    ids = lockstep.generate(model, prompts=[[5, 6, 7, 8]], total=40)
    anchors = torch.arange(4, 36)
    params, generator = SamplingParams(temperature=0.0), torch.Generator()
    blocks = rounds.judge(drafter, model, ids, anchors, params, generator=generator)
    features = features_of(model, drafter, ids)
    for anchor, kept in zip(anchors.tolist(), blocks.accepted.tolist(), strict=True):
        # A round as it is played: only the past is known, and each draft depends on the one before
        # it.
        past = slice(anchor + 1)
        drafts = walked(drafter, features[past], ids[0, past], torch.tensor([anchor])).tokens[0]
        right = (drafts == ids[0, anchor + 1 : anchor + 4]).tolist()
        assert kept == [*right, False].index(False)


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_survival_of_two_slots_is_what_the_rule_says(rule: Rule) -> None:
    """By enumeration: Pr[both kept] is the sum over drafts of q1 q2 P_2, with P of the rule; texts
    weighted by p. The first slot's is one minus the total variation of p and q under both."""
    vocabulary = 6
    model = target_of(vocabulary).eval().requires_grad_(False)
    drafter = drafter_of(model, block=2)
    torch.manual_seed(3)
    for p in (*model.parameters(), *drafter.parameters()):
        torch.nn.init.normal_(p.data, std=0.35)
    texts = list(itertools.product(range(vocabulary), repeat=2))
    ids = torch.tensor([[5, 1, 3, 4, *text, 0] for text in texts])
    p = torch.softmax(model(input_ids=ids).logits, -1)
    p1, p2 = p[0, 3], p[::vocabulary, 4]  # [V], [first token, V]
    q1, q2 = laws_of_a_block(model, drafter, ids)
    alive = torch.clamp(p1 / q1, max=1.0)[:, None]
    carried = alive if rule is Rule.BLOCK else torch.ones_like(alive)
    both = q1[:, None] * torch.minimum(q2, carried * p2) * (1.0 if rule is Rule.BLOCK else alive)
    repeats, first_kept, kept = 400, 0.0, 0.0
    anchors, params = torch.full((repeats,), 3), SamplingParams(rule=rule)
    generator = torch.Generator().manual_seed(1)
    for row, (first, second) in enumerate(texts):
        text = ids[row : row + 1]
        blocks = rounds.judge(drafter, model, text, anchors, params, generator=generator, cut=None)
        chance = float(p1[first] * p2[first, second])
        first_kept += chance * float((blocks.accepted >= 1).float().mean())
        kept += chance * float((blocks.accepted == 2).float().mean())
    assert abs(first_kept - float(torch.minimum(p1, q1).sum())) < 0.02
    assert abs(kept - float(both.sum())) < 0.02
    other = q1[:, None] * torch.minimum(q2, p2) * alive
    if rule is Rule.BLOCK:  # the rules differ by more than the tolerance, or nothing was tested
        assert float(both.sum() - other.sum()) > 0.03


def laws_of_a_block(
    model: Qwen3ForCausalLM, drafter: BlockDrafter, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q of the first slot [V], and of the second after each first token [V, V], at anchor 3."""
    features = features_of(model, drafter, ids[:1])
    at, after = torch.tensor([3]), torch.arange(drafter.config.vocab_size)
    hidden = drafter.forward_hidden(features=features, input_ids=ids[0], anchors=at)
    previous = torch.stack([ids[0, at].expand(len(after)), after], dim=1)
    laws = dense(drafter, hidden.expand(len(after), -1, -1), previous)[0].softmax(-1)
    return laws[0, 0], laws[:, 1]


def test_coupled_texts_and_drafts_run_one_race(model: Qwen3ForCausalLM) -> None:
    """A drafter that is the target itself agrees everywhere; another one where both races have one
    winner."""
    drafter = drafter_of(model, block=3)
    vocabulary, total = model.config.vocab_size, 24
    params = SamplingParams(seed=7, choice=2, rule=Rule.COUPLED)

    def pick(logits: torch.Tensor, place: int) -> torch.Tensor:
        return (
            rounds.distribution(logits, 1.0) / exponentials([params], [place], vocabulary)
        ).argmax(-1)

    ids = lockstep.generate(model, prompts=[[5, 6, 7, 8]], total=total, pick=pick)
    anchors, generator = torch.arange(4, total - 4), torch.Generator()
    made = [
        rounds.judge(
            drafter, model, ids, anchors, params, generator=generator.manual_seed(s), cut=None
        )
        for s in (0, 1)
    ]
    assert torch.equal(made[0].accepted, made[1].accepted)  # nothing is left to chance
    features = features_of(model, drafter, ids)
    q = walked(drafter, features, ids[0], anchors).logits[:, 0].softmax(-1)
    races = exponentials([params] * len(anchors), (anchors + 1).tolist(), vocabulary)
    assert torch.equal(made[0].accepted > 0, (q / races).argmax(-1) == ids[0, anchors + 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_whose_logits_are_no_numbers_is_no_bad_one_but_an_error(
    model: Qwen3ForCausalLM, temperature: float
) -> None:
    drafter = drafter_of(model, block=3)
    drafter.lm_head.weight[5] = torch.nan
    with pytest.raises(FloatingPointError, match="the drafter's logits"):
        judged(drafter, model, temperature)


def test_a_context_is_made_once_however_many_pieces_its_blocks_are_judged_in(
    model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_of(model, block=3)
    made, ingest = list[object](), drafter.ingest
    monkeypatch.setattr(drafter, "ingest", lambda tokens: made.append(tokens) or ingest(tokens))
    whole = judged(drafter, model, 0.0)
    monkeypatch.setattr(rounds, "_FLOATS", 15 * model.config.vocab_size)
    parts = judged(drafter, model, 0.0)
    assert torch.equal(parts.accepted, whole.accepted)
    torch.testing.assert_close(parts.confidence, whole.confidence)
    assert len(made) == 2


def test_short_prefixes_move_the_rounds_on() -> None:
    ends = [False] * 12
    made = rounds.play([3, 0, 2, 0, 0, 0, 0, 0], [1, 3, 3, 0, 3, 3, 3, 3], ends, 6)
    assert [(r.at, r.drafted, r.accepted, r.emitted) for r in made] == [(0, 1, 1, 2), (2, 3, 2, 3)]
    ends[3] = True  # the second draft of the second round ends the text
    made = rounds.play([3, 0, 2, 0], [1, 3, 3, 0], ends, 6)
    assert [(r.at, r.drafted, r.accepted, r.emitted) for r in made] == [(0, 1, 1, 2), (2, 1, 1, 1)]
