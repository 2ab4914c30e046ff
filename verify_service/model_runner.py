"""Runs the target over the new tokens of several sequences in one packed pass.

`ModelRunner` is the paged runner, `stateful.StatefulRunner` the fallback if packing is wrong for
the model. Both take the same segments and return the same rows; `path` names the runner. To roll a
sequence back, pass a smaller start next time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dspark.model.target import TargetTaps
from dspark.native.attention import queries_up_to
from dspark.pages import Slots
from verify_service import paged_attention, rotation
from verify_service.graphs import Graphs
from verify_service.kernels import Kernel
from verify_service.kv_pool import KeyValuePool
from verify_service.lean_model import LeanPatch, make_lean
from verify_service.paged_plan import arrays_of, exact_shape
from verify_service.plan import PassPlan, Segment, build_plan, run_of
from verify_service.ranks import Ranks
from verify_service.rotation import LengthRotation


class Pass(NamedTuple):
    """Rows of one pass in the order of the segments' tokens."""

    logits: Tensor  # [R, V] of the requested rows
    taps: Tensor | None  # [T, m*H] of every token, None without taps


class Runner(Protocol):
    """Interface of the engine to the target."""

    path: str  # "paged" or "stateful"
    reason: str  # why the path is not paged; empty if it is
    device: torch.device
    rotation: LengthRotation | None  # only if the model's rotation depends on length

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prompt can reuse what was computed for an earlier one with the same start."""

    @property
    def make(self) -> str:
        """Names the implementation details that determine the time of a pass."""

    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        """Runs new tokens through the target. rows: indices of the tokens whose logits are
        returned; None: all."""

    def release(self, key: Hashable) -> None:
        """Drops the state of a sequence."""

    def fill(self, key: Hashable, slots: Slots | Sequence[int], length: int) -> None:
        """Sets a sequence up as if `length` tokens had run; for timing only."""

    def reset(self) -> None:
        """Frees all memory; only when no sequence holds any."""


class ModelRunner:
    """Runs all segments as one row of tokens over a paged KV pool."""

    path = "paged"
    reason = ""
    shares_prefixes = True

    def __init__(
        self,
        model: Any,
        taps: TargetTaps | None,
        num_slots: int,
        *,
        lean: bool = False,
        kernel: Kernel | None = None,
        page_size: int = 1,
    ) -> None:
        paged_attention.use_in(model)
        self.lean = make_lean(model) if lean else LeanPatch()
        self.device: torch.device = next(model.parameters()).device
        self.slot_page = page_size if kernel is not None else 1  # slots that are contiguous
        self._model, self._taps, self._kernel = model, taps, kernel
        self.rotation = rotation.find(model)
        self._queries = queries_up_to()
        # One page beyond those of sequences, for the padding of recorded passes.
        self._spare_page = num_slots // page_size
        self._pool = KeyValuePool(
            num_slots if kernel is None else num_slots + page_size,
            page_size,
            by_head=self.device.type == "cpu",
        )
        self._page_size = page_size
        self.others: Ranks | None = None  # that run each pass with this one; set once loaded
        self._graphs: Graphs | None = None
        self._asked_to_record = False

    def record_graphs(self) -> None:
        """Turns CUDA graphs on for passes that can be recorded."""
        self._asked_to_record = True
        # A recording would fix the rotation for its own largest position.
        if self._kernel is not None and self.device.type == "cuda" and self.rotation is None:
            self._graphs = Graphs(
                self._forward, self._kernel, self._page_size, self._spare_page, self.device
            )

    @property
    def make(self) -> str:
        """Names what besides the target determines the time of a pass."""
        return (
            f"lean {self.lean.layers}, products {'+'.join(sorted(self.lean.forms))}, "
            f"kernel {self._kernel is not None}, graphs {self._asked_to_record}, layout 8"
            + (f", ranks {self.others.size}" if self.others is not None else "")
        )

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        if self.others is not None:
            with self.others.running(segments, rows):
                return self._run(segments, rows)
        return self._run(segments, rows)

    def _run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        if (
            self._graphs is not None
            and rows is None
            and (replayed := self._graphs.run(segments)) is not None
        ):
            return Pass(*replayed)
        plan = self._plan(segments)
        keep = None if rows is None else torch.tensor(rows, dtype=torch.int64).to(self.device)
        if self.rotation is None:
            return Pass(*self._forward(plan, keep))
        with self.rotation.told(self.rotation.of_tokens(segments)):
            return Pass(*self._forward(plan, keep))

    def _plan(self, segments: Sequence[Segment]) -> PassPlan:
        if self._kernel is None:
            return build_plan(segments, self.device)
        on_cpu, shape = self.device.type == "cpu", exact_shape(segments, self.slot_page)
        if on_cpu and shape.queries > self._queries:
            return build_plan(segments, self.device)
        made = arrays_of(segments, shape, self.slot_page, self._spare_page).on(self.device)
        run = run_of(segments) if on_cpu else None
        return made.plan(shape, self._kernel, self.slot_page, run)

    def _forward(self, plan: PassPlan, keep: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits of the rows in `keep` (None: all) and taps of all tokens."""
        if keep is None:
            keep = torch.arange(plan.slots.shape[0], device=self.device)
        logits = paged_attention.packed_pass(self._model, plan, self._pool, keep).logits[0]
        return logits, self._taps.collect()[0] if self._taps is not None else None

    def release(self, key: Hashable) -> None:
        pass

    @torch.inference_mode()
    def fill(self, key: Hashable, slots: Slots | Sequence[int], length: int) -> None:
        if self.others is not None:
            self.others.fill(slots[:length])
        self._pool.fill(torch.as_tensor(slots[:length], device=self.device))

    @property
    def likes_rows(self) -> bool:
        """Whether a sequence with consecutive slots is cheaper than one without."""
        return self.device.type == "cpu" and self._kernel is None

    @torch.inference_mode()
    def record(self, sequences: int, tokens: int) -> None:
        """Records graphs for rounds up to these sizes, if graphs are on."""
        if self._graphs is not None:
            self._graphs.prepare(sequences, tokens)

    def reset(self) -> None:
        if self.others is not None:
            self.others.reset()
        if self._graphs is not None:
            self._graphs.forget()
        self._pool.reset()
