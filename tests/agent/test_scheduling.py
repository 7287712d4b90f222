"""The pool level in an agent: simulated clock and trainings, real scheduling, store and files."""

from __future__ import annotations

from pathlib import Path

from mlflow_rlsched import decision_log
from mlflow_rlsched.agent.budgets import BUDGET_S
from mlflow_rlsched.agent.ranking import RESIZED
from tests.agent.simulated import Host

CAN = ["resume", "batch_size", "learning_rate"]
WHOLE = {"initial": 4, "min": 1, "max": 5}


def go_on(host: Host, seconds: float, progress: float = 0.1) -> None:
    """Let all trainings report and, where they are asked to, leave, for so long."""
    for _ in range(int(seconds / 10)):
        for training in host.live():
            if training.leaves:
                host.report(training, event="stopped")
                host.end(training, 75)
            else:
                host.report(training, loss=1.0, progress=progress)
        host.work(10.0)
        host.tick()


def held(host: Host, run_id: str) -> int:
    return sum(lease.run_id == run_id for lease in host.store.leases())


def test_a_run_that_could_go_on_for_ever_makes_room_for_its_equals(host: Host) -> None:
    elastic = host.submit(can=CAN, gpus=WHOLE)
    host.tick()
    go_on(host, 2 * BUDGET_S)
    others = [host.submit(can=CAN) for _ in range(2)]
    go_on(host, 3 * BUDGET_S)
    assert [held(host, run_id) for run_id in (elastic, *others)] == [2, 1, 1]
    assert [a.reason for a in host.store.attempts(elastic)] == [RESIZED, ""]
    run_dir = Path(next(t for t in host.live() if t.run_id == elastic).spec.env["RLSCHED_RUN_DIR"])
    records = decision_log.tail(run_dir)
    shrunk = next(r for r in records if r["setting"]["gpus"] < r["before"]["gpus"])
    assert shrunk["budget"]["gpus"] == 2
    assert "the pool gives this run at most 2 of 4 devices while 2 wait" in shrunk["reason"]


def test_it_makes_no_room_for_a_lower_priority(host: Host) -> None:
    elastic = host.submit(priority=1, can=CAN, gpus=WHOLE)
    host.tick()
    host.submit(can=CAN)
    go_on(host, 5 * BUDGET_S)
    assert held(host, elastic) == 4


def test_a_run_that_nearly_ends_is_not_stopped_for_one_that_waits(host: Host) -> None:
    elastic = host.submit(can=CAN, gpus=WHOLE)
    host.tick()
    host.submit(can=CAN)
    go_on(host, 2 * BUDGET_S, progress=0.99)
    assert held(host, elastic) == 4


def test_a_run_makes_way_for_the_second_who_waits_where_the_first_cannot_be_helped(
    host: Host,
) -> None:
    urgent = host.submit(priority=9, limit=["GPU-0"], can=CAN)
    low = host.submit(limit=["GPU-1"], can=CAN)
    host.tick()
    go_on(host, 10)
    host.submit(priority=5, limit=["GPU-0"])
    second = host.submit(priority=3, limit=["GPU-1"])
    go_on(host, 20)
    assert {t.run_id for t in host.live()} == {urgent, second}
    assert [a.reason for a in host.store.attempts(low)] == ["preempted"]


def test_it_grows_again_when_nobody_waits(host: Host) -> None:
    elastic = host.submit(can=CAN, gpus={"initial": 1, "min": 1, "max": 3})
    host.policies.delta = 2
    other = host.submit(can=CAN, gpus=3)
    waiting = host.submit(can=CAN, gpus=2)
    host.tick()
    go_on(host, 2 * BUDGET_S)
    assert held(host, elastic) == 1
    for training in host.live():
        if training.run_id == other:
            host.report(training, event="done")
            host.end(training, 0)
    host.store.request_cancel(waiting, "ada")
    go_on(host, 2 * BUDGET_S)
    assert held(host, elastic) == 3
