"""Makes a trained version the one that comes with the package, with its figures in the model card.

rlsched policy train
python scripts/ship_policy.py VERSION
"""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from mlflow_rlsched.learning.comparison import HELD_OUT, POLICIES, compare, novice, side_by_side
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.versions import SHIPPED, Versions

RUNS = 200
SEED = 1


@click.command(help=__doc__)
@click.argument("name", metavar="VERSION")
def main(name: str) -> None:
    """Judge a version on runs that nothing was trained on, and ship it."""
    version = Versions().find(name)
    policies = {each: each for each in POLICIES} | {"ddpg": version}
    played = side_by_side(policies, novice, RUNS, SEED, os.cpu_count() or 1)
    figures = {
        f"ddpg over {other}": asdict(compare(played["ddpg"], played[other])) for other in POLICIES
    }
    about = {"simulated_runs": RUNS, "like": list(HELD_OUT), "seed": SEED, "start": "novice"}
    card = {**version.card, "figures": about | figures}
    Version(version.arrays, card, version.optional, version.heads).save(SHIPPED)
    print(f"{SHIPPED}: {Version.read(SHIPPED).name}, {SHIPPED.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
