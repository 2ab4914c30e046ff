"""CUDA graphs of passes: one recording per step size, replayed with new inputs in the same memory.

A step's tokens, sequences and pages are rounded up to tiers. The padding is a sequence of its own
that reads and writes a spare page. Launching a pass is then one call, whatever the number of
layers. Passes that cannot be recorded run directly: long prompts, models that copy to the host,
builds that refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog
import torch
from torch import Tensor

from verify_service.kernels import Kernel
from verify_service.paged_plan import Arrays, PlanShape, arrays_of, exact_shape
from verify_service.plan import PassPlan, Segment

log = structlog.get_logger("dspark.verify")

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
PAGES = (4, 8, 16, 32, 64, 128, 256, 512)
QUERIES = (1, 8, 16, 72)  # per sequence
MOST_GRAPHS = 64  # all in one memory pool
# How often another shape has to be asked for before it takes the place of the one that was not
# used for longest: to record takes longer than many passes without a recording.
ASKED = 16
AT_START = 40  # of them recorded at start; the rest is room for longer contexts
BLOCK = 8  # tokens of a sequence that verifies a whole block


def tier(count: int, tiers: Sequence[int]) -> int:
    """The smallest tier that is at least `count`; 0 beyond the last."""
    return next((each for each in tiers if each >= count), 0)


def padded(exact: PlanShape) -> PlanShape | None:
    """The shape of the recording for passes of this shape, or None if it exceeds the tiers."""
    tokens = tier(exact.tokens, TOKENS)
    # Padding tokens need a sequence of their own.
    sequences = tier(exact.sequences + (tokens > exact.tokens), SEQUENCES)
    shape = PlanShape(tokens, sequences, tier(exact.pages, PAGES), tier(exact.queries, QUERIES))
    return shape if all(shape) else None


def shapes_at_start(sequences: int, tokens: int, page_size: int) -> list[PlanShape]:
    """Shapes of rounds of up to this many sequences and tokens, smallest first: plain rounds and
    whole blocks, in contexts of up to about a thousand tokens."""
    few = tier(-(-1024 // page_size), PAGES) or PAGES[-1]
    pages = [each for each in PAGES if each <= few][-2:]
    rounds = [
        PlanShape(count * each, count, most, each)
        for count in SEQUENCES
        for each in (1, BLOCK)
        for most in pages
        if count <= sequences and count * each <= tokens
    ]
    found = dict.fromkeys(padded(exact) for exact in rounds)
    return [shape for shape in found if shape is not None][:AT_START]


class _Recording:
    """One graph and the memory it reads and writes."""

    def __init__(self, made: Arrays, device: torch.device) -> None:
        self.inputs = made.on(device)
        self.graph = torch.cuda.CUDAGraph()
        self.outputs: tuple[Tensor, Tensor | None] | None = None

    def fill(self, made: Arrays) -> None:
        """Copies the inputs of a pass to the device without waiting."""
        for target, source in zip(self.inputs, made, strict=True):
            target.copy_(torch.from_numpy(source).pin_memory(), non_blocking=True)


class Graphs:
    """Recordings by shape, MOST_GRAPHS at most."""

    def __init__(
        self,
        forward: Callable[[PassPlan], tuple[Tensor, Tensor | None]],
        kernel: Kernel,
        page_size: int,
        spare_page: int,
        device: torch.device,
    ) -> None:
        self._forward, self._kernel, self._page_size = forward, kernel, page_size
        self._spare_page, self._device = spare_page, device
        self._made: dict[PlanShape, _Recording] = {}  # last used last
        self._asked: Counter[PlanShape] = Counter()  # of shapes that found no place
        # memory shared by all recordings, as one is replayed at a time; kept by stream
        self._pool: Any = None
        self._side: Any = None
        self._refused: set[PlanShape] = set()

    def run(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor | None] | None:
        """Logits [T, V] and taps of every token, valid until the next call; None if the pass cannot
        be replayed."""
        exact = exact_shape(segments, self._page_size)
        shape = padded(exact)
        if shape is None or not self._may_record(shape):
            return None
        recording = self._made.pop(shape, None)
        if recording is not None:
            self._made[shape] = recording
        elif self._finds_place(shape):
            recording = self._record(shape, segments)
        if recording is None or recording.outputs is None:
            return None
        recording.fill(arrays_of(segments, shape, self._page_size, self._spare_page))
        recording.graph.replay()
        logits, taps = recording.outputs
        return logits[: exact.tokens], taps[: exact.tokens] if taps is not None else None

    def prepare(self, sequences: int, tokens: int) -> None:
        """Records `shapes_at_start` for this many sequences and tokens, on the spare page."""
        first = self._spare_page * self._page_size
        nobody = [Segment(0, 0, [0], range(first, first + 1))]
        for shape in shapes_at_start(sequences, tokens, self._page_size):
            if shape not in self._made and self._may_record(shape):
                self._record(shape, nobody)
        log.info("graphs.recorded", shapes=len(self._made))

    def forget(self) -> None:
        """Drops all recordings before the memory they use is freed."""
        self._made.clear()
        self._refused.clear()
        # without recordings the library refuses the handle of the old pool
        self._pool = None

    def _may_record(self, shape: PlanShape) -> bool:
        """False for a shape that was refused, and for any where nothing but refusals was seen: then
        it is the model or the build that cannot be recorded, not a shape that found no memory."""
        return shape not in self._refused and bool(self._made or not self._refused)

    def _finds_place(self, shape: PlanShape) -> bool:
        """Whether there is room for one more recording, or this shape was asked for often enough
        to take another one's."""
        if len(self._made) < MOST_GRAPHS:
            return True
        self._asked[shape] += 1
        return self._asked[shape] % ASKED == 0

    def _record(self, shape: PlanShape, segments: Sequence[Segment]) -> _Recording | None:
        if len(self._made) >= MOST_GRAPHS:
            del self._made[next(iter(self._made))]
        made = arrays_of(segments, shape, self._page_size, self._spare_page)
        recording = _Recording(made, self._device)
        plan = partial(recording.inputs.plan, shape, self._kernel, self._page_size)
        try:
            self._side = side = self._side or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            before = torch.cuda.current_stream(self._device)
            side.wait_stream(before)
            with torch.cuda.stream(side):  # kernels tune and allocate before the recording
                self._forward(plan())
            before.wait_stream(side)
            # "thread_local": the thread that owns sequences uses the device meanwhile.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            pool, mode = self._pool, "thread_local"
            with (
                torch.cuda.stream(before),  # which a recording that fails would not put back
                torch.cuda.graph(recording.graph, pool, side, capture_error_mode=mode),
            ):
                recording.outputs = self._forward(plan())
        except RuntimeError as error:
            self._refused.add(shape)
            log.warning("graphs.refused", shape=tuple(shape), reason=str(error)[:200])
            return None
        self._made[shape] = recording
        return recording
