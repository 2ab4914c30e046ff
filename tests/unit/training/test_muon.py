"""Muon: steps of matrices are orthogonal, and those of one shape do not know of each other."""

import torch
from torch import nn

from dspark.training.optimisers import Muon, orthogonalised


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
