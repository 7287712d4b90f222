"""``rlsched dashboard``: the runs, the devices and the decisions in a browser."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import click

from mlflow_rlsched.cli.common import WrongUsage, store_option

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EXTRA = ("dash", "dash_mantine_components", "dash_ag_grid", "plotly", "waitress")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8050, show_default=True, type=click.IntRange(1, 65535), help="TCP port."
)
@click.option("--url-prefix", default="/", show_default=True, help="Path below which it is served.")
@click.option(
    "--tracking-uri",
    envvar="MLFLOW_TRACKING_URI",
    metavar="URI",
    help="MLflow tracking URI of the runs; by default as runs are submitted.",
)
@click.option(
    "--mlflow-ui-url",
    metavar="URL",
    help="MLflow UI that links lead to; by default the tracking URI, where that is a server.",
)
@click.option(
    "--studies",
    metavar="URL",
    help="Storage of the studies that are shown; by default that of `rlsched search`.",
)
@store_option
@click.option(
    "--read-only/--allow-actions",
    default=None,
    help="Whether runs can be cancelled, retried and given priorities. Read-only by default where"
    " others can reach it and need not say who they are.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File, readable by you alone, with the token that a browser has to know"
    " (or RLSCHED_DASHBOARD_TOKEN).",
)
@click.option(
    "--user-header",
    metavar="NAME",
    help="Header in which a proxy that checks who comes names the user.",
)
def dashboard(
    host: str,
    port: int,
    url_prefix: str,
    tracking_uri: str | None,
    mlflow_ui_url: str | None,
    studies: str | None,
    url: str,
    read_only: bool | None,
    token_file: Path | None,
    user_header: str | None,
) -> None:
    """Show runs, devices, decisions and policies in a browser, until Ctrl-C."""
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise click.ClickException(
            f"the dashboard needs {', '.join(missing)}: `pip install 'mlflow-rlsched[dashboard]'`"
        )
    token = _token(token_file)
    local = host in LOOPBACK
    known = token is not None or user_header is not None
    if read_only is False and not local and not known:
        raise WrongUsage(
            f"--allow-actions on {host} would let anybody end runs: add --token-file or"
            " --user-header, or listen on 127.0.0.1"
        )
    _check_devices()
    # MLflow tells of runs without pandas, which would be a fifth of the server's memory.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    from rlsched_dashboard.serving import serve
    from rlsched_dashboard.settings import Settings

    uri = _tracking_uri(tracking_uri)
    settings = Settings(
        store=url,
        tracking_uri=uri,
        mlflow_ui_url=mlflow_ui_url or (uri if uri.startswith("http") else None),
        host=host,
        port=port,
        url_prefix=_prefix(url_prefix),
        read_only=not (local or known) if read_only is None else read_only,
        token=token,
        user_header=user_header,
        studies=studies,
    )
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"http://{shown}:{port}{settings.url_prefix} (Ctrl-C ends it)")
    try:
        serve(settings)
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {shown}:{port}: {error.strerror}; choose another --port or --host"
        ) from error


def _tracking_uri(text: str | None) -> str:
    from mlflow import get_tracking_uri

    return text or str(get_tracking_uri())


def _prefix(text: str) -> str:
    """The path below which all is served, with a slash at both ends."""
    if not re.fullmatch(r"[\w.~/-]*", text, re.ASCII):
        raise WrongUsage(f"--url-prefix {text!r} is no path: write one like /rlsched")
    return "/".join(["", *filter(None, text.split("/")), ""])


def _check_devices() -> None:
    from mlflow_rlsched.devices import open_inventory
    from mlflow_rlsched.devices.cpu import CpuSlotsError

    try:
        open_inventory().close()
    except CpuSlotsError as error:
        raise WrongUsage(str(error)) from error


def _token(file: Path | None) -> str | None:
    """The token that a browser has to know, or None."""
    if file is None:
        return os.environ.get("RLSCHED_DASHBOARD_TOKEN") or None
    if file.stat().st_mode & 0o077:
        raise WrongUsage(f"others can read {file}: `chmod 600 {file}`")
    try:
        token = file.read_text().strip()
    except UnicodeDecodeError as error:
        raise WrongUsage(f"{file} is no text: write a token into it") from error
    if not token:
        raise WrongUsage(f"{file} is empty: write a token of at least 16 characters into it")
    return token
