"""Devices of a pool for many runs at once: how many each, and on which nodes.

Pure functions on plain numbers, so that the same code can share a simulated and a real pool, one
after the other: ``fastest`` says how fast each run is on so many devices, ``flow_time_worth`` what
that is worth to all, ``shares`` which numbers of devices are worth most together, and ``place``
on which nodes they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from mlflow_rlsched.policy.goodput import step_seconds
from mlflow_rlsched.policy.inputs import Array
from mlflow_rlsched.policy.weighing import Weighing

Node = TypeVar("Node", bound=Hashable)

IMPOSSIBLE = -np.inf
"""What a number of devices is worth that a run cannot have."""

_KEPT_MIN = 0.05  # part of the time that a restart leaves at least, so that a run can begin
_WORTH_MIN = 1e-6  # a device that is free is worth more in use, whatever it adds
_WAITS = 0.01  # speed that a run without devices counts with
_GRID = np.arange(16) / 15  # batches that are tried, from the base to the largest, logarithmic


@dataclass(frozen=True)
class Batches:
    """The batch sizes that runs can use, samples; (R,) each.

    Attributes:
        base: Smallest, by which progress is counted.
        most: Largest.
        least_each: Smallest on one device.
    """

    base: Array
    most: Array
    least_each: Array


def sizes(devices: int, per_node: int) -> list[int]:
    """Numbers of devices worth a look: powers of two within a node, then whole nodes.

    On nodes of 1, 2, 4, 8 ... devices, runs of such sizes fit together whatever the mix, none on
    more nodes than it needs (as in Sia, Jayaram Subramanya et al. 2023).

    Args:
        devices: Most devices.
        per_node: Devices of a node.
    """
    within = [1 << power for power in range(per_node.bit_length()) if 1 << power < per_node]
    return [n for n in (*within, *range(per_node, devices + 1, per_node)) if n <= devices]


def fastest(
    parameters: Array, noise_scale: Array, batches: Batches, options: Sequence[int], per_node: int
) -> tuple[Array, Array]:
    """How fast each run learns on each number of devices, and the batch with which it does.

    Args:
        parameters: (R, 7) of the goodput model (``goodput.fit``).
        noise_scale: (R,) gradient noise scale, samples; where it is NaN, the smallest batch is
            the best.
        batches: What the runs can use.
        options: (N,) numbers of devices.
        per_node: Devices of a node.

    Returns:
        (R, N) samples a second, each counted as what a sample of the base batch is worth, 0 where
        the devices are more than the largest batch can feed; and (R, N) batches, samples.
    """
    counts = np.array(options, float)
    least = np.maximum(batches.base[:, None], batches.least_each[:, None] * counts)
    most = batches.most[:, None, None]
    grid = batches.base[:, None] * (batches.most / batches.base)[:, None] ** _GRID
    noisy = np.nan_to_num(noise_scale)[:, None, None]
    tried = np.minimum(np.maximum(grid[:, None], least[:, :, None]), most)
    devices = np.broadcast_to(counts[:, None], tried.shape)
    flat = len(tried), -1
    seconds = step_seconds(parameters, devices.reshape(flat), tried.reshape(flat), per_node)
    base = batches.base[:, None, None]
    rates = tried * (noisy + base) / (noisy + tried) / seconds.reshape(tried.shape)
    best = np.where(np.isnan(noise_scale)[:, None], 0, rates.argmax(2))[:, :, None]
    rates, tried = (np.take_along_axis(values, best, 2)[:, :, 0] for values in (rates, tried))
    return np.where(least > batches.most[:, None], 0.0, rates), tried


def weights(seconds_left: Array, weighing: Weighing) -> Array:
    """How much one more unit of each run's speed saves of all runs' times to their ends.

    If k devices speed every run up by k^concavity, the mean completion time is least when runs end
    in the order of what they have left to do; what a second of a run's work then costs all others
    depends on its rank alone (heSRPT: Berg, Vesilo and Harchol-Balter 2020, "heSRPT: Parallel
    scheduling to minimize mean slowdown", for the flow time).

    Args:
        seconds_left: (R,) time that each run still takes on one device.
        weighing: Its concavity.

    Returns:
        (R,): 1 for the longest, the more the shorter.
    """
    order = np.argsort(-seconds_left, kind="stable")
    ends = np.arange(len(order) + 1.0) ** (1 / (1 - weighing.concavity))
    found = np.empty(len(order))
    found[order] = np.diff(ends) ** (1 - weighing.concavity)
    return found


def horizon(speed: Array, seconds_left: Array, interval_s: float, weighing: Weighing) -> Array:
    """(R, 1) seconds until devices may well change again, or the run ends, for ``keeping``.

    Args:
        speed: (R, N) speed with each of the options over that on one device.
        seconds_left: (R,) time that the runs still take on one device.
        interval_s: Seconds between two looks: a change lasts as long, at least.
        weighing: Its patience.
    """
    fastest = np.maximum(seconds_left / speed.max(1), interval_s)
    found: Array = np.minimum(fastest, weighing.patience_s)[:, None]
    return found


def keeping(
    options: Sequence[int], held: Sequence[int], restart_s: Array | float, until_s: Array | float
) -> Array:
    """(R, N) part of the time until the next change that a restart leaves.

    Args:
        options: (N,) numbers of devices.
        held: (R,) devices held now, which need no restart.
        restart_s: Seconds that a run loses with any other number, of all runs or (R, 1).
        until_s: Seconds until the devices change again or the run ends, of all runs or (R, 1).
    """
    left = np.maximum(1 - restart_s / np.asarray(until_s), _KEPT_MIN)
    return np.where(np.array(options) == np.array(held)[:, None], 1.0, left)


def flow_time_worth(
    speed: Array,
    kept: Array,
    seconds_left: Array,
    options: Sequence[int],
    weighing: Weighing,
) -> Array:
    """What devices are worth where the mean time to the runs' ends shall be least.

    Args:
        speed: (R, N) speed with each of the options over that on one device; 0 for those that a
            run cannot have.
        kept: (R, N) part of it that restarts leave.
        seconds_left: (R,) time that the runs still take on one device.
        options: (N,) numbers of devices.
        weighing: What a device must add, and what a run's end is worth.

    Returns:
        (R, 1 + N) for ``shares``, the first for no device.
    """
    gained = np.maximum(speed * kept - weighing.price * np.array(options), _WORTH_MIN)
    weighted = weights(seconds_left, weighing)[:, None] * gained
    worth = np.where(speed > 0, weighted, IMPOSSIBLE)
    return np.column_stack([np.zeros(len(worth)), worth])


def fairness_worth(speed: Array, kept: Array) -> Array:
    """What devices are worth where no run shall be slow: as in Pollux (section 4.2).

    The harmonic mean of the runs' speeds, a power mean with p = -1, is largest where the sum of
    this is. Arguments and result as of ``flow_time_worth``.
    """
    with np.errstate(divide="ignore"):
        return np.column_stack([np.full(len(speed), -1 / _WAITS), -1 / (speed * kept)])


def shares(worth: Array, options: Sequence[int], devices: int) -> list[int]:
    """The numbers of devices that are worth most together (multiple-choice knapsack, exact).

    Args:
        worth: (R, 1 + N) what it is worth that a run has no device, or each of the ``options``;
            ``IMPOSSIBLE`` for what it cannot have.
        options: (N,) numbers of devices, increasing.
        devices: Devices there are.

    Returns:
        Devices for each run; of equal ones the fewest.

    Raises:
        ValueError: The devices do not suffice for the least that the runs can have.
    """
    counts = np.array([0, *options])
    left = np.arange(devices + 1)[:, None] - counts
    fits, left = left >= 0, np.maximum(left, 0)
    best = np.zeros(devices + 1)
    chosen = []
    for values in worth:
        totals = np.where(fits, best[left] + values, IMPOSSIBLE)
        choice = totals.argmax(1)
        best = totals[np.arange(devices + 1), choice]
        chosen.append(counts[choice])
    if best[-1] == IMPOSSIBLE:
        raise ValueError(f"{devices} devices are fewer than these runs must have")
    found = []
    for choices in reversed(chosen):
        found.append(int(choices[devices]))
        devices -= found[-1]
    return found[::-1]


def place(
    counts: Sequence[int], held: Sequence[Mapping[Node, int]], nodes: Mapping[Node, int]
) -> list[dict[Node, int]]:
    """Nodes for each run, on as few as can be.

    A run that keeps its number of devices keeps the devices, unless one that needs a node to
    itself could else not have it: then the smallest move.

    Args:
        counts: Devices for each run, in all at most those of the nodes.
        held: Devices that each run holds now, by node.
        nodes: Devices of each node that runs may have.
    """
    room = _Room(nodes, len(counts))
    for run, (count, now) in enumerate(zip(counts, held, strict=True)):
        if count == sum(now.values()) and room.has(now):
            room.give(run, now)
    waiting = [run for run, count in enumerate(counts) if count and not room.found[run]]
    while waiting:
        run = max(waiting, key=lambda r: counts[r])
        waiting.remove(run)
        waiting += room.settle(run, counts[run])
    return room.found


class _Room(Generic[Node]):
    """Nodes and who is on them."""

    def __init__(self, nodes: Mapping[Node, int], runs: int) -> None:
        self.free = dict(nodes)
        self.found: list[dict[Node, int]] = [{} for _ in range(runs)]
        self._largest = max(nodes.values(), default=0)

    def has(self, wanted: Mapping[Node, int]) -> bool:
        return all(self.free.get(node, 0) >= count for node, count in wanted.items())

    def give(self, run: int, wanted: Mapping[Node, int]) -> None:
        for node, count in wanted.items():
            self.free[node] -= count
            self.found[run][node] = self.found[run].get(node, 0) + count

    def settle(self, run: int, count: int) -> list[int]:
        """Put a run on nodes, whole ones first; returns the smaller runs that it drove off."""
        moved: list[int] = []
        for left in range(count, 0, -self._largest):
            piece = min(left, self._largest)
            node = self._fullest(piece)
            if node is None:
                node = self._cleared(piece, count, moved)
            if node is None:
                self._spread(run, piece)
            else:
                self.give(run, {node: piece})
        return moved

    def _fullest(self, piece: int) -> Node | None:
        fitting = [node for node, free in self.free.items() if free >= piece]
        return min(fitting, key=lambda node: self.free[node], default=None)

    def _cleared(self, piece: int, count: int, moved: list[int]) -> Node | None:
        """The emptiest node that runs smaller than ``count`` can be taken off until it fits."""
        for node in sorted(self.free, key=lambda n: -self.free[n]):
            there = [r for r, nodes in enumerate(self.found) if node in nodes]
            sizes = {r: sum(self.found[r].values()) for r in there}
            smaller = sorted((r for r in there if sizes[r] < count), key=lambda r: sizes[r])
            if self.free[node] + sum(self.found[r][node] for r in smaller) < piece:
                continue
            while self.free[node] < piece:
                gone = smaller.pop(0)
                moved.append(gone)
                for where, taken in self.found[gone].items():
                    self.free[where] += taken
                self.found[gone] = {}
            return node
        return None

    def _spread(self, run: int, piece: int) -> None:
        while piece > 0:
            node = max(self.free, key=lambda n: self.free[n])
            taken = min(self.free[node], piece)
            self.give(run, {node: taken})
            piece -= taken
