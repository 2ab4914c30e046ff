"""The noise of the coupled rule: a Gumbel-max draw that drafter and verifier make alike.

A draw from p is argmax p(v) / E(v) over the tokens v, E(v) = -ln U(v). This is the Gumbel-max
trick, argmax(ln p + g) with g = -ln E, on the linear scale. Two sides with distributions p and q
over the same E agree with probability >= (1 - TV) / (1 + TV)
(Daliri, Musco, Suresh, arXiv 2408.07978).

U is keyed by (seed, choice, absolute position, v) and by nothing else: no epoch, no round, no slot.
So every use of a position has the same noise, which the ratio rules must never allow (invariant 4).

Symbols: n positions, V vocabulary, K tokens of a sparse row. E is float64 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.moving import sent
from dspark.decoding.philox import LOW, Purpose, philox, philox_array
from dspark.decoding.sampling import largest
from dspark.types import Rule, SamplingParams

# in nats: a draw with a lead below this may be another on another device or in another batch
NEAR_TIE = 1e-4

_TAG = int(Purpose.GUMBEL) << 16 | int(Rule.COUPLED) << 24
_LANES = 4  # tokens that share one Philox block
_SURE = 1.0 - 2.0**-53  # the largest uniform: E is never 0


def exponentials(
    all_params: Sequence[SamplingParams],
    positions: Sequence[int],
    vocab: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """E of all tokens at these absolute positions: [n, V] float64."""
    groups = np.arange(-(-vocab // _LANES), dtype=np.uint64)[None, :]
    if torch.device(device).type == "cpu":
        lanes = _uniforms(_blocks(all_params, positions, groups), axis=-1)
        return torch.from_numpy(_to_exponentials(lanes.reshape(len(all_params), -1)[:, :vocab]))
    words = _device_blocks(
        all_params, positions, sent(groups.astype(np.int64), torch.device(device))
    )
    return _on_device(words).flatten(-2)[:, :vocab]


def exponentials_of(
    all_params: Sequence[SamplingParams], positions: Sequence[int], ids: Tensor
) -> Tensor:
    """E of the tokens ids [n, K] alone: [n, K] float64, equal to those of `exponentials`."""
    if ids.device.type != "cpu":
        four = _on_device(_device_blocks(all_params, positions, ids // _LANES))
        return four.gather(-1, (ids % _LANES).unsqueeze(-1)).squeeze(-1)
    tokens = ids.numpy().astype(np.uint64)
    lanes = _uniforms(_blocks(all_params, positions, tokens // np.uint64(_LANES)), axis=0)
    lane = (tokens % np.uint64(_LANES)).astype(np.int64)
    return torch.from_numpy(_to_exponentials(np.take_along_axis(lanes, lane[None], axis=0)[0]))


def checked_argmax(probs: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """probs of any sum and E, [n, V or K] -> (index of the drawn token [n], its lead over the next
    in nats [n]). FloatingPointError for a row without mass or with NaN."""
    ids, leads, sound = gumbel_argmax(probs, e)
    if not bool(sound.all()):
        raise FloatingPointError("a distribution has no mass or is not numbers")
    return ids, leads


def gumbel_argmax(probs: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`checked_argmax` without synchronising; the third tensor says of which rows a token can be
    drawn [n]."""
    ratio = probs.double() / e
    ids = largest(ratio).unsqueeze(-1)
    first = ratio.gather(-1, ids)
    second = ratio.scatter_(-1, ids, 0.0).amax(dim=-1)
    # false for NaN too
    sound = (first > 0) & (first < torch.inf)
    return ids.squeeze(-1), torch.log(first.squeeze(-1) / second), sound.squeeze(-1)


def _keys(
    all_params: Sequence[SamplingParams], positions: Sequence[int]
) -> tuple[npt.NDArray[np.uint64], ...]:
    """(seeds, choices, positions), each [n, 1]."""
    names = [
        (params.seed, params.choice, position)
        for params, position in zip(all_params, positions, strict=True)
    ]
    seeds, choices, places = np.array(names, np.uint64).reshape(-1, 3, 1).transpose(1, 0, 2)
    if names and max(int(choices.max()), int(places.max())) > LOW:
        raise ValueError("choice and position must fit in 32 bits")
    return seeds, choices, places


def _blocks(
    all_params: Sequence[SamplingParams], positions: Sequence[int], groups: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Philox words of each group of tokens. Counter: position, group, purpose << 16 | rule << 24,
    choice."""
    seeds, choices, places = _keys(all_params, positions)
    shape = np.broadcast_shapes(groups.shape, seeds.shape)
    counter = tuple(
        np.broadcast_to(word, shape) for word in (places, groups, np.uint64(_TAG), choices)
    )
    return philox_array(counter, (seeds & np.uint64(LOW), seeds >> np.uint64(32)))


def _uniforms(words: tuple[npt.NDArray[np.uint64], ...], axis: int) -> npt.NDArray[np.float64]:
    """A uniform per word, along a new axis: its own word gives the high bits, the next lane's the
    low ones, so that ties are rare."""
    wide = [word.astype(np.float64) for word in words]
    u: npt.NDArray[np.float64] = np.stack(
        [wide[lane] + wide[(lane + 1) % _LANES] * 2.0**-32 for lane in range(_LANES)], axis=axis
    )
    u += 2.0**-33
    u *= 2.0**-32
    return u


def _to_exponentials(u: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e: npt.NDArray[np.float64] = np.minimum(u, _SURE)
    np.log(e, out=e)
    return np.negative(e, out=e)


def _on_device(words: tuple[Tensor, ...]) -> Tensor:
    """`_uniforms` and `_to_exponentials` on an accelerator: words [n, groups] -> times [n, groups,
    4]."""
    whole = torch.stack(
        [words[lane].double() + words[lane - 3].double() * 2.0**-32 for lane in range(_LANES)],
        dim=-1,
    )
    return -((whole + 2.0**-33) * 2.0**-32).clamp_(max=_SURE).log_()


def _device_blocks(
    all_params: Sequence[SamplingParams], positions: Sequence[int], groups: Tensor
) -> tuple[Tensor, ...]:
    """`_blocks` on an accelerator, in int64."""
    seeds, choices, places = _keys(all_params, positions)

    def column(values: npt.NDArray[np.uint64]) -> Tensor:
        return sent(values.astype(np.int64), groups.device)

    shape = np.broadcast_shapes(tuple(groups.shape), seeds.shape)
    c0, c1, c3 = column(places).expand(shape), groups.expand(shape), column(choices).expand(shape)
    key = (column(seeds & np.uint64(LOW)), column(seeds >> np.uint64(32)))
    return philox((c0, c1, torch.full_like(c1, _TAG), c3), key)
