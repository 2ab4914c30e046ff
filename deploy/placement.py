"""Which processor a process of a cell on one machine is kept to where its settings do not say. Pure.

In a lane the verifier and the drafter work by turns: each waits for what the other has just sent. With two processors
they lose nothing by sharing one, whose caches then stay theirs, and are not pushed off it by the coordinator and the
clients, which work at other times. The operating system does not know that: it wakes each wherever nobody runs at
that moment. With more processors there is room for all, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PROCESSORS = 2


def homes(usable: Sequence[int], threads: int = 1) -> Mapping[str, str]:
    """Setting `cpus` by replica name; replicas that are not named run anywhere.

    usable: numbers of the machine's processors that the cell may use. threads: the most that one worker computes with;
    a worker of several needs all processors.
    """
    if len(usable) != PROCESSORS or threads > 1:
        return {}
    first, second = map(str, usable)
    return {"verify/0": first, "draft/0": first, "coordinator/0": second}
