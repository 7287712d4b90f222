"""What the commands share: options, the store, errors, and how things are shown.

Everything heavy is imported where it is used, so that ``rlsched --help`` is quick.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_rlsched.daemon import user_name
from mlflow_rlsched.sharing import SQLITE

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from mlflow_rlsched.store import Store, Task

PIPE_WIDTH = 240
MIN_PREFIX = 4


class WrongUsage(click.ClickException):
    """What was asked for makes no sense; exit code 2."""

    exit_code = 2


class Group(click.Group):
    """A group whose commands end with one line, never with a traceback, when something is wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        from mlflow_rlsched.requests import RefusedError
        from mlflow_rlsched.store import StoreError

        try:
            return super().invoke(ctx)
        except (StoreError, RefusedError) as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            raise  # click ends quietly when nobody reads any more
        except OSError as error:
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise click.ClickException(text) from error


store_option = click.option(
    "--store",
    "url",
    metavar="URL",
    callback=lambda _ctx, _param, text: resolve_store(text),
    help="Store to use: sqlite:///<absolute path>; by default as runs are configured.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
seed_option = click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**32 - 1),
    help="Of all that is drawn.",
)


def workers_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--workers``, with what it is for."""
    return click.option(
        "--workers", default=1, show_default=True, type=click.IntRange(1, 1024), help=text
    )


def resolve_store(text: str | None) -> str:
    """The store's absolute URL."""
    from mlflow_rlsched.config import ConfigError, store_url

    try:
        return store_url(text, os.environ)
    except ConfigError as error:
        raise WrongUsage(str(error)) from error


def open_existing(url: str) -> Store | None:
    """The store, or None when it was not made yet."""
    from mlflow_rlsched.store import open_store

    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        return None
    return open_store(url)


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store that holds the run that a command names, closed at the end."""
    store = open_existing(url)
    if store is None:
        raise WrongUsage(f"no runs yet: there is no store {url}")
    with closing(store):
        yield store


def find_task(store: Store, text: str) -> Task:
    """The task whose run id is, or alone begins with, ``text``."""
    if task := store.get(text):
        return task
    if len(text) < MIN_PREFIX:
        raise WrongUsage(f"run id {text!r} is too short: give at least {MIN_PREFIX} characters")
    found = [task for task in store.tasks() if task.run_id.startswith(text)]
    if not found:
        raise WrongUsage(f"no run {text!r} in this store: `rlsched queue` and MLflow name them")
    if len(found) > 1:
        several = ", ".join(sorted(task.run_id for task in found)[:3])
        raise WrongUsage(f"run id {text!r} is not unique ({several}, …): give more characters")
    return found[0]


def my_tasks(store: Store) -> list[Task]:
    """What this user's agent on this host has to do: waiting and running tasks."""
    from mlflow_rlsched.store import State

    tasks = store.tasks([State.QUEUED, State.RUNNING], socket.gethostname())
    return [task for task in tasks if task.spec.user == user_name()]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns for the terminal, without those that are empty in all rows."""
    from rich.table import Table
    from rich.text import Text

    body = [[plain(cell) for cell in row] for row in rows]
    used = [column for column in range(len(headings)) if any(row[column] for row in body)]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in used:
        made.add_column(headings[column], overflow="fold")
    for row in body:
        made.add_row(*(Text(row[column]) for column in used))
    return made


def print_table(made: Table) -> None:
    """Print a table: as wide as the terminal, and on long lines into a file or a pipe."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(made)


def progress_bar() -> Progress:
    """A bar on standard error, if that is a terminal; it leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def plain(value: object) -> str:
    """Text that cannot command the terminal."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def clock(when: float | None) -> str:
    """A time of day with its date, in local time."""
    return "" if when is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
