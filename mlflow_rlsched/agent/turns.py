"""Which running tasks have had their turn when an equal has waited for one (pure).

Weighted round-robin among runs of the same priority, for those that set ``quantum_s``: who has run
for a quantum makes way for an equal that has waited as long, and comes after all equals that wait
by then. All have as many turns; how long they are goes by the users' weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mlflow_rlsched.agent.placement import Plan
from mlflow_rlsched.agent.preemption import Runner, Way, all_of, enough, first_of
from mlflow_rlsched.agent.ranking import Ranking
from mlflow_rlsched.store import Task

QUANTUM_OVER = "quantum_over"
"""Class of the ending of an attempt that has had its turn."""

TURN_OVER = "its turn is over: a run of the same priority has waited for quantum_s"
"""What such an attempt is told, and what shows an agent that adopts it why it leaves."""


def turn_s(quantum_s: float, weight: float, other: float) -> float:
    """How long a turn lasts: a quantum for each part of the other's share, and never less than one.

    Args:
        quantum_s: The quantum of whoever runs.
        weight: Share of its user.
        other: Share of the user of whoever waits; 0 for one who comes after all others.
    """
    if not other:
        return math.inf if weight else quantum_s
    return quantum_s * max(1.0, weight / other)


def take_turns(
    found: Plan, waited_s: Callable[[Task], float], runners: Sequence[Runner], ranking: Ranking
) -> Way | None:
    """Who makes way for the first that waits, its equal; None when nobody does.

    Args:
        found: The plan of this pass.
        waited_s: How long a task has waited.
        runners: What runs.
        ranking: What each user holds, with the grants of this pass.
    """
    first = first_of(found.waiting)
    if first is None or any(runner.leaves for runner in runners):
        return None
    after = ranking.copy()
    over = []
    for runner in sorted(runners, key=lambda each: -each.held_s):
        if not _is_over(first, waited_s(first), runner, ranking):
            continue
        amount = sum(share.amount for share in runner.shares)
        after.give(runner.task, -amount)
        # Else it would be the first again.
        if after.standing(first) <= after.standing(runner.task):
            over.append(runner)
        else:
            after.give(runner.task, amount)
    chosen = enough(first, over, found.scene, all_of)
    return Way(first, [runner.task for runner in chosen]) if chosen else None


def _is_over(first: Task, waited_s: float, runner: Runner, ranking: Ranking) -> bool:
    """Whether a runner has had its turn, and the first one has waited for as long as a quantum."""
    quantum_s = runner.quantum_s
    if quantum_s is None or waited_s < quantum_s or runner.task.priority != first.priority:
        return False
    turn = turn_s(quantum_s, ranking.weight(runner.task), ranking.weight(first))
    return runner.resumes and bool(runner.shares) and runner.held_s >= turn
