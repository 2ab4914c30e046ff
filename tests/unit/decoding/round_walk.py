"""The exact joint law of what a `RoundLoop` reports for several sequences, over every block and
every coin.

`walk` drives a real loop: prompts, blocks and passes branch into all their outcomes, and loops that
stand alike are one state, whose probabilities add up. The coordinator beside it plans by what was
reported, one report late where the loop may run ahead. A `Setting` can plan while a block is on its
way, or settle a sequence for what its pass is about to say: a sound loop is exact under both.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from dspark.rounds.events import (
    Acknowledged,
    Action,
    Admit,
    BlocksCame,
    PassEnded,
    Prefill,
    Prefilled,
    Release,
    Released,
    ReleaseMode,
    Report,
    RoundReport,
    RunPass,
    SendOrder,
    Told,
)
from dspark.rounds.loop import RoundLoop
from dspark.rounds.plan import Plan
from dspark.types import Verdict
from tests.unit.decoding.enumeration import Rounds, Tokens, spread

Confidences = tuple[tuple[float, ...], ...]
DRAFTER = 1


class Endless:
    """Pages for everybody."""

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        return slots

    def free(self, sequence: int, epoch: int) -> None: ...


@dataclass(frozen=True)
class Setting:
    """first: the plan in force at the beginning. then: the next one, by the confidences of a
    report's rows."""

    first: Plan
    then: Callable[[Confidences], Plan]
    # a plan that knows the block it comes before
    meanwhile: Callable[[Confidences], Plan] | None = None
    # whether a sequence is taken away while its pass says so many tokens
    settles: Callable[[int], bool] = lambda count: False


@dataclass
class Stand:
    """A loop that knows lengths only, and what it waits for. Never changed once it is made."""

    loop: RoundLoop
    lengths: list[int]  # tokens said so far
    epochs: list[int]
    prefills: list[int] = field(default_factory=list)  # places of sequences
    order: SendOrder | None = None
    run: RunPass | None = None
    # what the coordinator will say after the next report
    late: list[Told | Plan] = field(default_factory=list)

    def key(self) -> tuple[object, ...]:
        lives = [self.loop.sequence(place) for place in range(len(self.lengths))]
        stands = [
            None if s is None else (s.state, s.ahead, s.ordered_len, s.drafter, s.epoch)
            for s in lives
        ]
        plans = [each.terms for each in (self.loop.plan, *self.late) if isinstance(each, Plan)]
        ordered = self.order and tuple((row.sequence, row.slots) for row in self.order.rows)
        run = self.run and tuple((row.sequence, row.answer, row.prefix) for row in self.run.rows)
        places = (*self.lengths, *self.epochs, *self.prefills, len(self.late))
        return (places, tuple(stands), tuple(plans), ordered, run)


Key = tuple[object, ...]
State = tuple[Key, tuple[Tokens, ...]]  # where the loop stands, and what was said


class Walk:
    """Of one law per sequence."""

    def __init__(
        self, laws: Sequence[Rounds], setting: Setting, loop: Callable[[], RoundLoop]
    ) -> None:
        self._laws, self._setting = laws, setting
        self._horizons = [law.world.horizon for law in laws]
        self._loop = loop
        self._stands: dict[Key, Stand] = {}
        self._known: dict[Key, Key] = {}
        self.prefixes: set[int] = set()

    def run(self) -> dict[tuple[Tokens, ...], float]:
        """Probability of what all sequences said, each of them up to its horizon."""
        count = len(self._laws)
        first = Stand(self._loop(), [0] * count, [0] * count)
        self._tell(
            first, self._setting.first, *(self._admit(first, place) for place in range(count))
        )
        begun: tuple[Key, tuple[Tokens, ...]] = self._keep(first), ((),) * count
        ended = spread(
            begun,
            self._expand,
            over=lambda state: [*map(len, state[1])] == self._horizons,
            order=lambda state: (sum(map(len, state[1])), sum(self._stands[state[0]].epochs)),
        )
        law: dict[tuple[Tokens, ...], float] = {}
        for (_, said), chance in ended.items():
            law[said] = law.get(said, 0.0) + chance
        return law

    def _keep(self, stand: Stand) -> Key:
        key = stand.key()
        self._stands.setdefault(key, stand)
        return key

    def _moved(self, key: Key, what: Key, move: Callable[[Stand], None]) -> Key:
        """Where a stand comes to by a move that has this name."""
        name = (key, what)
        if name not in self._known:
            after = deepcopy(self._stands[key])
            move(after)
            self._known[name] = self._keep(after)
        return self._known[name]

    # The coordinator.

    def _admit(self, stand: Stand, place: int) -> Admit:
        said = stand.lengths[place]
        return Admit(
            place, stand.epochs[place], 1 + said, self._horizons[place] - said, frozenset(), DRAFTER
        )

    def _tell(self, stand: Stand, *told: Told | Plan) -> None:
        actions = stand.loop.feed_all(told, 0.0)
        rounds = [
            each for action in actions if isinstance(action, Report) for each in action.rounds
        ]
        for action in actions:
            self._carry_out(stand, action)
        if rounds:
            self._coordinate(stand, rounds)

    def _carry_out(self, stand: Stand, action: Action) -> None:
        match action:
            case Prefill(sequence):
                stand.prefills.append(sequence)
            case SendOrder():
                assert stand.order is None
                stand.order = action
            case RunPass():
                assert stand.run is None
                stand.run = action
                self.prefixes.update(row.prefix for row in action.rows)
            case Report(rounds=rounds):
                for each in rounds:
                    stand.lengths[each.sequence] += len(each.tokens)
            case Released(sequence):
                stand.epochs[sequence] += 1

    def _coordinate(self, stand: Stand, rounds: Sequence[RoundReport]) -> None:
        """Acknowledges, and plans anew, at once in lockstep and else one report late."""
        now: list[Told | Plan] = [
            Acknowledged(each.sequence, each.epoch, each.round) for each in rounds
        ]
        drafted = tuple(tuple(each.confidence) for each in rounds if each.confidence)
        if drafted:
            now.append(self._setting.then(drafted))
        if stand.loop.plan.window:
            now, stand.late = stand.late, now
        self._tell(stand, *now)

    # What could happen.

    def _expand(self, state: State) -> Iterator[tuple[State, float]]:
        key, said = state
        stand = self._stands[key]
        if stand.prefills:
            yield from self._prefill(key, said)
        elif stand.run is not None:
            yield from self._judge(key, said, {}, 1.0)
        elif stand.order is not None:
            yield from self._draft(key, said, stand.order)
        else:
            yield (self._moved(key, ("wait",), self._wait), said), 1.0

    def _wait(self, stand: Stand) -> None:
        """Nothing is under way: what was held back is said, and who was released comes again."""
        late, stand.late = stand.late, []
        short = [place for place, most in enumerate(self._horizons) if stand.lengths[place] < most]
        gone = [place for place in short if stand.loop.sequence(place) is None]
        assert late or gone, "nobody goes on"
        self._tell(stand, *late, *(self._admit(stand, place) for place in gone))

    def _prefill(self, key: Key, said: tuple[Tokens, ...]) -> Iterator[tuple[State, float]]:
        """Every token that prompts could be followed by."""
        stand = self._stands[key]

        def move(after: Stand) -> None:
            after.prefills = []
            self._tell(
                after, *(Prefilled(place, after.epochs[place], 0) for place in stand.prefills)
            )

        moved = self._moved(key, ("prefilled",), move)
        for firsts in itertools.product(
            *(self._laws[place].outcomes(said[place], ()) for place in stand.prefills)
        ):
            after = list(said)
            for place, (tokens, _) in zip(stand.prefills, firsts, strict=True):
                after[place] += tokens
            yield (moved, tuple(after)), math.prod(part for _, part in firsts)

    def _draft(
        self, key: Key, said: tuple[Tokens, ...], order: SendOrder
    ) -> Iterator[tuple[State, float]]:
        """Every block."""
        places = [row.sequence for row in order.rows]
        for drafts in itertools.product(
            *(self._laws[place].blocks(said[place]) for place in places)
        ):
            sure = tuple(
                draft[2][: row.slots] for row, draft in zip(order.rows, drafts, strict=True)
            )

            def move(after: Stand, sure: Confidences = sure) -> None:
                after.order = None
                if self._setting.meanwhile is not None:
                    self._tell(after, self._setting.meanwhile(sure))
                held = [row.committed_len - 1 for row in order.rows]
                self._tell(after, BlocksCame(order.order, sure, held, answer=True))

            chance = math.prod(draft[1] for draft in drafts)
            blocks = {place: draft[0] for place, draft in zip(places, drafts, strict=True)}
            yield from self._judge(self._moved(key, sure, move), said, blocks, chance)

    def _judge(
        self, key: Key, said: tuple[Tokens, ...], blocks: dict[int, Tokens], chance: float
    ) -> Iterator[tuple[State, float]]:
        """Everything a pass could say."""
        stand = self._stands[key]
        run = stand.run
        assert run is not None
        outcomes = [
            list(
                self._laws[row.sequence].outcomes(
                    said[row.sequence], blocks.get(row.sequence, ())[: row.prefix]
                )
            )
            for row in run.rows
        ]
        for drawn in itertools.product(*outcomes):
            share = chance * math.prod(part for _, part in drawn)
            if share == 0.0:
                continue
            lengths = tuple(len(tokens) for tokens, _ in drawn)

            def move(after: Stand, lengths: tuple[int, ...] = lengths) -> None:
                after.run = None
                for row, count in zip(run.rows, lengths, strict=True):
                    if row.epoch == 0 and self._setting.settles(count):
                        self._tell(after, Release(row.sequence, row.epoch, ReleaseMode.SETTLE))
                drawn = [Verdict((0,) * count) for count in lengths]
                self._tell(after, PassEnded(run.number, drawn))

            moved = self._moved(key, lengths, move)
            after = list(said)
            for row, (tokens, _) in zip(run.rows, drawn, strict=True):
                place = row.sequence
                after[place] += tokens[: self._stands[moved].lengths[place] - stand.lengths[place]]
            yield (moved, tuple(after)), share
