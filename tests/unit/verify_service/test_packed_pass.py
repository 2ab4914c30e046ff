"""The packed pass equals the library's own attention, whatever is mixed in it and wherever the
pages lie."""

import torch

from dspark.model.checkpoint import LoadedTarget
from tests.architectures.serving import prompt as tokens
from verify_service import self_test
from verify_service.model_runner import ModelRunner
from verify_service.plan import ALONE_FROM, Segment, build_plan

CLOSE = {"rtol": 1e-5, "atol": 1e-4}  # logits of this target reach 15


def alone(target: LoadedTarget, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] by the library's sdpa path."""
    before = target.model.config._attn_implementation
    target.model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    target.model.set_attn_implementation(before)
    return logits


def test_only_the_rows_asked_for_get_logits(target: LoadedTarget) -> None:
    runner = ModelRunner(target.model, None, 256)
    ids = tokens(12, 6)
    assert runner.run([Segment(0, 0, ids[:6], range(6))], []).logits.shape == (0, 128)
    last = runner.run([Segment(0, 6, ids[6:], range(12))], [5]).logits
    torch.testing.assert_close(last, alone(target, ids)[-1:], **CLOSE)


def test_long_contexts_are_viewed_and_short_ones_share_a_gather(target: LoadedTarget) -> None:
    runner = ModelRunner(target.model, None, 4096)
    ids = [tokens(ALONE_FROM + 20, 7), tokens(20, 8), tokens(20, 9)]
    slots = [range(0, 1000), range(1000, 1100), range(1100, 1200)]
    head = [Segment(s, 0, ids[s][:-4], slots[s][: len(ids[s]) - 4]) for s in range(3)]
    tail = [Segment(s, len(ids[s]) - 4, ids[s][-4:], slots[s][: len(ids[s])]) for s in range(3)]
    plan = build_plan(tail, torch.device("cpu"))
    assert [group.members for group in plan.groups] == [1, 2]
    assert plan.groups[0].view is not None
    runner.run(head, [])
    rows = runner.run(tail, None).logits.split(4)
    for s in range(3):
        torch.testing.assert_close(rows[s], alone(target, ids[s])[-4:], **CLOSE)


def test_the_self_test_catches_a_wrong_runner(target: LoadedTarget) -> None:
    cases = self_test.expected(target)

    class Forgetful(ModelRunner):
        """Every chunk starts over, as an engine that loses its cache would."""

        def run(self, segments, rows):
            return super().run([Segment(s.key, 0, s.token_ids, s.slots) for s in segments], rows)

    assert "differ" in (self_test.disagreement(Forgetful(target.model, None, 256), cases) or "")

    class Empty(ModelRunner):
        """Nothing that it says is a number, so nothing is far from what should be said."""

        def run(self, segments, rows):
            ran = super().run(segments, rows)
            return ran._replace(logits=torch.full_like(ran.logits, torch.nan))

    assert "differ" in (self_test.disagreement(Empty(target.model, None, 256), cases) or "")


def test_a_long_prefix_does_not_pad_single_tokens(target: LoadedTarget) -> None:
    """Fifteen single tokens beside one block of sixteen: two calls, and the answer is the same."""
    ids = [tokens(41, seed) for seed in range(16)]
    slots = [[16 * i + s for i in range(60)] for s in range(16)]
    counts = [1] * 15 + [16]
    segments = [
        Segment(s, len(ids[s]) - n, ids[s][-n:], slots[s][: len(ids[s])])
        for s, n in enumerate(counts)
    ]
    plan = build_plan(segments, torch.device("cpu"))
    assert sorted(group.counts for group in plan.groups) == [[1] * 15, [16]]
    runner = ModelRunner(target.model, None, 1024)
    runner.run(
        [Segment(s, 0, ids[s][:-n], slots[s][: len(ids[s]) - n]) for s, n in enumerate(counts)],
        None,
    )
    rows = runner.run(segments, None).logits.split(counts)
    for s, n in enumerate(counts):
        torch.testing.assert_close(rows[s], alone(target, ids[s])[-n:], **CLOSE)


def test_single_tokens_of_like_contexts_share_one_call() -> None:
    segments = [Segment(s, 40 + s, [1], [16 * i + s for i in range(41 + s)]) for s in range(16)]
    assert [len(group.counts) for group in build_plan(segments, torch.device("cpu")).groups] == [16]
