"""The ``rlsched`` command."""

from __future__ import annotations

import click

from mlflow_rlsched import __version__
from mlflow_rlsched.cli import (
    agent,
    dashboard,
    devices,
    doctor,
    explain,
    policy,
    profile,
    replay,
    report,
    requests,
    runs,
    search,
    show,
    simulate,
)
from mlflow_rlsched.cli.common import Group


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlsched")
def main() -> None:
    """Look after the runs of ``mlflow run --backend rlsched``.

    RUN_ID is an MLflow run id or the first characters of one. Exit codes: 0 done, 1 it failed,
    2 wrong usage.
    """


for command in (
    agent.agent,
    runs.queue,
    show.show,
    explain.explain,
    requests.cancel,
    requests.prioritize,
    requests.retry,
    runs.logs,
    devices.devices,
    doctor.doctor,
    policy.policy,
    search.search,
    simulate.simulate,
    profile.profile,
    replay.replay,
    report.report,
    dashboard.dashboard,
):
    main.add_command(command)
