"""Row 25: how well packet sizes and times of an encrypted answer tell which of fifty questions was
asked.

The tiny pair answers fifty prompts over TLS, in random order, as it does by default and under a
pace. Somebody on the wire learns from sizes and times of some answers and guesses the others; two
in a hundred is chance. Temperature 0 and drafts of one length, so that a question accepts the same
tokens each time it is asked, however busy the machine is: best for whoever listens. Plain packets
must give questions away, or the listener was too weak to say anything of the pace. The size of the
question itself is the client's to hide and is left out.
"""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.row import note
from dspark.client import AsyncClient
from dspark.loadgen.prompts import built_in
from tests.faults.eavesdropper import Trace, features, guess, listen
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.secured_cell import SecuredCell
from tests.faults.streams import Stream
from tests.faults.tcp_proxy import TcpProxy

QUESTIONS, TOKENS, AT_ONCE = 50, 32, 3
ASKED: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0.0, "policy": "fixed:3"}
ASKED |= {"ignore_eos": False, "timeout": 60.0}
TRACES = 15  # of each question, of which a third is guessed
MOST, LEAST_PLAIN = 0.04, 0.5
PACE = {"pace_interval_ms": 50.0, "pace_frame_bytes": 1024, "pace_tokens_per_s": 32.0}


def rows(args: Args) -> Rows:
    prompts = [question.prompt for question in built_in()][:QUESTIONS]
    plain, paced = _mode(prompts, {}), _mode(prompts, PACE)
    value = {
        "plain_accuracy": plain["accuracy"],
        "paced_accuracy": paced["accuracy"],
        "chance": 1 / QUESTIONS,
        "guesses": plain["guesses"],
        "bytes_per_token": [plain["bytes_per_token"], paced["bytes_per_token"]],
        "answer_s": [plain["answer_s"], paced["answer_s"]],
        "first_token_ms": [plain["first_token_ms"], paced["first_token_ms"]],
    }
    bars = {
        f"accuracy <= {MOST:.0%} at chance {1 / QUESTIONS:.0%}": paced["accuracy"] <= MOST,
        f"where plain packets give >= {LEAST_PLAIN:.0%} away": plain["accuracy"] >= LEAST_PLAIN,
    }
    name = "under a pace, packets of an answer tell nothing of the question"
    yield statement("25", name, value, bars)


@dataclass(frozen=True)
class Heard:
    """An answer: of which question, its packets, what its client saw, and its seconds."""

    label: int
    trace: Trace
    stream: Stream
    first_s: float
    lasted_s: float


def _mode(prompts: list[Any], pace: dict[str, float]) -> dict[str, Any]:
    with SecuredCell(coordinator=pace) as cell:
        heard = asyncio.run(_listen(cell, prompts))
    rows = np.array([features(each.trace) for each in heard])
    labels = np.array([each.label for each in heard])
    share = len(rows) // 3
    accuracy = guess(rows[share:], labels[share:], rows[:share], labels[:share])
    note(f"{'paced' if pace else 'plain'}: {accuracy:.1%}")
    sent = sum(size for each in heard for _, size in each.trace)
    return {
        "accuracy": round(accuracy, 4),
        "guesses": share,
        "bytes_per_token": round(sent / sum(len(each.stream.ids) for each in heard)),
        "answer_s": round(float(np.median([each.lasted_s for each in heard])), 3),
        "first_token_ms": round(1e3 * float(np.median([each.first_s for each in heard])), 1),
    }


async def _listen(cell: SecuredCell, prompts: list[Any]) -> list[Heard]:
    asked = [label for label in range(len(prompts)) for _ in range(TRACES)]
    random.Random(25).shuffle(asked)
    heard: list[Heard] = []

    async def ask(client: AsyncClient, wire: TcpProxy, label: int) -> Heard:
        trace, stream, began = listen(wire), Stream(prompts[label], ASKED), time.monotonic()
        await stream.run(client)
        assert stream.error is None, stream.error
        return Heard(
            label, trace, stream, (stream.times or [began])[0] - began, time.monotonic() - began
        )

    async def one() -> None:
        tls = cell.authority.tls("client-acme")
        # as its certificate says
        with contextlib.closing(TcpProxy("wire", cell.endpoint, "127.0.0.1")) as wire:
            async with AsyncClient(wire.endpoint, token=cell.tenants["acme"], tls=tls) as client:
                await ask(client, wire, 0)  # the connection, and what its headers learn
                while asked:
                    heard.append(await ask(client, wire, asked.pop()))

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return heard
