"""Torch's operations, watched while they run."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Behind these the host waits for what a device has computed.
WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "bincount"),
    *("equal", "is_nonzero"),
}


class Watched(TorchDispatchMode):
    """While it is in force, `saw` is told of every operation: name, arguments and result."""

    def __init__(self, saw: Callable[[str, Any, Any], object]) -> None:
        super().__init__()
        self._saw = saw

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._saw(func.overloadpacket.__name__, args, made)
        return made
