"""The runs of the lab, as a list. What is not in a run's fields is the same for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Family = Literal["dspark", "dflash", "eagle3", "mtp", "lm"]
Head = Literal["none", "vanilla", "gated", "rnn"]
SEEDS = (0, 1, 2)
LAYERS, BLOCK = 5, 7
DEPTHS, BLOCKS = (1, 2, 3, 5), (3, 7, 11, 15)


@dataclass(frozen=True, slots=True)
class Run:
    """One drafter, trained once."""

    family: Family
    seed: int = 0
    layers: int = LAYERS
    block: int = BLOCK  # tokens drafted a round
    head: Head = "none"
    stretch: int = 1  # times the common number of steps

    def __post_init__(self) -> None:
        if self.head != "none" and self.family != "dspark":
            raise ValueError(f"head: {self.family} has no sequential head, found {self.head!r}")
        if self.family in ("eagle3", "mtp") and self.layers != 1:
            raise ValueError(f"layers: {self.family} has 1, found {self.layers}")
        if self.family == "mtp" and self.block != 1:
            raise ValueError(f"block: mtp drafts 1 token, found {self.block}")

    @property
    def name(self) -> str:
        head = f"-{self.head}" if self.family == "dspark" else ""
        stretch = f"-x{self.stretch}" if self.stretch != 1 else ""
        return f"{self.family}-l{self.layers}-b{self.block}{head}{stretch}-s{self.seed}"

    @property
    def kind(self) -> str:
        """The name without the seed: what runs of several seeds share."""
        return self.name.rpartition("-")[0]


def dspark(**changes: int | str) -> Run:
    return Run(**{"family": "dspark", "head": "vanilla", **changes})  # type: ignore[arg-type]


def main_table() -> Iterator[Run]:
    """Every family, three seeds; a seed is finished for all before the next begins."""
    for seed in SEEDS:
        yield dspark(seed=seed)
        yield Run("dflash", seed)
        yield Run("eagle3", seed, layers=1)
        yield dspark(seed=seed, layers=2)
        yield Run("mtp", seed, layers=1, block=1)
        yield Run("lm", seed, layers=2)


def ablations() -> Iterator[Run]:
    """One seed each: heads, depth, length of the block, and twice the steps."""
    for head in ("none", "gated", "rnn"):
        yield dspark(head=head)
    for layers in DEPTHS:
        yield dspark(layers=layers)
    for block in BLOCKS:
        yield dspark(block=block)
    yield dspark(stretch=2)
    yield Run("dflash", stretch=2)
    yield Run("eagle3", layers=1, stretch=2)
    for layers in DEPTHS:
        yield Run("dflash", layers=layers)
    for block in BLOCKS:
        yield Run("dflash", block=block)
    yield Run("lm", layers=2, stretch=2)


def plan() -> list[Run]:
    """All runs, each once, in the order in which they are made."""
    return list(dict.fromkeys((*main_table(), *ablations())))
