"""What a person asks of a run: to end it, to let it go first, to try it again."""

from __future__ import annotations

from collections.abc import Callable

from mlflow_rlsched import trust
from mlflow_rlsched.asking import ask_server
from mlflow_rlsched.credentials import acting_for, redacted
from mlflow_rlsched.daemon import AgentFiles, user_name
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import State, Store, Task
from mlflow_rlsched.words import short

MAX_PRIORITY = 1_000_000


class RefusedError(Exception):
    """It cannot be done, and why, in a sentence."""


def check(url: str, task: Task) -> None:
    """Refuse to ask something of another user's run, unless an administrator does.

    Raises:
        RefusedError: This user may not ask it.
        StoreError: The rules of a shared store cannot be used.
    """
    rules = trust.shared_rules(url)
    if rules is None:
        return
    me, owner = user_name(), task.spec.user
    if owner != me and me not in rules.administrators:
        from mlflow_rlsched.config.pool import pool_file

        others = ", ".join(rules.administrators) or f"{pool_file()} names none"
        raise RefusedError(
            f"{_name(task)} is of {owner}: only {owner} or an administrator ({others}) may ask that"
        )
    if owner == me and not trust.is_signed_submission(url, task):
        raise RefusedError(
            f"{_name(task)} was not signed by you: somebody else wrote it into the store, and no"
            " agent starts it"
        )


def cancel(store: Store, url: str, task: Task) -> str:
    """Ask for the end of a run; what is done now, in a sentence.

    Raises:
        RefusedError: It is over already, or this user may not ask it.
    """
    check(url, task)
    proof = trust.prove_request(url, task, trust.CANCEL, user_name())
    if not store.request_cancel(task.run_id, user_name(), proof):
        raise RefusedError(f"{_name(task)} is {task.state.value} already")
    return _told(url, task, f"{_name(task)} is being cancelled")


def prioritize(store: Store, url: str, task: Task, priority: int) -> str:
    """Give a run a priority, larger goes first; what is done now, in a sentence.

    Raises:
        RefusedError: It is over already, or this user may not ask it.
        ValueError: ``priority`` is not within ``MAX_PRIORITY``.
    """
    if abs(priority) > MAX_PRIORITY:
        raise ValueError(priority)
    check(url, task)
    proof = trust.prove_request(url, task, trust.PRIORITY, priority)
    if not store.prioritize(task.run_id, priority, proof):
        raise RefusedError(f"{_name(task)} is {task.state.value} already")
    return _told(url, task, f"{_name(task)} has priority {priority}")


def retry(store: Store, url: str, task: Task, warn: Callable[[str], None]) -> str:
    """Queue a failed or killed run again, with all its retries; what is done now, in a sentence.

    Args:
        store: The store.
        url: Its URL.
        task: The run's task.
        warn: Called with a sentence when its tracking server cannot be told at once.

    Raises:
        RefusedError: It is in another state or deleted in MLflow, or this user may not ask it.
    """
    check(url, task)
    if task.state in (State.FAILED, State.KILLED) and not _is_anothers(url, task):
        _schedule_in_mlflow(task, warn)
    now = trust.queue_time(task)
    if not store.retry(task.run_id, now, trust.proofs_of_retry(url, task, now)):
        raise RefusedError(
            f"{_name(task)} is {task.state.value}: only failed and killed runs can be retried"
        )
    return _told(url, task, f"{_name(task)} is queued again")


def _name(task: Task) -> str:
    return f"run {short(task.run_id)} ({task.spec.label})"


def _is_anothers(url: str, task: Task) -> bool:
    return is_shared(url) and task.spec.user != user_name()


def _told(url: str, task: Task, message: str) -> str:
    """The message, with what it still needs, once the agent was woken."""
    if _is_anothers(url, task):
        return f"{message}, as soon as the agent of {task.spec.user} looks"
    obstacle = wake_agent(url)
    return f"{message}; {obstacle}" if obstacle else message


def wake_agent(url: str) -> str | None:
    """Let the agent look at the store now, starting it if needed; what is in the way, if so."""
    files = AgentFiles(url)
    if files.held.exists() and not files.alive():
        return "the agent was stopped: `rlsched agent start` lets it go on"
    files.start()
    files.wake()
    return None


def _schedule_in_mlflow(task: Task, warn: Callable[[str], None]) -> None:
    """Make the MLflow run of a task SCHEDULED again, and refuse one that was deleted."""
    from mlflow import MlflowClient

    from mlflow_rlsched.agent.tracking import Delivery

    delivery = Delivery.of(task)
    stages: list[str] = []

    def ask() -> None:
        with acting_for(delivery.environment):
            client = MlflowClient(tracking_uri=delivery.uri)
            stages.append(client.get_run(task.run_id).info.lifecycle_stage)
            if stages != ["deleted"]:
                client.update_run(task.run_id, status="SCHEDULED")

    trouble = ask_server(ask)
    if stages == ["deleted"]:
        raise RefusedError(
            f"{_name(task)} was deleted in MLflow: bring it back by "
            f"`mlflow runs restore --run-id {task.run_id}`, then retry it"
        )
    if trouble is not None:
        warn(f"its tracking server is told later: {redacted(trouble)}")
