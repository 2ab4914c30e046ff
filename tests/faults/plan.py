"""What becomes of each message: rules that look at it and may say drop, twice, late, swapped or
cut.

A plan of seeded rules is a pure function of the messages it sees, and counts what it did.
"""

import enum
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass


class Action(enum.Enum):
    """What can happen to one message on its way."""

    DROP = "drop"  # it never arrives; its stream goes on
    TWICE = "twice"  # it arrives two times
    LATE = "late"  # it arrives later, and so does what follows it on its stream
    SWAP = "swap"  # what follows it on its stream arrives before it
    CUT = "cut"  # its stream breaks in place of it


@dataclass(frozen=True, slots=True)
class Message:
    source: str  # process that sends it, e.g. "verify/0"
    method: str
    kind: str  # see `boundaries`; "" between a client and the cell
    number: int  # of its kind on this network, from 1


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one message. late_s: seconds on top of the usual way."""

    action: Action | None = None
    late_s: float = 0.0


UNHURT = Fate()
Rule = Callable[[Message], Fate | None]
Tamper = Callable[[Message, bytes], bytes]  # what arrives in place of what was sent


class Plan:
    """The first rule that has something to say decides."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = list(rules)
        self.tampers: list[Tamper] = []
        self.seen: Counter[str] = Counter()
        self.hurt: Counter[tuple[str, Action]] = Counter()

    def meets(self, source: str, method: str, kind: str) -> Message:
        self.seen[kind] += 1
        return Message(source, method, kind, self.seen[kind])

    def fate(self, message: Message) -> Fate:
        for rule in self.rules:
            fate = rule(message)
            if fate is not None and fate.action is not None:
                self.hurt[message.kind, fate.action] += 1
                return fate
        return UNHURT

    def tampered(self, message: Message, data: bytes) -> bytes:
        for tamper in self.tampers:
            data = tamper(message, data)
        return data


def once(kind: str, action: Action, *, at: int = 1, late_s: float = 0.0) -> Rule:
    """Hurts the `at`-th message of a kind, and no other."""

    def rule(message: Message) -> Fate | None:
        return Fate(action, late_s) if (message.kind, message.number) == (kind, at) else None

    return rule


def storm(
    seed: int,
    rate: float,
    *,
    kinds: Collection[str] = (),
    actions: Collection[Action] = tuple(Action),
    late_s: float = 0.05,
) -> Rule:
    """Hurts a share of all internal messages (or of some kinds), each in a random way."""
    draw = random.Random(f"storm/{seed}")
    chosen = sorted(actions, key=lambda action: action.value)

    def rule(message: Message) -> Fate | None:
        hit, action, late = draw.random() < rate, draw.choice(chosen), draw.random() * late_s
        if not hit or (message.kind not in kinds if kinds else not message.kind):
            return None
        return Fate(action, late if action in (Action.LATE, Action.SWAP) else 0.0)

    return rule
