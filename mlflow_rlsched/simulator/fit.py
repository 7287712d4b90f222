"""Fit the table of applications: ``python -m mlflow_rlsched.simulator.fit DIR > apps.json``.

``DIR`` holds a folder an application in the public format (see ``profiles``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from mlflow_rlsched.simulator.models import Floats, parameters
from mlflow_rlsched.simulator.profiles import DataError, Profile, read_profile

SOURCE = (
    "Fitted to the measurements published with Pollux (Qiao et al., OSDI 2021):"
    " github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces (Apache-2.0);"
    " nodes of 4 NVIDIA T4"
)

POINTS = 30


def summary(profile: Profile) -> dict[str, Any]:
    """An application's coefficients and its course, thinned to ``POINTS`` epochs.

    The course is the median over all measured batch sizes at the same progress: they differ by
    noise alone, as the statistical model has it.
    """
    ends = profile.epoch_ends
    kept = np.unique(np.linspace(0, profile.epochs - 1, POINTS).round().astype(int))
    model = profile.steps.fit
    return {
        "throughput": parameters(model.throughput),
        "median_error": round(model.median_error, 4),
        "batch": [profile.batches[0], profile.batches[-1]],
        "local_batch": list(profile.local_batch),
        "steps": round(float(ends[-1]), 1),
        "progress": _rounded(ends[kept] / ends[-1]),
        "grad_sqr": _rounded(_typical(profile, "sqr")[kept]),
        "grad_var": _rounded(_typical(profile, "var")[kept]),
        "metric": _rounded(_typical(profile, "metric")[kept]),
    }


def _typical(profile: Profile, column: str) -> Floats:
    curves = [profile.at_batch(batch, column) for batch in profile.batches]
    return np.asarray(np.median(curves, axis=0))


def _rounded(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Print the table of the applications measured in DIR, and to stderr how well each fits."""
    try:
        profiles = [read_profile(path) for path in sorted(folder.iterdir()) if path.is_dir()]
    except DataError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from error
    if not profiles:
        raise click.ClickException(f"{folder} holds no folder of an application")
    apps = {profile.name: summary(profile) for profile in profiles}
    for name, app in apps.items():
        click.echo(f"{name:<14}median error {app['median_error']:.1%}", err=True)
    _print({"source": SOURCE, "apps": apps})


def _print(table: dict[str, Any]) -> None:
    """Print the table, a line an entry."""
    lines = [f' "source": {json.dumps(table["source"])}']
    for name, app in table["apps"].items():
        entries = ",\n".join(f"   {json.dumps(key)}: {json.dumps(app[key])}" for key in app)
        lines.append(f"  {json.dumps(name)}: {{\n{entries}\n  }}")
    body = ",\n".join(lines[1:])
    sys.stdout.write(f'{{\n{lines[0]},\n "apps": {{\n{body}\n }}\n}}\n')


if __name__ == "__main__":
    main()
