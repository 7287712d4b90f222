"""``rlsched agent``: the scheduling process of this user, host and store."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

import click

from mlflow_rlsched.cli.common import (
    Group,
    json_option,
    my_tasks,
    open_existing,
    print_json,
    store_option,
)
from mlflow_rlsched.daemon import AgentFiles
from mlflow_rlsched.processes import Identity
from mlflow_rlsched.words import duration

START_WAIT_S = 20.0
STOP_WAIT_S = 60.0
POLL_S = 0.05
LOG_LINES = 5


@click.group(cls=Group)
def agent() -> None:
    """Start, run, look at and stop the agent, which places runs on devices."""


@agent.command()
@store_option
def start(url: str) -> None:
    """Start the agent in the background, unless it runs."""
    from mlflow_rlsched.store import open_store

    open_store(url).close()  # what is wrong with the store is said here, not in a log
    files = AgentFiles(url)
    files.held.unlink(missing_ok=True)
    ran_before = files.alive()
    files.start()
    deadline = time.monotonic() + START_WAIT_S
    while not (files.alive() and _identity(files)):
        if time.monotonic() > deadline:
            raise click.ClickException(f"the agent does not start:\n{_log_tail(files)}")
        time.sleep(POLL_S)
    does = "runs already" if ran_before else "has started"
    click.echo(f"the agent {does}: process {_pid(files)}, log {files.log}")


@agent.command()
@store_option
@click.option(
    "--idle-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="End after this time with nothing to do; by default it goes on.",
)
def run(url: str, idle_timeout: float | None) -> None:
    """Be the agent, in the foreground (for systemd, or to watch it)."""
    from mlflow_rlsched.agent.service import run_agent

    raise SystemExit(run_agent(url, idle_timeout))


@agent.command()
@store_option
@json_option
def status(url: str, as_json: bool) -> None:
    """Say whether the agent lives and what it has to do; exit code 1 when it does not live."""
    files = AgentFiles(url)
    identity = _identity(files) if files.alive() else None
    running, waiting = _counts(url)
    value: dict[str, Any] = {
        "alive": identity is not None,
        "pid": identity.pid if identity else None,
        "version": files.identity().get("version") if identity else None,
        "uptime_s": _uptime(identity) if identity else None,
        "running": running,
        "waiting": waiting,
        "held": _held(files),
        "store": url,
        "log": str(files.log),
    }
    if as_json:
        print_json(value)
    elif identity is not None:
        click.echo(
            f"the agent lives: process {identity.pid}, version {value['version']}, for "
            f"{duration(value['uptime_s'])}\n{running} running, {waiting} waiting\nlog {files.log}"
        )
    else:
        why = value["held"] or "a submission starts it"
        click.echo(f"no agent lives ({why})\n{running} running, {waiting} waiting\nlog {files.log}")
    raise SystemExit(0 if identity is not None else 1)


@agent.command()
@store_option
def stop(url: str) -> None:
    """Stop the agent until the next submission; running trainings go on without it."""
    files = AgentFiles(url)
    files.create()
    files.held.write_text("it was stopped on purpose")
    if not files.alive():
        click.echo(
            "no agent lives; none starts before the next submission or `rlsched agent start`"
        )
        return
    deadline = time.monotonic() + STOP_WAIT_S
    told = False
    while files.alive():
        if not told and (identity := _identity(files)):
            told = identity.signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"the agent (process {_pid(files)}) does not end within {STOP_WAIT_S:.0f} s: "
                f"see {files.log}"
            )
        time.sleep(POLL_S)
    running, _ = _counts(url)
    click.echo("the agent has stopped")
    if running:
        click.echo(
            f"{running} trainings go on; the next agent (next submission or `rlsched agent start`) "
            "takes them over"
        )


def _held(files: AgentFiles) -> str | None:
    """Why no agent starts by itself; None when one does."""
    try:
        return files.held.read_text()
    except FileNotFoundError:
        return None


def _identity(files: AgentFiles) -> Identity | None:
    """The living agent, as it introduced itself."""
    identity = Identity.from_json(files.identity().get("process"))
    return identity if identity is not None and identity.alive() else None


def _pid(files: AgentFiles) -> int | str:
    identity = _identity(files)
    return identity.pid if identity else "unknown"


def _uptime(identity: Identity) -> float:
    import psutil

    return max(0.0, time.time() - psutil.Process(identity.pid).create_time())


def _counts(url: str) -> tuple[int, int]:
    """How many of its runs are running and waiting."""
    from mlflow_rlsched.store import State

    store = open_existing(url)
    if store is None:
        return 0, 0
    with closing(store):
        states = [task.state for task in my_tasks(store)]
    return states.count(State.RUNNING), states.count(State.QUEUED)


def _log_tail(files: AgentFiles) -> str:
    try:
        lines = files.log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-LOG_LINES:]) or f"{files.log} is empty"
