"""Prioritized replay (Schaul et al. 2016, "Prioritized Experience Replay").

Transitions hold the reward's *parts*, not the reward: it is their sum under the weights among the
inputs, computed when a transition is sampled. As the sum is linear in the parts, an n-step return
is folded from parts too, when its transitions come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.inputs import ENCODED, INPUTS, WEIGHTS, WEIGHTS_AT, Array
from mlflow_rlsched.policy.reward import Terms, absorbing, discount, reward

PARTS = len(WEIGHTS) + 1
"""Parts of a reward: one for each weight, and the penalty, which has none."""

KEY = 3.0
"""How much more likely a key transition is sampled than another with the same error."""

EXPONENT = 0.6
"""How much the error of a transition counts when it is drawn (alpha of the paper)."""

LARGE_CHANGE = 1.0
"""Change of the reward between two intervals that makes a key transition."""

_UNIT = Weights(alpha=1, beta=1, gamma=1, smoothness=1)
_ALPHA = Weights(alpha=1, beta=0, gamma=0, smoothness=0)
_GAMMA = Weights(alpha=0, beta=0, gamma=1, smoothness=0)


def parts_of(terms: Terms, remaining_s: float = 0.0) -> tuple[float, ...]:
    """The reward's parts for weights of 1, in the order of ``WEIGHTS``, then the penalty.

    Args:
        terms: Raw terms of an interval.
        remaining_s: Seconds to the horizon if the run was done in it: the return of the absorbing
            state that follows is part of the last reward.
    """
    found = reward(terms, _UNIT)
    after = discount(terms.duration_s, terms.scales)
    alpha, gamma = (after * absorbing(remaining_s, w, terms.scales) for w in (_ALPHA, _GAMMA))
    return (
        found.throughput + alpha,
        found.cost,
        found.progress + gamma,
        found.smoothness,
        found.penalty,
    )


@dataclass(frozen=True)
class Transitions:
    """Transitions, one a row; all float32.

    Attributes:
        inputs: (N, 31) inputs that the action was chosen for.
        action: (N, 7) encoded action that was taken, after the guard.
        parts: (N, 5) parts of the reward.
        discount: (N, 1) of the value that follows, 0 after an end.
        next_inputs: (N, 31) inputs that followed.
    """

    inputs: Array
    action: Array
    parts: Array
    discount: Array
    next_inputs: Array

    @property
    def reward(self) -> Array:
        """(N, 1) rewards under the weights among the inputs."""
        weighted = (self.parts[:, :-1] * self.inputs[:, WEIGHTS_AT]).sum(1, keepdims=True)
        total: Array = weighted + self.parts[:, -1:]
        return total


_WIDTHS = {
    "inputs": len(INPUTS),
    "action": ENCODED,
    "parts": PARTS,
    "discount": 1,
    "next_inputs": len(INPUTS),
}
_EDGES = np.cumsum(list(_WIDTHS.values()))
WIDTH = int(_EDGES[-1])
_COLUMNS = {
    name: slice(int(edge) - width, int(edge))
    for (name, width), edge in zip(_WIDTHS.items(), _EDGES, strict=True)
}


def _split(rows: Array) -> Transitions:
    return Transitions(**{name: rows[:, place] for name, place in _COLUMNS.items()})


class Returns:
    """Folds the steps of environments in lockstep into n-step transitions.

    Intervals differ in length, so each step brings its own discount (``reward.discount``).

    Args:
        steps: n, the most rewards that a transition sums up.
    """

    def __init__(self, steps: int) -> None:
        self._window: deque[tuple[Transitions, Array, Array, Array]] = deque()
        self._steps = steps

    def push(
        self, step: Transitions, ended: Array, key: Array, real: Array
    ) -> Iterator[tuple[Transitions, Array]]:
        """Take in a step; yields the transitions that are complete, with their keys.

        Args:
            step: One row an environment.
            ended: (N,) whether the episode ended with this step, however: the next row is another
                episode's.
            key: (N,) whether the step is a key transition.
            real: (N,) whether the step counts; False where an environment only began anew.
        """
        self._window.append((step, ended | ~real, key, real))
        if len(self._window) == self._steps:
            yield self._fold()

    def flush(self) -> Iterator[tuple[Transitions, Array]]:
        """What is still open, folded over the steps there are."""
        while self._window:
            yield self._fold()

    def _fold(self) -> tuple[Transitions, Array]:
        later, *_ = self._window[-1]
        parts, weight, following = later.parts, later.discount, later.next_inputs
        for step, ended, *_ in list(self._window)[-2::-1]:
            goes_on = ~ended[:, None]
            parts = step.parts + np.where(goes_on, step.discount * parts, 0)
            weight = np.where(goes_on, step.discount * weight, step.discount)
            following = np.where(goes_on, following, step.next_inputs)
        first, _, key, real = self._window.popleft()
        rows = (first.inputs, first.action, parts, weight, following)
        return Transitions(*(row[real] for row in rows)), key[real]


class SumTree:
    """Weights whose sums are kept in a tree, so that drawing and changing are logarithmic.

    A node has ``FANOUT`` children, which numpy adds up at once; the top is one row that is
    searched as a whole. Sums are computed anew from the children, so that no error builds up.
    """

    FANOUT = 16
    _TOP = 1024

    def __init__(self, size: int) -> None:
        widths = [size]
        while widths[-1] > self._TOP:
            widths.append(-(-widths[-1] // self.FANOUT))
        # Each level is padded to whole nodes; the last is the top.
        self._levels = [np.zeros(-(-width // self.FANOUT) * self.FANOUT) for width in widths]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum())

    def __getitem__(self, places: Array) -> Array:
        weights: Array = self._levels[0][places]
        return weights

    def __setitem__(self, places: Array, weights: Array) -> None:
        """Set weights, at least 0; of a place that is given twice the last one counts."""
        self._levels[0][places] = weights
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            places = places // self.FANOUT
            above[places] = below.reshape(-1, self.FANOUT).take(places, 0).sum(1)

    def draw(self, shares: Array) -> Array:
        """Places drawn in proportion to their weights.

        Args:
            shares: (N,) in [0, 1): the part of the total that lies before what is drawn.
        """
        top = self._levels[-1].cumsum()
        mass = np.minimum(shares * top[-1], np.nextafter(top[-1], 0))
        places: Array = top.searchsorted(mass, side="right")
        mass -= top[places] - self._levels[-1][places]
        for level in self._levels[-2::-1]:
            sums = level.reshape(-1, self.FANOUT).take(places, 0).cumsum(1)
            # The last sum is another rounding of the parent's: nothing without weight is drawn.
            mass = np.clip(mass, 0, np.nextafter(sums[:, -1], 0))
            child = (sums <= mass[:, None]).sum(1)
            places = places * self.FANOUT + child
            mass -= sums[np.arange(len(mass)), child] - level[places]
        return places


@dataclass(frozen=True)
class Sample:
    """What was drawn: where it lies, its importance weights (N, 1), and the transitions."""

    places: Array
    importance: Array
    transitions: Transitions


def priority(errors: Array, exponent: float = EXPONENT) -> Array:
    """How likely transitions are drawn, by their errors (N,) and not yet times ``KEY``."""
    found: Array = (np.abs(errors) + 1e-6) ** exponent
    return found


class Replay:
    """The last transitions, drawn by how much there is to learn from them.

    The probability of a transition is proportional to (|error| + tiny)^exponent, times ``KEY`` for
    a key transition, the importance weights included.

    Args:
        capacity: Transitions that are kept; the oldest go first.
        exponent: 0 draws uniformly, 1 in proportion to the error (alpha of the paper).
        correction: How far importance weights correct for that, 0 to 1 (beta of the paper).
        seed: Of what is drawn.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        exponent: float = EXPONENT,
        correction: float = 0.4,
        seed: int = 0,
    ) -> None:
        self.capacity = capacity
        self.correction = correction
        self._exponent = exponent
        self._rows = np.zeros((capacity, WIDTH), np.float32)
        self._boost = np.ones(capacity)
        self._tree = SumTree(capacity)
        self._random = np.random.default_rng(seed)
        self._largest = 1.0
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, new: Transitions, key: Array) -> None:
        """Add transitions; each is as likely as the most surprising one until it was drawn.

        Args:
            new: At most ``capacity`` transitions.
            key: (N,) whether there is much to learn: an OOM, a restart, a divergence, a large
                change of the reward.
        """
        places = (self._added + np.arange(len(key))) % self.capacity
        self._rows[places] = np.hstack([getattr(new, field.name) for field in fields(new)])
        self._boost[places] = np.where(key, KEY, 1.0)
        self._tree[places] = self._largest * self._boost[places]
        self._added += len(key)

    def sample(self, count: int = 256) -> Sample:
        """Draw transitions, one from each of ``count`` equal parts of the total."""
        shares = (np.arange(count) + self._random.random(count)) / count
        places = self._tree.draw(shares)
        odds = len(self) * self._tree[places] / self._tree.total
        importance = odds**-self.correction
        importance /= importance.max()
        return Sample(
            places, importance[:, None].astype(np.float32), _split(self._rows.take(places, 0))
        )

    def update(self, places: Array, errors: Array) -> None:
        """Set the priorities of what was drawn.

        Args:
            places: (N,) of a sample.
            errors: (N,) their temporal-difference errors.
        """
        priorities = priority(errors, self._exponent)
        self._largest = max(self._largest, float(priorities.max()))
        self._tree[places] = priorities * self._boost[places]
