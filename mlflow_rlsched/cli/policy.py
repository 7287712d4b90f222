"""``rlsched policy``: the versions of the policy that learns, and which of them is in use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.asking import ask_server, tracking_store_is_there
from mlflow_rlsched.cli.common import (
    Group,
    WrongUsage,
    clock,
    json_option,
    plain,
    print_json,
    print_table,
    table,
)
from mlflow_rlsched.cli.evaluate import evaluate
from mlflow_rlsched.cli.train import train
from mlflow_rlsched.credentials import redacted

if TYPE_CHECKING:
    from mlflow_rlsched.policy.checkpoint import Version
    from mlflow_rlsched.versions import Change, Versions

_reason_option = click.option("--reason", default="", help="Why, for the history.")


class PolicyGroup(Group):
    """A group whose commands end with one line when a policy cannot be used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        from mlflow_rlsched.policy.checkpoint import PolicyFileError
        from mlflow_rlsched.versions import VersionNotFoundError

        try:
            return super().invoke(ctx)
        except VersionNotFoundError as error:
            raise WrongUsage(str(error)) from error
        except PolicyFileError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=PolicyGroup)
def policy() -> None:
    """Look at the versions of the policy that learns, and say which one is in use.

    That one is the champion: the version that was promoted last, or else the one that comes with
    the package. Runs with the policy ddpg follow it, also those that are going on.
    """


@policy.command("list")
@json_option
def list_versions(as_json: bool) -> None:
    """List the versions, and how the champion came about."""
    from mlflow_rlsched.policy.checkpoint import PolicyFileError
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    try:
        champion = versions.champion()
        name, trouble = champion.version.name, champion.trouble
    except PolicyFileError as error:
        name, trouble = None, str(error)
    rows = _rows(versions, name)
    try:
        changes = versions.changes()
    except PolicyFileError:  # the champion's trouble says it
        changes = []
    if as_json:
        told = {"champion": name, "trouble": trouble, "versions": rows}
        print_json(told | {"history": [_told(change) for change in changes]})
        return
    headings = ["VERSION", "IS", "WRITTEN", "TROUBLE"]
    print_table(table(headings, map(_cells, rows)))
    if trouble:
        click.echo(plain(trouble))
    _print_history(changes)


@policy.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show the model card of a version, by default of the champion.

    NAME is a version's name or the beginning of it, shipped, or the path of a file.
    """
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    version = versions.find(name) if name is not None else versions.champion().version
    changes = [change for change in versions.changes() if change.champion == version.name]
    if as_json:
        about = {"name": version.name, "card": dict(version.card)}
        optional = sorted(version.optional)
        print_json(about | {"optional": optional, "history": [_told(change) for change in changes]})
        return
    click.echo(f"version: {version.name}")
    for key, value in version.card.items():
        click.echo(f"{plain(key)}: {plain(value if isinstance(value, str) else json.dumps(value))}")
    without = ", ".join(sorted(version.optional)) or "none"
    click.echo(f"fields of the state that may be missing: {without}")
    _print_history(changes)


@policy.command()
@click.argument("name", metavar="NAME-or-FILE")
@_reason_option
@json_option
def promote(name: str, reason: str, as_json: bool) -> None:
    """Make a version the champion; it is registered as an MLflow model where that is possible.

    NAME-or-FILE is a version's name or the beginning of it, shipped, or the path of a file.
    """
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    version = versions.find(name)
    figures = version.card.get("figures")
    changed = versions.promote(version, reason, figures if isinstance(figures, dict) else None)
    _tell(version, versions.path(version.name), changed, as_json)


@policy.command()
@_reason_option
@json_option
def rollback(reason: str, as_json: bool) -> None:
    """Make the champion before the champion again."""
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    versions.rollback(reason)
    champion = versions.champion()
    if champion.trouble:
        click.echo(f"Warning: {champion.trouble}", err=True)
    _tell(champion.version, champion.path, True, as_json)


policy.add_command(evaluate)
policy.add_command(train)


def _rows(versions: Versions, champion: str | None) -> list[dict[str, Any]]:
    """What is known of each version; one whose file cannot be used has its trouble."""
    from mlflow_rlsched.policy.checkpoint import PolicyFileError
    from mlflow_rlsched.versions import SHIPPED

    rows = []
    for text in [*(["shipped"] if SHIPPED.exists() else []), *versions.names()]:
        path = SHIPPED if text == "shipped" else versions.path(text)
        row = {"name": text, "path": str(path), "shipped": text == "shipped", "trouble": ""}
        try:
            row["name"] = versions.find(text).name
        except PolicyFileError as error:
            row["trouble"] = str(error)
        rows.append(
            row | {"champion": row["name"] == champion, "written_at": os.path.getmtime(path)}
        )
    return rows


def _cells(row: Mapping[str, Any]) -> Sequence[object]:
    said = ", ".join(name for name in ("champion", "shipped") if row[name])
    return [row["name"], said, clock(row["written_at"]), row["trouble"]]


def _told(change: Change) -> dict[str, Any]:
    return {
        "time": change.time,
        "change": "rollback" if change.rollback else "promotion",
        "champion": change.champion or "shipped",
        "reason": change.reason,
        "figures": dict(change.figures),
    }


def _print_history(changes: Iterable[Change]) -> None:
    rows = [
        [
            clock(c.time),
            "rollback" if c.rollback else "promotion",
            c.champion or "shipped",
            c.reason,
        ]
        for c in changes
    ]
    if rows:
        click.echo()
        print_table(table(["TIME", "CHANGE", "CHAMPION SINCE", "REASON"], rows))


def _tell(version: Version, path: Path, changed: bool, as_json: bool) -> None:
    """Register the champion, and say what was done."""
    address, trouble = _register(version, path)
    if as_json:
        about = {"champion": version.name, "changed": changed, "model": address}
        print_json(about | {"trouble": trouble})
        return
    click.echo(f"version {version.name} is the champion{'' if changed else ' already'}")
    click.echo(f"registered as {address}" if address else f"not registered: {trouble}")


def _register(version: Version, path: Path) -> tuple[str | None, str | None]:
    """Address of the model version, or else why there is none."""
    import mlflow

    from mlflow_rlsched.registry import register

    uri = mlflow.get_tracking_uri()
    if not tracking_store_is_there(uri):
        return None, f"there is no tracking store {redacted(uri)} yet"
    made: list[str] = []
    trouble = ask_server(
        lambda: made.append(register(mlflow.MlflowClient(tracking_uri=uri), version, path))
    )
    if trouble is None:
        return made[0], None
    return None, f"{redacted(uri)}: {redacted(trouble)}"
