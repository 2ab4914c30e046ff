"""CUDA graphs of passes: one recording per step size, replayed with new inputs in the same memory.

A step's tokens, sequences and pages are rounded up to tiers. The padding is a sequence of its own
that reads and writes a spare page. Launching a pass is then one call, whatever the number of
layers. Passes that cannot be recorded run directly: long prompts, models that copy to the host,
builds that refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor

from dspark.native.attention import Tables
from verify_service.kernels import Kernel
from verify_service.paged_plan import Arrays, PlanShape, arrays_of
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


def tier(count: int, tiers: Sequence[int]) -> int | None:
    """The smallest tier that is at least `count`; None beyond the last."""
    return next((each for each in tiers if each >= count), None)


def shape_of(segments: Sequence[Segment], page_size: int) -> PlanShape | None:
    """The shape of the recording for these segments, or None if they exceed the tiers."""
    tokens = sum(len(segment.token_ids) for segment in segments)
    pages = max(-(-segment.length // page_size) for segment in segments)
    most = max(len(segment.token_ids) for segment in segments)
    token_tier = tier(tokens, TOKENS)
    # Padding tokens need a sequence of their own.
    spare = 1 if token_tier is not None and token_tier > tokens else 0
    tiers = (
        token_tier,
        tier(len(segments) + spare, SEQUENCES),
        tier(pages, PAGES),
        tier(most, QUERIES),
    )
    return None if None in tiers else PlanShape(*(each for each in tiers if each is not None))


def shapes_at_start(sequences: int, tokens: int, page_size: int) -> list[PlanShape]:
    """Shapes of rounds of up to this many sequences and tokens, smallest first: plain rounds and
    whole blocks, in contexts of up to about a thousand tokens."""
    few = tier(-(-1024 // page_size), PAGES) or PAGES[-1]
    pages = [each for each in PAGES if each <= few][-2:]
    found: dict[PlanShape, None] = {}
    for count in [each for each in SEQUENCES if each <= sequences]:
        for each in (1, BLOCK):
            size = tier(count * each, TOKENS)
            if size is None or count * each > tokens:
                continue
            with_spare = tier(count + (size > count * each), SEQUENCES)
            most = tier(each, QUERIES)
            if with_spare is not None and most is not None:
                found |= dict.fromkeys(PlanShape(size, with_spare, page, most) for page in pages)
    return list(found)[:AT_START]


class _Recording:
    """One graph and the memory it reads and writes."""

    def __init__(self, shape: PlanShape, device: torch.device) -> None:
        self.rows = torch.zeros(3, shape.tokens, dtype=torch.int64, device=device)
        self.small = torch.zeros(2 * shape.sequences + 1, dtype=torch.int32, device=device)
        self.blocks = torch.zeros(shape.sequences, shape.pages, dtype=torch.int32, device=device)
        self.graph = torch.cuda.CUDAGraph()
        self.outputs: tuple[Tensor, Tensor | None] | None = None

    def plan(self, shape: PlanShape, kernel: Kernel, page_size: int) -> PassPlan:
        cu_q, used_k = self.small[: shape.sequences + 1], self.small[shape.sequences + 1 :]
        tables = Tables(cu_q, used_k, self.blocks, shape.queries, shape.pages * page_size)
        return PassPlan(
            self.rows[0:1], self.rows[1:2], self.rows[2], None, [], tables=tables, kernel=kernel
        )

    def fill(self, made: Arrays) -> None:
        """Copies the inputs of a pass to the device without waiting."""
        small = np.concatenate((made.cu_q, made.used_k)).astype(np.int32)
        for target, source in (
            (self.rows, made.rows),
            (self.small, small),
            (self.blocks, made.blocks.astype(np.int32)),
        ):
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
        shape = shape_of(segments, self._page_size)
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
        tokens = sum(len(segment.token_ids) for segment in segments)
        logits, taps = recording.outputs
        return logits[:tokens], taps[:tokens] if taps is not None else None

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
        recording = _Recording(shape, self._device)
        recording.fill(arrays_of(segments, shape, self._page_size, self._spare_page))
        try:
            self._side = side = self._side or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            before = torch.cuda.current_stream(self._device)
            side.wait_stream(before)
            with torch.cuda.stream(side):  # kernels tune and allocate before the recording
                self._forward(recording.plan(shape, self._kernel, self._page_size))
            before.wait_stream(side)
            # "thread_local": the thread that owns sequences uses the device meanwhile.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            pool, mode = self._pool, "thread_local"
            with (
                torch.cuda.stream(before),  # which a recording that fails would not put back
                torch.cuda.graph(recording.graph, pool, side, capture_error_mode=mode),
            ):
                recording.outputs = self._forward(
                    recording.plan(shape, self._kernel, self._page_size)
                )
        except RuntimeError as error:
            self._refused.add(shape)
            log.warning("graphs.refused", shape=tuple(shape), reason=str(error)[:200])
            return None
        self._made[shape] = recording
        return recording
