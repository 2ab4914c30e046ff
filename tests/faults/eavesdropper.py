"""What somebody on the wire sees of an encrypted stream, and how well it tells fifty questions
apart.

A proxy between a client and a server tells when how many bytes came back (`listen`). `guess` learns
from such traces, sizes and times alone, and says how often it names the right question of unseen
ones.
"""

import time

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from tests.faults.tcp_proxy import TcpProxy

BIN_S, BINS, FIRST = 0.025, 160, 64
NEIGHBOURS = 5
TELLING = (1, 2, 5, 20)  # features, of which the known traces say how many to look at
RIDGE = 10.0

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Trace = list[tuple[float, int]]  # seconds since the question, bytes from the server


def listen(wire: TcpProxy) -> Trace:
    """A fresh trace, from now on."""
    trace: Trace = []
    began = time.perf_counter()
    wire.heard = lambda size: trace.append((time.perf_counter() - began, size))
    return trace


def features(trace: Trace) -> Matrix:
    """Sizes in order, gaps in order, bytes over time, and totals."""
    times = np.array([when for when, _ in trace] or [0.0])
    sizes = np.array([size for _, size in trace] or [0], float)
    over_time = np.histogram(times, bins=BINS, range=(0.0, BIN_S * BINS), weights=sizes)[0]
    gaps = np.diff(times, prepend=0.0)
    first = [np.pad(values[:FIRST], (0, max(FIRST - len(values), 0))) for values in (sizes, gaps)]
    return np.concatenate([*first, over_time, [sizes.sum(), times[-1], len(sizes)]])


def guess(known: Matrix, labels: Labels, unseen: Matrix, truth: Labels) -> float:
    """Share of `unseen` rows that the best of three classifiers names rightly."""
    centre, spread = known.mean(0), known.std(0)
    spread[spread == 0] = np.inf  # what never varies says nothing
    near, far = (known - centre) / spread, (unseen - centre) / spread
    every = (by(near, labels, far) for by in (_by_neighbours, _by_ridge, _by_telling))
    return max(float((said == truth).mean()) for said in every)


def _by_telling(known: Matrix, labels: Labels, unseen: Matrix) -> Labels:
    """The nearest trace by the few features that tell questions apart and repeat within one."""
    members = np.eye(labels.max() + 1)[labels]
    means = members.T @ known / np.maximum(members.sum(0), 1.0)[:, None]
    within = np.sqrt(np.mean((known - means[labels]) ** 2, axis=0))
    within = np.maximum(within, 1e-6)  # of what is the same whenever a question is asked
    ratio = means[labels].std(0) / within

    def distances(rows: Matrix, count: int) -> Matrix:
        columns = np.argsort(-ratio)[:count]
        return cdist(rows[:, columns] / within[columns], known[:, columns] / within[columns])

    def right(count: int) -> float:
        """Share of the known traces that the nearest other one names."""
        distance = distances(known, count)
        np.fill_diagonal(distance, np.inf)
        return float((labels[distance.argmin(1)] == labels).mean())

    return labels[distances(unseen, max(TELLING, key=right)).argmin(1)]


def _by_neighbours(known: Matrix, labels: Labels, unseen: Matrix) -> Labels:
    distance = cdist(unseen, known)
    votes = labels[np.argsort(distance, axis=1)[:, :NEIGHBOURS]]
    return np.array([np.bincount(row).argmax() for row in votes])


def _by_ridge(known: Matrix, labels: Labels, unseen: Matrix) -> Labels:
    wanted = np.eye(labels.max() + 1)[labels]
    weights = np.linalg.solve(
        known.T @ known + RIDGE * np.eye(known.shape[1]), known.T @ (wanted - wanted.mean(0))
    )
    return np.asarray((unseen @ weights).argmax(1))
