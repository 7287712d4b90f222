"""The ``rlsched`` command."""

from __future__ import annotations

import click

from mlflow_rlsched import __version__
from mlflow_rlsched.cli.agent import agent
from mlflow_rlsched.cli.common import Group
from mlflow_rlsched.cli.devices import devices
from mlflow_rlsched.cli.doctor import doctor
from mlflow_rlsched.cli.requests import cancel, prioritize, retry
from mlflow_rlsched.cli.runs import logs, queue
from mlflow_rlsched.cli.show import show


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlsched")
def main() -> None:
    """Look after the runs of ``mlflow run --backend rlsched``.

    RUN_ID is an MLflow run id or the first characters of one. Exit codes: 0 done, 1 it failed,
    2 wrong usage.
    """


for command in (agent, queue, show, cancel, prioritize, retry, logs, devices, doctor):
    main.add_command(command)
