"""The workers of a run: alone, or one of several that hold the same drafter and share every step.

Several workers add up: gradients of the numerators, denominators and logged sums. Nothing is averaged, so the workers'
number changes rounding and nothing else. Launchers make the process group; this file only uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as distributed
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One worker's place."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def of_process_group() -> WorkerGroup:
        """The place in the group of this process, alone where there is none."""
        if not distributed.is_available() or not distributed.is_initialized():
            return WorkerGroup()
        return WorkerGroup(distributed.get_rank(), distributed.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this worker writes what is written once."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all workers, in place."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every gradient becomes the sum over all workers; one message for all of them."""
        if self.size == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        # A worker whose rows did not reach a parameter still has to take part.
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        whole = self.add(torch.cat([grad.flatten() for grad in grads]))
        for parameter, part in zip(trained, torch.split(whole, [p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def wait(self) -> None:
        """Until every worker is here."""
        if self.size > 1:
            distributed.barrier()
