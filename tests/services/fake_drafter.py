"""A drafter of the tests' own, which greets and answers as it is told, and its lies."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import numpy as np

from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2

INCARNATION = 77
Said = draft_pb2.Blocks | draft_pb2.RoundsWelcome
Reply = Callable[[draft_pb2.Order], list[Said] | None]  # None ends the stream, [] stays silent


def welcome(name: str, incarnation: int = INCARNATION) -> draft_pb2.RoundsWelcome:
    return draft_pb2.RoundsWelcome(incarnation=incarnation, drafter_version=name)


EVENTS = {"Blocks": "blocks", "ContextOpened": "opened", "RoundsWelcome": "welcome"}


def event(
    said: draft_pb2.Blocks | draft_pb2.ContextOpened | draft_pb2.RoundsWelcome,
) -> draft_pb2.RoundsEvent:
    fields: dict[str, Any] = {EVENTS[type(said).__name__]: said}
    return draft_pb2.RoundsEvent(**fields)


class ThreadedDrafter(draft_pb2_grpc.DraftServicer):
    """It greets with its name and says what a test puts into `said`; until None, to everybody.
    rounds_port: where it says its rounds are; 0: where everything else is."""

    incarnation = INCARNATION

    def __init__(self, name: str = "fake", rounds_port: int = 0) -> None:
        self.said: queue.SimpleQueue[draft_pb2.Blocks | draft_pb2.ContextOpened | None]
        self.said, self._name, self._rounds_port = queue.SimpleQueue(), name, rounds_port
        self._server = grpc.server(ThreadPoolExecutor(4))
        draft_pb2_grpc.add_DraftServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"127.0.0.1:{self.port}"
        self._server.start()

    def Describe(
        self, request: types_pb2.DescribeRequest, context: Any
    ) -> draft_pb2.DrafterDescription:
        return draft_pb2.DrafterDescription(incarnation=INCARNATION, rounds_port=self._rounds_port)

    def Rounds(self, request_iterator: Any, context: Any) -> Iterator[draft_pb2.RoundsEvent]:
        yield event(welcome(self._name))
        while (said := self.said.get()) is not None:
            yield event(said)
        self.said.put(None)

    def stop(self, *_: object) -> None:
        self.said.put(None)
        self._server.stop(0)

    def __enter__(self) -> Self:
        return self

    __exit__ = stop


class FakeDrafter(ThreadedDrafter):
    """It opens every context, and replies to orders."""

    def __init__(self, reply: Reply) -> None:
        self.reply, self.greets, self.orders = reply, True, 0
        super().__init__()

    def Rounds(self, request_iterator: Any, context: Any) -> Iterator[draft_pb2.RoundsEvent]:
        for command in request_iterator:
            match command.WhichOneof("command"):
                case "hello" if self.greets:
                    yield event(welcome("fake"))
                case "open":
                    told = command.open
                    yield event(draft_pb2.ContextOpened(sequence=told.sequence, epoch=told.epoch))
                case "order":
                    self.orders += 1
                    if (said := self.reply(command.order)) is None:
                        return
                    yield from map(event, said)


def sound(order: draft_pb2.Order, /, **changes: Any) -> draft_pb2.Blocks:
    """One slot of token 1 for each sequence, as an honest drafter of sampled laws might say it."""
    n = len(order.sequence)
    fields: dict[str, Any] = {
        "order": order.order,
        "lengths": [1] * n,
        "token_ids": [1] * n,
        "confidence": [0.5] * n,
        "q_entries": [2] * n,
        "q_ids": np.array([1, 2] * n, "<u4").tobytes(),
        "q_probs": np.array([0.5, 0.5] * n, "<f4").tobytes(),
        "empty_reasons": [0] * n,
        "watermarks": [length - 1 for length in order.committed_len],
        "forward_ns": 1000,
    }
    return draft_pb2.Blocks(**{**fields, **changes})


def lying(change: Callable[[int], dict[str, Any]]) -> Reply:
    """Changes fields of sound blocks, by how many sequences are asked for."""
    return lambda order: [sound(order, **change(len(order.sequence)))]


LIES: dict[str, Reply] = {
    "honest": lambda order: [sound(order)],
    "an order that nobody gave": lambda order: [sound(order, order=order.order + 1_000_000)],
    "twice": lambda order: [sound(order), sound(order)],
    "too few rows": lying(lambda n: {"lengths": []}),
    "columns that do not fit": lying(lambda n: {"token_ids": [1] * 100}),
    "no watermarks": lying(lambda n: {"watermarks": []}),
    "watermarks ahead": lying(lambda n: {"watermarks": [1 << 30] * n}),
    "an id beyond the vocabulary": lying(lambda n: {"token_ids": [1 << 31] * n}),
    "a confidence that is none": lying(lambda n: {"confidence": [float("nan")] * n}),
    "more slots than were asked for": lying(
        lambda n: {
            "lengths": [9] * n,
            "token_ids": [1] * 9 * n,
            "confidence": [1.0] * 9 * n,
            "q_ids": np.array([1, 2] * 9 * n, "<u4").tobytes(),
            "q_probs": np.array([0.5, 0.5] * 9 * n, "<f4").tobytes(),
        }
    ),
    "no distributions": lying(lambda n: {"q_entries": [0] * n, "q_ids": b"", "q_probs": b""}),
    "no distribution of what was drafted": lying(lambda n: {"token_ids": [3] * n}),
    "chances that miss one": lying(
        lambda n: {"q_probs": np.array([0.5, 0.1] * n, "<f4").tobytes()}
    ),
    "chances that are none": lying(
        lambda n: {"q_probs": np.array([np.nan, 1.0] * n, "<f4").tobytes()}
    ),
    "bytes that are missing": lying(lambda n: {"q_ids": b""}),
    "nothing at all": lambda order: [draft_pb2.Blocks()],
    "the end of its stream": lambda order: None,
    "the greeting of another process": lambda order: [welcome("another", incarnation=5)],
}
