"""A network namespace for each process, so that the kernel itself loses packets on the way to it or
from it.

    enter("tests.faults.rows")      # once, first thing: this program gets a network of its own
    with FaultCell(between="kernel") as cell:
        cell.proxies["draft/0"].blackhole(Way.IN)

Every namespace is an address of one bridge. A queue that holds nothing drops all: towards the
process before the bridge's port, from it before its own. Nothing of the machine's own network is
touched, and all of it goes with its processes. Needs root, and `unshare`, `nsenter`, `ip` and `tc`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.faults.tcp_proxy import Way

INSIDE = "FAULTS_OWN_NETWORK"  # in the environment of a program that was started again
BRIDGE, SUBNET = "faults", "10.77.0"
TOOLS = ("unshare", "nsenter", "ip", "tc")
LIMIT_S = 10.0


def enter(module: str) -> bool:
    """Starts the program `python -m module` again in a network of its own; False where that is not
    allowed.

    Returns True in the new one, where nothing is up yet, see `bridge`.
    """
    if os.environ.get(INSIDE):
        return True
    if (
        not all(map(shutil.which, TOOLS))
        or subprocess.run(["unshare", "--net", "true"], check=False).returncode
    ):
        return False
    os.environ[INSIDE] = "1"
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", module, *sys.argv[1:]])


def bridge() -> None:
    """The switch that all namespaces hang on; this program is its first address."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", BRIDGE, "type", "bridge")
    _do("ip", "addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
    _do("ip", "link", "set", BRIDGE, "up")


class Namespace:
    """One process's address, and a cable to the bridge that can be cut in each direction."""

    def __init__(self, number: int) -> None:
        """number: 1 to 250, unlike any other's."""
        self.address = f"{SUBNET}.{number + 1}"
        self._port, self._inner = f"port{number}", f"own{number}"
        # Keeps the network; its input ends with this program, and so does it.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._lay()
        except BaseException:
            self.close()
            raise
        self._cut: set[Way] = set()

    def _lay(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()  # it is in there now
        self.enter: Sequence[str] = ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--")
        _do("ip", "link", "add", self._port, "type", "veth", "peer", "name", self._inner)
        _do("ip", "link", "set", self._inner, "netns", str(self._holder.pid))
        _do("ip", "link", "set", self._port, "master", BRIDGE, "up")
        _do(*self.enter, "ip", "link", "set", "lo", "up")
        _do(*self.enter, "ip", "addr", "add", f"{self.address}/24", "dev", self._inner)
        _do(*self.enter, "ip", "link", "set", self._inner, "up")

    def blackhole(self, *ways: Way) -> None:
        """Loses every packet in these directions, in both if none is named."""
        for way in set(ways or Way) - self._cut:
            _do(*self._queue(way, "add"), "pfifo", "limit", "0")
            self._cut.add(way)

    def heal(self) -> None:
        """Loses nothing any more. What was lost is for TCP to send again."""
        for way in self._cut:
            _do(*self._queue(way, "del"))
        self._cut.clear()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate(timeout=LIMIT_S)

    def _queue(self, way: Way, verb: str) -> list[str]:
        """Of the end that sends in this direction."""
        if way is Way.IN:
            return ["tc", "qdisc", verb, "dev", self._port, "root"]
        return [*self.enter, "tc", "qdisc", verb, "dev", self._inner, "root"]


def _do(*words: str) -> None:
    subprocess.run(words, check=True, timeout=LIMIT_S)
