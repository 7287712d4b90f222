"""Temporary: replaced by the full command."""

from __future__ import annotations

import sys

import click


@click.group()
def main() -> None:
    """Rlsched."""


@main.group()
def agent() -> None:
    """Agent."""


@agent.command()
@click.option("--store")
@click.option("--idle-timeout", type=float)
def run(store: str, idle_timeout: float | None) -> None:
    """Run."""
    from mlflow_rlsched.agent.loop import run_agent

    sys.exit(run_agent(store, idle_timeout))
