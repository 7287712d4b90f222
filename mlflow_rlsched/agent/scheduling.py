"""Who gets devices, who makes way for them, and how many each run may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlflow_rlsched.agent.offers import Offers
from mlflow_rlsched.agent.others import Foreign, Others
from mlflow_rlsched.agent.placement import Grant, Plan, plan
from mlflow_rlsched.agent.preemption import MOST, make_way
from mlflow_rlsched.agent.ranking import RESIZED, Ranking
from mlflow_rlsched.agent.supervision import Supervised
from mlflow_rlsched.agent.turns import TURN_OVER, take_turns
from mlflow_rlsched.agent.waiting import Waiting
from mlflow_rlsched.policy.interval import Budget
from mlflow_rlsched.store import LEARNING_PRIORITY, Task

_NEEDED = "its devices are needed by a run of higher priority"


class Scheduling:
    """Decides, by what ``placement``, ``preemption``, ``turns`` and ``budgets`` say.

    Args:
        user: Whose agent this is.
        offers: What this host can offer.
        others: What other users have and want.
        waiting: What is known of tasks that wait.
        running: Our user's running tasks.
        start: Starts a task with what it was given.
        preempt: Has a running task make way, and is told why.

    Attributes:
        pressure: Devices that waiting tasks ask for, over those of the pool.
        blocked: Tasks that wait for devices, in the order in which they start.
    """

    def __init__(
        self,
        user: str,
        offers: Offers,
        others: Others,
        waiting: Waiting,
        running: Mapping[str, Supervised],
        start: Callable[[Grant], None],
        preempt: Callable[[Supervised, str], None],
    ) -> None:
        self.pressure = 0.0
        self.blocked: list[Task] = []
        self._user = user
        self._offers = offers
        self._others = others
        self._waiting = waiting
        self._running = running
        self._start = start
        self._preempt = preempt
        self._budgets: dict[str, Budget] = {}

    def look_at_others(self, tasks: Sequence[Task]) -> None:
        """See what other users have, let their agents know of ours, do what they ask.

        Args:
            tasks: All tasks of the host that are not over.
        """
        self._others.look(tasks)
        if not self._others.are_there:
            return
        self._offers.tell(self._running.values())
        asked = [self._running[run_id] for run_id in self._others.asked if run_id in self._running]
        for runner in self._offers.runners(asked):
            if runner.resumes and not runner.leaves and runner.preemptions < MOST:
                self._preempt(self._running[runner.task.run_id], _NEEDED)

    def place(self, ours: Sequence[Task]) -> None:
        """Give devices to tasks of ours that come before all others, or ask for some.

        Args:
            ours: Our user's tasks that may start now.
        """
        ready = [*ours, *self._others.waiting]
        self.pressure = self._offers.pressure(ready)
        self.blocked = []
        if not ready:
            return
        ranking, scene = self._offers.to(ready, self._all_running(), self._waiting)
        found = plan(ranking, scene)
        for grant in found.grants:
            if grant.task.spec.user == self._user:
                self._start(grant)
        self._others.left_to_them(found.grants)
        if found.waiting:
            self._make_way(found, ranking)
        drained = [t for t in ready if t.exit_reason == RESIZED and t.run_id in scene.draining]
        waiting = [task for task in found.waiting if task.priority > LEARNING_PRIORITY]
        self.blocked = [*drained, *waiting]

    def _make_way(self, found: Plan, ranking: Ranking) -> None:
        """Have running attempts make way for one that waits: for its rank, or its turn."""
        runners, why = self._offers.runners(self._all_running()), _NEEDED
        way = make_way(found, runners, ranking)
        if way is None:
            way, why = take_turns(found, self._waiting.waited_s, runners, ranking), TURN_OVER
        if way is None or way.task.spec.user != self._user:  # its own agent asks
            return
        for task in way.runners:
            if task.run_id in self._running:
                self._preempt(self._running[task.run_id], why)
            else:
                self._others.ask(task, way.task)

    def share(self) -> None:
        """Say anew how many devices each run may have whose number can change."""
        waited_s = self._waiting.waited_s
        self._budgets = self._offers.budgets(self._all_running(), self.blocked, waited_s)

    def budget(self, run_id: str) -> Budget | None:
        """Devices that the pool gives a running task; None where it was not looked at yet."""
        return self._budgets.get(run_id)

    def forget(self, run_id: str) -> None:
        """Forget the budget of an attempt that is over."""
        self._budgets.pop(run_id, None)

    def _all_running(self) -> list[Supervised | Foreign]:
        return [*self._running.values(), *self._others.running]
