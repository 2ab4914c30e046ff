"""The lab's training loop: a killed run ends in the same numbers, another run's state is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.lab.loop import Pace, Trained, train
from training.muon import Muon, orthogonalised

PACE = Pace(steps=12, matrix_rate=0.05, vector_rate=0.01, warmup=2, probes=4, save_every_s=0.0)


class Killed(Exception):
    pass


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _loss_of(model: nn.Module) -> Callable[[int], Tensor]:
    def loss(step: int) -> Tensor:
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        return (model(x) - x[:, :3].cumsum(dim=-1)).square().mean()

    return loss


def _run(folder: Path, *, killed_at: int | None = None, **facts: object) -> tuple[nn.Module, Trained]:
    model = _model()
    loss_of = _loss_of(model)

    def loss(step: int) -> Tensor:
        if step == killed_at:
            raise Killed
        return loss_of(step)

    made = train(model, loss, lambda: {"held_out": float(loss_of(1000))}, PACE, folder, facts=facts, label="test")
    return model, made


@pytest.mark.parametrize("killed_at", [1, 3, 7, 11])
def test_a_killed_run_ends_as_one_that_was_not(tmp_path: Path, killed_at: int) -> None:
    whole, made = _run(tmp_path / "whole")
    with pytest.raises(Killed):
        _run(tmp_path / "killed", killed_at=killed_at)
    resumed, again = _run(tmp_path / "killed")
    assert again.curve == made.curve
    for mine, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    _, made = _run(tmp_path)
    _, again = _run(tmp_path, killed_at=0)
    assert again.curve == made.curve


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    _run(tmp_path, seed=0)
    with pytest.raises(ValueError, match="made with"):
        _run(tmp_path, seed=1)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    model = _model()
    with pytest.raises(FloatingPointError, match="step 0"):
        train(
            model,
            lambda _step: model(torch.zeros(1, 6)).sum() * torch.nan,
            dict,
            PACE,
            tmp_path,
            facts={},
            label="test",
        )


def test_the_curve_has_the_steps_it_was_asked_for_and_falls(tmp_path: Path) -> None:
    _, made = _run(tmp_path)
    assert [point["step"] for point in made.curve] == [3, 6, 9, 12]
    assert made.curve[-1]["held_out"] < made.curve[0]["held_out"]


def test_orthogonalised_matrices_have_singular_values_near_one_and_keep_their_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 12, 12), (2, 20, 8), (2, 8, 20)):
        matrices = torch.randn(shape, generator=generator)
        made = orthogonalised(matrices)
        values = torch.linalg.svdvals(made)
        assert 0.3 < float(values.min()) < float(values.max()) < 1.3
        u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
        turned = u.transpose(1, 2) @ made @ vh.transpose(1, 2)
        off = turned - torch.diag_embed(torch.diagonal(turned, dim1=1, dim2=2))
        assert float(off.abs().max()) < 1e-4


def test_muon_treats_matrices_of_one_shape_as_if_each_were_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(3, 6, 4, generator=generator)
    together = [nn.Parameter(torch.ones(6, 4)) for _ in range(3)]
    alone = [nn.Parameter(torch.ones(6, 4)) for _ in range(3)]
    optimizers = [Muon(together, lr=0.1), *(Muon([p], lr=0.1) for p in alone)]
    for _ in range(2):
        for parameter, grad in zip((*together, *alone), (*grads, *grads), strict=True):
            parameter.grad = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(mine, theirs)
