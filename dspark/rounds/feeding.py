"""Decides which drafter holds a sequence's context, and which feature rows it is sent. Pure.

A drafter's state is soft (invariant R10): losing it costs drafts, and nothing else. Invariant R11:
rows travel without a gap, a few with the order and many over the bulk stream; while some are
missing the sequence goes without drafts. Rows are sent once drafts are planned: where they do not
pay, nearly all would be of no use, and sending them takes time from passes. A sequence changes its
drafter between rounds, once the new one has its rows; until then the old one drafts.
"""

from __future__ import annotations

from collections.abc import Callable

from dspark.rounds.events import Action, CloseAtDrafter, DrafterReady, OpenAtDrafter, SendRows
from dspark.rounds.state import PREFILL, SequenceState

Ask = Callable[[Action], object]


def name(sequence: SequenceState, drafter: int, most: int, ask: Ask, *, drafts: bool) -> None:
    """Names the drafter to use, 0 for none. It is prepared if drafts are planned; else another one
    is closed, and it is prepared once they are."""
    sequence.named = drafter
    if drafts or drafter in (sequence.drafter, sequence.feeding):
        feed_by(sequence, drafter, most, ask)
    else:
        close(sequence, ask)


def feed_by(sequence: SequenceState, drafter: int, most: int, ask: Ask) -> None:
    """Prepares another drafter for a sequence; 0 closes it at every drafter."""
    if drafter == sequence.drafter:
        _stop_feeding(sequence, ask)
    elif drafter == 0:
        close(sequence, ask)
    elif drafter != sequence.feeding:
        _stop_feeding(sequence, ask)
        sequence.feeding = drafter
        ask(OpenAtDrafter(drafter, sequence.number, sequence.epoch))
        if sequence.state is not PREFILL:
            send_rows(sequence, 0, most, ask)


def send_rows(sequence: SequenceState, start: int, most: int, ask: Ask) -> None:
    """Sends rows from `start` on to the drafter being fed: with the next order, if they are at most
    `most`, else over the bulk stream."""
    stop = sequence.committed_len - 1
    if stop - start > most:
        ask(SendRows(sequence.feeding, sequence.number, sequence.epoch, start, stop))
    else:
        sequence.ready = (sequence.feeding, start)


def came(sequence: SequenceState, event: DrafterReady) -> bool:
    """Notes that rows arrived at a drafter, which takes over between rounds; False when they are of
    no use any more."""
    wanted = sequence.state is not PREFILL and event.drafter == sequence.feeding
    if not wanted or not 0 <= event.watermark < sequence.committed_len:
        return False
    sequence.ready = (event.drafter, event.watermark)
    return True


def take_over(sequence: SequenceState, most: int, ask: Ask) -> None:
    """Lets a drafter whose rows arrived draft from now on, if at most `most` are missing by now;
    else sends these. Called between rounds."""
    if sequence.ready is None:
        return
    drafter, rows = sequence.ready
    sequence.ready = None
    if sequence.committed_len - 1 - rows > most:
        send_rows(sequence, rows, most, ask)
        return
    if sequence.drafter not in (0, drafter):
        ask(CloseAtDrafter(sequence.drafter, sequence.number, sequence.epoch))
    sequence.drafter, sequence.rows_sent, sequence.feeding = drafter, rows, 0
    sequence.rows_held = rows


def resend(sequence: SequenceState, start: int, most: int, ask: Ask) -> None:
    """Sends its drafter the rows it lacks, from `start` on; there are no drafts until then. If
    another one is about to take over, its drafter is closed instead."""
    if not sequence.drafter:  # closed since its order was sent
        return
    drafter, sequence.drafter = sequence.drafter, 0
    if sequence.feeding:
        ask(CloseAtDrafter(drafter, sequence.number, sequence.epoch))
        return
    sequence.feeding = drafter
    send_rows(sequence, start, most, ask)


def reopen(sequence: SequenceState, most: int, ask: Ask) -> None:
    """Opens the sequence anew at its drafter, which has forgotten it, and sends all rows, unless
    another one is about to take over."""
    drafter, sequence.drafter = sequence.drafter, 0
    if not sequence.feeding:
        feed_by(sequence, drafter, most, ask)


def lost(sequence: SequenceState, drafter: int) -> None:
    """Forgets a drafter that is gone, without a message to it, until it is named again."""
    if sequence.named == drafter:
        sequence.named = 0
    if sequence.drafter == drafter:
        sequence.drafter = 0
    if sequence.feeding == drafter:
        sequence.feeding, sequence.ready = 0, None


def close(sequence: SequenceState, ask: Ask) -> None:
    """Closes the sequence at its drafter and at the one being fed."""
    if sequence.drafter:
        ask(CloseAtDrafter(sequence.drafter, sequence.number, sequence.epoch))
        sequence.drafter = 0
    _stop_feeding(sequence, ask)


def _stop_feeding(sequence: SequenceState, ask: Ask) -> None:
    if sequence.feeding:
        ask(CloseAtDrafter(sequence.feeding, sequence.number, sequence.epoch))
        sequence.feeding, sequence.ready = 0, None
