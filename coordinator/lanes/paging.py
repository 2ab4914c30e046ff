"""Who fits into a page pool that is handed out as sequences grow, and who makes room when it runs out. Pure.

Sequences are taken in by what is in use, not by the longest they may become: most end long before. When one that is
running finds no page, the youngest is taken out and begins again later, with everything it has said; so the oldest
always goes on, and everybody becomes the oldest some day.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.lanes.request_state import RequestState

GROWTH = 64  # tokens that each running sequence may add before a new one counts; spares most preemptions


def pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def soon_held(track: RequestState, page_size: int) -> int:
    """Pages of a sequence, some rounds from now."""
    return pages(min(len(track.answer.log) + GROWTH, track.request.longest), page_size)


def fits(track: RequestState, running: Iterable[RequestState], *, page_size: int, pages_total: int) -> bool:
    """Whether one more may come in beside those that run."""
    held = [soon_held(each, page_size) for each in running]
    if not held:
        return pages(track.request.longest, page_size) <= pages_total
    return sum(held) + soon_held(track, page_size) <= pages_total


def youngest(running: Iterable[RequestState]) -> RequestState | None:
    """Who makes room: the last to come, by its number, which it keeps however often it begins again."""
    return max(running, key=lambda track: track.sequence.number, default=None)
