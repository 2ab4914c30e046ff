"""The stateful runner: passes over the library's own caches, slower than pages, for more models.

Sequences with equally many tokens to run and caches of one form share a pass. States of state
spaces always have one form, keys only if contexts are equally long. Other sequences have a pass of
their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.target import (
    TargetTaps,
    beyond_keys,
    cache_argument,
    returned_cache,
    takes_positions,
)
from dspark.pages import Slots
from verify_service import rotation
from verify_service.kept_state import REPLAYED_AT_MOST, KeptState, copied, form, joined, parted
from verify_service.model_runner import Pass
from verify_service.plan import Segment


class _Ready(NamedTuple):
    """Tokens of one sequence to run, its state rolled back to where they begin, or before."""

    segment: Segment
    state: KeptState
    ids: list[int]  # tokens to run: those that run again, then the new ones
    before: int  # tokens that run again
    keep: list[int]  # new tokens whose logits are returned


class StatefulRunner:
    """Runs the target with one cache of the library per sequence.

    single: the model can continue from a state by one token only; together: several states can be
    joined. A model that recomputes its context past a border (see `rotation`) has two caches per
    sequence: tokens up to the border use the first, later ones the second, which holds the whole
    context.
    """

    path = "stateful"

    def __init__(
        self,
        model: Any,
        taps: TargetTaps | None,
        reason: str = "",
        *,
        single: bool = False,
        together: bool = False,
    ) -> None:
        use_own_attention(model)
        self.reason = reason
        self.make = (
            "library, token by token" if single else "library, together" if together else "library"
        )
        self.device: torch.device = next(model.parameters()).device
        self.rotation = rotation.find(model)
        self._model, self._cache = model, cache_argument(model)
        self._positions = takes_positions(model)
        self._taps, self._single = taps, single
        self._together = together and not single and self.rotation is None
        self._cut = beyond_keys(model) is None
        self._states: dict[Hashable, dict[int, KeptState]] = {}
        # of sequences that may have to be recomputed
        self._token_ids: dict[Hashable, list[int]] = {}

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts can start from kept states: not if a state continues by one token only,
        nor with two caches."""
        return not self._single and (self.rotation is None or self.rotation.switches_at is None)

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        first, wanted = 0, None if rows is None else set(rows)
        ready: list[_Ready] = []
        made: dict[int, tuple[Tensor, Tensor | None]] = {}
        for call, own, which in (call for segment in segments for call in self._calls(segment)):
            keep = [j for j in range(own) if wanted is None or first + j in wanted]
            first += own
            state, ids = self._brought_back(call, which)
            ready.append(_Ready(call, state, ids, len(ids) - own, keep))
            if not self._together:  # the next call may use the same sequence
                made[len(made)] = self._run(ready[-1:])[0]
        groups: dict[Any, list[int]] = {}
        for place, each in enumerate(ready if self._together else ()):
            kind = form(each.state.cache)
            alone = kind is None and each.state.length
            groups.setdefault((len(each.ids), kind, place if alone else -1), []).append(place)
        for places in groups.values():
            made |= zip(places, self._run([ready[place] for place in places]), strict=True)
        logits = [made[place][0] for place, each in enumerate(ready) if each.keep]
        taps = [part for at in range(len(ready)) if (part := made[at][1]) is not None]
        vocab = self._model.config.get_text_config().vocab_size
        none = torch.empty(0, vocab, device=self.device)
        return Pass(torch.cat(logits) if logits else none, torch.cat(taps) if taps else None)

    def release(self, key: Hashable) -> None:
        self._states.pop(key, None)
        self._token_ids.pop(key, None)

    def standing(self, key: Hashable) -> KeptState | None:
        """The state in a sequence's first cache, or None."""
        return self._states.get(key, {}).get(0)

    def begin(self, key: Hashable, cache: Any, length: int) -> None:
        """Starts a sequence from a copy of a cache of `length` tokens."""
        self._states[key] = {0: KeptState(lambda: copied(cache), cut=self._cut, length=length)}

    @torch.inference_mode()
    def fill(self, key: Hashable, slots: Slots | Sequence[int], length: int) -> None:
        have = max(self._length(key, which) for which in (0, 1))
        if (missing := length - have) > 0:
            self.run([Segment(key, have, [0] * missing, range(length), length)], [])

    def reset(self) -> None:
        self._states.clear()
        self._token_ids.clear()

    def _brought_back(self, segment: Segment, which: int) -> tuple[KeptState, list[int]]:
        """A cache of the segment's sequence where its tokens begin, or before; the tokens to run
        from there."""
        state = self._state(segment.key, which, segment.start)
        again = state.reach(segment.start)
        if len(again) > REPLAYED_AT_MOST:
            self._called(segment, [state], [again], [len(again) - 1])
            again = []
        if not again:
            state.hold()
        return state, [*again, *segment.token_ids]

    def _run(self, group: Sequence[_Ready]) -> list[tuple[Tensor, Tensor | None]]:
        """Runs calls with states of one form in one call of the model: for each the logits of the
        tokens in `keep`, and taps of all its new tokens."""
        kept = sorted({each.before + j for each in group for j in each.keep})
        kept = kept or [len(group[0].ids) - 1]  # the model needs at least one row
        states, ids = [each.state for each in group], [each.ids for each in group]
        logits, taps = self._called(group[0].segment, states, ids, kept)
        made = []
        for row, each in enumerate(group):
            mine = [kept.index(each.before + j) for j in each.keep]
            made.append((logits[row][mine], None if taps is None else taps[row, each.before :]))
        return made

    def _called(
        self,
        segment: Segment,
        states: Sequence[KeptState],
        ids: Sequence[Sequence[int]],
        kept: list[int],
    ) -> tuple[Tensor, Tensor | None]:
        """Calls the model for n states of one form and as many tokens each: logits [n, kept, V] and
        taps [n, T, m*H]. segment: of the first state."""
        if self._single and states[0].length and len(ids[0]) > 1:
            made = [self._called(segment, states, [[token]], [0]) for token in ids[0]]
            taps = [tapped for _, tapped in made if tapped is not None]
            return torch.cat([made[at][0] for at in kept], 1), torch.cat(taps, 1) if taps else None
        told: dict[str, Any] = {}
        if states[0].cache is not None:
            caches = [state.cache for state in states]
            told[self._cache] = caches[0] if len(caches) == 1 else joined(caches)
        if self._positions:
            starts = torch.tensor([state.length for state in states], device=self.device)
            told["position_ids"] = starts[:, None] + torch.arange(len(ids[0]), device=self.device)
        for state in states:
            state.running()
        with self._turned(segment, states[0].length, ids[0]):
            output = self._model(
                input_ids=torch.tensor([list(each) for each in ids], device=self.device),
                use_cache=True,
                logits_to_keep=torch.tensor(kept, device=self.device),
                **told,
            )
        tapped = self._taps.collect() if self._taps is not None else None
        cache = returned_cache(output)
        if cache is None:
            raise CheckpointError(
                f"{type(self._model).__name__} keeps its state where nothing can take tokens back"
            )
        parts = [cache] if len(states) == 1 else parted(cache, len(states))
        for state, own, part in zip(states, ids, parts, strict=True):
            state.ran(own, part)
        return _of(output.logits, kept), tapped

    def _turned(
        self, segment: Segment, start: int, ids: Sequence[int]
    ) -> contextlib.AbstractContextManager[None]:
        if self.rotation is None:
            return contextlib.nullcontext()
        prompt = segment.prompt
        if self.rotation.switches_at is not None:  # one rotation for a whole cache
            prompt = max(prompt, segment.length)
        return self.rotation.told(
            self.rotation.of_tokens([Segment(segment.key, start, ids, (), prompt)])
        )

    def _calls(self, segment: Segment) -> Iterator[tuple[Segment, int, int]]:
        """Splits a segment into calls, of tokens up to the border and later ones, if there is one:
        (tokens to run, how many of the last ones are new, index of the cache)."""
        count = len(segment.token_ids)
        border = self.rotation.switches_at if self.rotation is not None else None
        if border is None:
            yield segment, count, 0
            return
        key, ids = segment.key, self._token_ids.setdefault(segment.key, [])
        ids[segment.start :] = segment.token_ids
        if self._length(key, 1) > segment.start:  # holds drafted tokens, perhaps rejected
            self._states[key][1].reach(segment.start)
        if segment.prompt > border:
            yield segment, count, 1
            return
        if early := max(min(border - segment.start, count), 0):
            first = segment.token_ids[:early]
            yield Segment(key, segment.start, first, (), segment.prompt), early, 0
        else:
            self._states.get(key, {}).pop(0, None)  # committed tokens are past the border
        if early < count:
            have = self._length(key, 1)
            yield Segment(key, have, ids[have:], (), segment.prompt), count - early, 1

    def _length(self, key: Hashable, which: int) -> int:
        state = self._states.get(key, {}).get(which)
        return state.length if state is not None else 0

    def _state(self, key: Hashable, which: int, start: int) -> KeptState:
        states = self._states.setdefault(key, {})
        if start == 0 or which not in states:
            states[which] = KeptState(self._fresh, cut=self._cut)
        return states[which]

    def _fresh(self) -> Any:
        """A cache without config, whose layers keep all tokens and can be cropped to any length."""
        from transformers import DynamicCache

        return DynamicCache() if self._cut else None


def _of(logits: Tensor, kept: list[int]) -> Tensor:
    """The logits of `kept`, [n, kept, V]; some models return those of all tokens anyway."""
    return logits if logits.shape[1] == len(kept) else logits[:, kept]


def use_own_attention(model: Any) -> None:
    """Sets the library's attention: fused if the model supports it, else eager."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # capped scores and sinks have no fused form
        model.set_attn_implementation("eager")
