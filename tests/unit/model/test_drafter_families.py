"""Every family through the one interface: entries, proposals, the training forward and files
agree."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from dspark.model import chain
from dspark.model.chain import ChainDrafter
from dspark.model.checkpoint import load_drafter, load_projection, save_drafter
from dspark.model.config import Kind, ModelType
from dspark.model.config_file import config_to_json, parse_drafter_config
from dspark.model.families import as_block
from dspark.model.family import Anchors, Drafter, Entries
from dspark.model.language import LanguageDrafter
from dspark.training.anchors import draw_anchors, slots_after
from dspark.training.rounds import anchors_at
from tests.unit.model.golden import DATA
from tests.unit.model.tiny import FAMILIES, HEADS, dense, family_drafter, text, tiny_drafter, walked

CLOSE = {"atol": 6e-5, "rtol": 0.0}  # logits reach 18
every_family = pytest.mark.parametrize(("kind", "model_type"), FAMILIES)


@pytest.mark.parametrize(("kind", "model_type"), [f for f in FAMILIES if f[0] in ("eagle3", "mtp")])
@torch.no_grad()
def test_training_time_tests_equal_blocks_at_every_index(kind: Kind, model_type: ModelType) -> None:
    drafter = family_drafter(kind, model_type)
    assert isinstance(drafter, ChainDrafter)
    features, ids = text(drafter, 14)
    size = drafter.config.block_size
    anchors = torch.arange(1, len(ids) - size + 1)
    served = walked(drafter, features, ids, anchors, forced=True).logits
    steps = drafter.forward_steps(features=features[None], input_ids=ids[None], steps=size)
    for step, hidden in enumerate(steps):  # index i follows i+1 context tokens
        torch.testing.assert_close(
            drafter.base_logits(hidden[0, anchors - 1]), served[:, step], **CLOSE
        )


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_a_long_text_in_chunks_equals_the_text_at_once(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = family_drafter(kind, "qwen3").train()
    assert isinstance(drafter, ChainDrafter)
    features, ids = text(drafter, 14)
    found = []
    for chunk in (chain.CHUNK, 4):
        monkeypatch.setattr(chain, "CHUNK", chunk)
        drafter.zero_grad()
        out = torch.stack(
            drafter.forward_steps(features=features[None], input_ids=ids[None], steps=3)
        )
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad for p in drafter.parameters() if p.grad is not None)])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_a_block_without_any_context_is_finite() -> None:
    drafter = family_drafter("block", "qwen3")
    config = drafter.config
    for n in (1, 3):
        nothing = torch.empty(
            config.num_hidden_layers, n, 0, config.num_key_value_heads, config.head_dim
        )
        start, ids = torch.zeros(n, dtype=torch.long), torch.arange(n)
        proposal = drafter.propose(Anchors(ids, start, Entries(nothing, nothing, start)), 3)
        assert torch.isfinite(proposal.step(ids)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_close(dtype: torch.dtype) -> None:
    folder, anchors, found = DATA / "dspark_vanilla", torch.tensor([4, 9]), []
    for drafter in (load_drafter(folder), load_drafter(folder, dtype=dtype)):
        features, ids = text(drafter, 20)
        rows = features.to(drafter.lm_head.weight.dtype)
        found.append(walked(drafter, rows, ids, anchors, forced=True).logits.float())
    assert anchors_at(drafter, rows, ids, anchors).context.keys.dtype == dtype
    assert torch.cosine_similarity(*found, dim=-1).min() > 0.99


@torch.no_grad()
def test_a_language_model_drafts_what_it_would_say() -> None:
    drafter = family_drafter("lm", "qwen3")
    assert isinstance(drafter, LanguageDrafter)
    features, ids = text(drafter, 14)
    anchors = torch.arange(1, len(ids) - drafter.config.block_size + 1)
    served = walked(drafter, features, ids, anchors, forced=True).logits
    whole = drafter.base_logits(drafter.forward_tokens(ids[None])[0])
    for slot in range(drafter.config.block_size):
        torch.testing.assert_close(served[:, slot], whole[anchors + slot], **CLOSE)


@every_family
@torch.no_grad()
def test_serving_form_changes_nothing_and_confidence_is_the_likeliest_token_s_without_a_head(
    kind: Kind, model_type: ModelType
) -> None:
    drafter, served = family_drafter(kind, model_type), family_drafter(kind, model_type)
    served.requires_grad_(False).serve()
    features, ids = text(drafter, 14)
    anchors = torch.tensor([3, 8])
    plain, fast = (walked(each, features, ids, anchors, forced=True) for each in (drafter, served))
    torch.testing.assert_close(fast.logits, plain.logits, atol=1e-4, rtol=0)
    for made in (plain, fast):
        assert made.confidence.shape == made.logits.shape[:2]
        assert made.hidden.shape == (*made.logits.shape[:2], drafter.config.hidden_size)
        if not drafter.config.enable_confidence_head:
            chance = torch.softmax(made.logits, dim=-1).amax(dim=-1)
            torch.testing.assert_close(torch.sigmoid(made.confidence), chance, **CLOSE)


SAVED: dict[str, Callable[[], Drafter]] = {
    **{
        f"{kind} {model_type}": partial(family_drafter, kind, model_type)
        for kind, model_type in FAMILIES
    },
    **{f"head {head}": partial(tiny_drafter, head) for head in HEADS},
}


@pytest.mark.parametrize("made", SAVED)
def test_a_saved_drafter_loads_again_bit_for_bit(made: str, tmp_path: Path) -> None:
    drafter = SAVED[made]()
    save_drafter(drafter, tmp_path)
    again = load_drafter(tmp_path)
    assert (again.config.family, again.config.kind) == (drafter.config.family, drafter.config.kind)
    assert parse_drafter_config(config_to_json(again.config)) == again.config
    assert again.state_dict().keys() == drafter.state_dict().keys()
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    projection = load_projection(tmp_path)
    assert projection.fingerprint == again.fingerprint != ""
    assert (projection.width, projection.feature_size) == (again.width, again.feature_size)
    features, _ = text(drafter, 14)
    assert torch.equal(projection.project(features), again.project(features))


@every_family
def test_training_reaches_every_weight_but_the_targets(kind: Kind, model_type: ModelType) -> None:
    drafter = family_drafter(kind, model_type).train()
    features, ids = text(drafter, 12)
    if isinstance(drafter, LanguageDrafter):
        drafter.base_logits(drafter.forward_tokens(ids[None])).square().sum().backward()
    elif isinstance(drafter, ChainDrafter):
        steps = drafter.forward_steps(features=features[None], input_ids=ids[None], steps=2)
        sum(drafter.base_logits(hidden).square().sum() for hidden in steps).backward()
    else:
        anchors = torch.arange(1, 11)  # so many that every expert of a mixture is asked
        hidden = as_block(drafter).forward_hidden(features=features, input_ids=ids, anchors=anchors)
        logits, confidence = dense(as_block(drafter), hidden, ids[slots_after(anchors, 5, 12)])
        (logits.square().sum() + confidence.sum()).backward()
    frozen = {name for name, parameter in drafter.named_parameters() if parameter.grad is None}
    # it moves a choice, which has no gradient
    frozen -= {name for name in frozen if name.endswith("gate.bias")}
    assert frozen == (set() if kind == "lm" else {"embed_tokens.weight", "lm_head.weight"})


BLOCKS: dict[str, Callable[[], Drafter]] = {
    **{head: partial(tiny_drafter, head) for head in HEADS},
    "gemma4_text": partial(family_drafter, "block", "gemma4_text"),
    "deepseek_v4": partial(family_drafter, "block", "deepseek_v4"),
}


@pytest.mark.parametrize("made", BLOCKS)
@torch.no_grad()
def test_each_training_block_equals_the_served_block(made: str) -> None:
    drafter, generator = as_block(BLOCKS[made]().eval()), torch.Generator().manual_seed(1)
    features, ids = text(drafter, 30)
    anchors = draw_anchors(torch.ones(30, dtype=torch.bool), 9, generator=generator)
    hidden = drafter.forward_hidden(features=features, input_ids=ids, anchors=anchors)
    logits, confidence = dense(drafter, hidden, ids[slots_after(anchors, 5, 30)])
    served = walked(drafter, features, ids, anchors, forced=True)
    assert torch.allclose(served.hidden, hidden, atol=2e-5)
    assert torch.allclose(served.logits, logits, atol=2e-4)
    if confidence is not None:
        assert torch.allclose(served.confidence, confidence, atol=2e-5)


@torch.no_grad()
def test_texts_packed_into_one_row_do_not_see_each_other() -> None:
    drafter, generator = tiny_drafter("vanilla").eval(), torch.Generator().manual_seed(4)
    lengths = (13, 30, 7)
    features, ids = zip(*(text(drafter, n, seed=n) for n in lengths), strict=True)
    anchors = [
        draw_anchors(torch.ones(n, dtype=torch.bool), 5, generator=generator) for n in lengths
    ]
    starts = torch.tensor([0, *lengths]).cumsum(0)[: len(lengths)]
    packed = drafter.forward_hidden(
        features=torch.cat(features),
        input_ids=torch.cat(ids),
        anchors=torch.cat([a + s for a, s in zip(anchors, starts, strict=True)]),
        first_rows=torch.cat([s.expand(len(a)) for a, s in zip(anchors, starts, strict=True)]),
    )
    alone = [
        drafter.forward_hidden(features=taps, input_ids=own, anchors=some)
        for taps, own, some in zip(features, ids, anchors, strict=True)
    ]
    assert torch.allclose(packed, torch.cat(alone), atol=2e-5)
