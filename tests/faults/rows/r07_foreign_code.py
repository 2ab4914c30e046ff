"""Row 7: nothing that comes over the network is unpickled, compiled or run.

An audit hook in every process of a cell notes it, while requests, malformed messages, pickles in
every bytes field and a hand-over go on; that no source has calls that could is for
`tests/test_rooms.py`. Ray's own processes live on pickles, which is why they are no part of the
path of a request, and are not looked at here.
"""

import asyncio
import pickle
from typing import Any

from benchmarks.row import note
from tests.faults.attack import attack
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.watch import Watch


class _Bomb:
    """Unpickling it is noticed; it harms nobody."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("unpickled",)


def rows(args: Args) -> Rows:
    with Watch() as watch, FaultCell(verifiers=2, coordinator={"http": "127.0.0.1:0"}) as cell:
        noticed = len(watch.events())  # of the start, unpickling only
        with cell.client() as client:
            for policy in ("adaptive", "off"):  # what a first request imports
                client.complete([5, 9], max_tokens=8, policy=policy, ignore_eos=True)
        watch.arm()
        asyncio.run(attack(cell, 2_000))
        with cell.client() as client:
            bombs = bomb_everywhere(client)
            stream = client.generate([5, 9, 17], max_tokens=300, ignore_eos=True)
            next(iter(stream))
            cell.kill("verify/0")
            left = sum(len(event.token_ids) for event in stream)
        events = watch.events()
    value = {
        "events": len(events),
        "at_start": noticed,
        "what": events[:5],
        "pickles_sent": bombs,
        "tokens_after_a_hand_over": left,
    }
    bars = {"0 events in any process": not events and left > 100}
    yield statement("7", "no foreign code, no pickle", value, bars)


def bomb_everywhere(client: Any) -> int:
    """Pickles in place of text and ids, through the front door."""
    bomb = pickle.dumps(_Bomb())
    sent = 0
    for text in (
        bomb.decode("latin-1"),
        "!!python/object/apply:os.system ['true']",
        "__import__('os').getpid()",
    ):
        for options in ({"stop": [text]}, {"policy": text}, {"rule": text}, {"request_id": text}):
            sent += 1
            try:
                client.complete([5, 9], max_tokens=2, timeout=20.0, **options)
            except Exception as error:  # any refusal will do
                note(f"{type(error).__name__}")
    return sent
