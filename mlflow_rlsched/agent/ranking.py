"""In which order waiting tasks are looked at (pure).

A run whose devices are being changed comes first: what it gave back for a moment is its own. Then
higher priority, which grows while a task waits. Among equals the user who holds least by weight,
then the experiment that holds least, then the oldest.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TypeAlias

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.store import LEARNING_PRIORITY, Task

RESIZED = "resized"
"""Class of the ending of an attempt that made way for one on another number of devices."""

AGEING_S = 600.0
"""Waiting time that is worth one step of priority, so that nobody waits for ever: a task d steps
below the others that keep coming is before those who come d times as long after it."""

_Group: TypeAlias = tuple[bool, int, str, str]


def effective_priority(task: Task, waited_s: float) -> int:
    """The priority with what waiting adds to it; learning never comes before anybody."""
    if task.priority == LEARNING_PRIORITY:
        return task.priority
    return task.priority + int(waited_s / AGEING_S)


def weight_of(configs: Callable[[Task], RunConfig], task: Task) -> float:
    """Share of a task's user, by its configuration."""
    return configs(task).weights.get(task.spec.user, 1.0)


class Ranking:
    """Hands out tasks one by one, the next one by what was given until then.

    Args:
        tasks: Waiting tasks, the oldest first.
        waited_s: How long a task has waited.
        holds: Hundredths of devices that each running task holds.

    Attributes:
        weight: Share of a task's user in the devices, over that of one who has no weight; 0 for one
            who comes after all others.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        waited_s: Callable[[Task], float],
        holds: Sequence[tuple[Task, int]] = (),
        weight: Callable[[Task], float] = lambda _: 1.0,
    ) -> None:
        self.weight = weight
        self._waited_s = waited_s
        self._groups = self._grouped(tasks)
        self._users: Counter[str] = Counter()
        self._experiments: Counter[tuple[str, str]] = Counter()
        for task, amount in holds:
            self.give(task, amount)

    def _grouped(self, tasks: Sequence[Task]) -> dict[_Group, deque[Task]]:
        groups: dict[_Group, deque[Task]] = {}
        for task in sorted(tasks, key=lambda task: task.order):
            priority = effective_priority(task, self._waited_s(task))
            spec = task.spec
            group = (task.exit_reason != RESIZED, -priority, spec.user, spec.experiment_id)
            groups.setdefault(group, deque()).append(task)
        return groups

    def give(self, task: Task, amount: int) -> None:
        """Count hundredths of devices that a task is given."""
        self._users[task.spec.user] += amount
        self._experiments[task.spec.user, task.spec.experiment_id] += amount

    def held(self, user: str) -> int:
        """Hundredths of devices that the tasks of a user hold."""
        return self._users[user]

    def served(self, task: Task, more: int = 0) -> float:
        """What the user of a task holds for the user's weight, with so many hundredths more."""
        held, weight = self._users[task.spec.user] + more, self.weight(task)
        return held / weight if weight else math.inf

    def standing(self, task: Task) -> tuple[float, int]:
        """What decides among equals before their age, the least first."""
        return self.served(task), self._experiments[task.spec.user, task.spec.experiment_id]

    def copy(self, tasks: Sequence[Task] = ()) -> Ranking:
        """One to which can be given what is not given.

        Args:
            tasks: The waiting tasks that it hands out.
        """
        other = copy(self)
        other._groups = self._grouped(tasks)
        other._users, other._experiments = Counter(self._users), Counter(self._experiments)
        return other

    def __iter__(self) -> Iterator[Task]:
        """The tasks; what is given meanwhile counts for those that follow."""
        places = [(self._place(group), group) for group in self._groups]
        heapq.heapify(places)
        while places:
            known, group = places[0]
            place = self._place(group)
            if place != known:  # it holds more by now, or its oldest task was handed out
                heapq.heapreplace(places, (place, group))
                continue
            tasks = self._groups[group]
            yield tasks.popleft()
            if not tasks:
                heapq.heappop(places)

    def _place(self, group: _Group) -> tuple[bool, int, float, int, int]:
        settled, priority, _, _ = group
        first = self._groups[group][0]
        return settled, priority, *self.standing(first), first.order
