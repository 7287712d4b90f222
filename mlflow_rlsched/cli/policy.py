"""``rlsched policy``: the versions of the policy that learns, and which of them is in use."""

from __future__ import annotations

import json
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
    from mlflow_rlsched.overview.policies import overview
    from mlflow_rlsched.versions import Versions

    found = overview(Versions())
    if as_json:
        print_json(found)
        return
    headings = ["VERSION", "IS", "WRITTEN", "TROUBLE"]
    print_table(table(headings, map(_cells, found["versions"])))
    if found["trouble"]:
        click.echo(plain(found["trouble"]))
    _print_history(found["history"])


@policy.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show the model card of a version, by default of the champion.

    NAME is a version's name or the beginning of it, shipped, or the path of a file.
    """
    from mlflow_rlsched.overview.policies import history
    from mlflow_rlsched.versions import Versions

    versions = Versions()
    version = versions.find(name) if name is not None else versions.champion().version
    changes = [each for each in history(versions) if each["champion"] == version.name]
    if as_json:
        about = {"name": version.name, "card": dict(version.card)}
        print_json(about | {"optional": sorted(version.optional), "history": changes})
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


def _cells(row: Mapping[str, Any]) -> Sequence[object]:
    said = ", ".join(name for name in ("champion", "shipped") if row[name])
    return [row["name"], said, clock(row["written_at"]), row["trouble"]]


def _print_history(changes: Iterable[Mapping[str, Any]]) -> None:
    rows = [[clock(c["time"]), c["change"], c["champion"], c["reason"]] for c in changes]
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
