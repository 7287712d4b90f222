"""Policy versions, what is known of their worth, and where they learned."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_rlsched.overview.policies import overview
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.versions import Versions

RUNS = 16
"""Simulated runs of an evaluation that is asked for here: half a minute."""

BASELINES = ("fixed", "rules", "goodput")


@dataclass(frozen=True)
class Against:
    """A version beside a baseline on the same simulated runs: ratios, below 1 is better.

    Attributes:
        baseline: One of ``BASELINES``.
        time: Mean ratio of the times to the target.
        low: Its 95 % interval, from here
        high: to here.
        geometric: Geometric mean of the same.
        device_hours: Ratio of the device-hours.
        reached: Part of the runs that got to their target.
    """

    baseline: str
    time: float
    low: float
    high: float
    geometric: float
    device_hours: float
    reached: float


@dataclass(frozen=True)
class Evaluation:
    """What a version is worth, as far as that was simulated.

    Attributes:
        against: A row for each baseline.
        basis: On what that rests.
    """

    against: tuple[Against, ...]
    basis: str


class Policies:
    """The versions of this user. Each is read once, and evaluated once where somebody asks."""

    def __init__(self) -> None:
        self._versions = Versions()
        self._lock = threading.Lock()
        self._evaluated: dict[str, Evaluation | str] = {}
        self._evaluating: str | None = None

    def overview(self) -> dict[str, Any]:
        """The versions, the champion and its history: as ``rlsched policy list --json`` has it."""
        with self._lock:
            return overview(self._versions)

    def version(self, name: str) -> Version:
        """A version by its name, or ``shipped``.

        Raises:
            VersionNotFoundError: There is none.
            PolicyFileError: It cannot be used; the text says why.
        """
        with self._lock:
            return self._versions.find(name)

    def evaluation(self, version: Version) -> Evaluation | str | None:
        """What a version is worth; why that is not known; or None where nobody asked."""
        with self._lock:
            found = self._evaluated.get(version.name)
        return found or _of_card(version.card.get("figures"))

    def is_evaluating(self) -> str | None:
        """The version that is being evaluated now, or None."""
        return self._evaluating

    def evaluate(self, name: str, argument: str) -> None:
        """Begin to evaluate a version, unless another one is being evaluated.

        Args:
            name: The version.
            argument: How ``rlsched policy evaluate`` finds it.
        """
        with self._lock:
            if self._evaluating is not None:
                return
            self._evaluating = name
        threading.Thread(target=self._evaluate, args=(name, argument), daemon=True).start()

    def _evaluate(self, name: str, argument: str) -> None:
        # In a process of its own, whose memory goes with it and which leaves the pages quick.
        command = ["nice", sys.executable, "-m", "mlflow_rlsched", "policy", "evaluate", argument]
        command += ["--runs", str(RUNS), "--workers", "1", "--json"]
        found: Evaluation | str
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                found = done.stderr.strip() or f"it ended with code {done.returncode}"
            else:
                found = _of_command(json.loads(done.stdout))
        except (OSError, ValueError) as error:
            found = str(error)
        with self._lock:
            self._evaluated[name] = found
            self._evaluating = None


def _of_command(told: Mapping[str, Any]) -> Evaluation:
    figures = {"fixed": told["over_fixed"][told["policy"]], **told["over_others"]}
    basis = (
        f"{told['runs']} simulated runs like {' and '.join(told['apps'])}, as a novice starts them"
    )
    return Evaluation(_rows(figures), basis)


def _of_card(figures: Any) -> Evaluation | None:
    """What a version's own card says of it, where it says that in this form."""
    if not isinstance(figures, dict):
        return None
    known = {name: figures.get(f"ddpg over {name}") for name in BASELINES}
    rows = _rows({name: each for name, each in known.items() if isinstance(each, dict)})
    if not rows:
        return None
    like = " and ".join(map(str, figures.get("like", ())))
    return Evaluation(rows, f"{figures.get('simulated_runs')} simulated runs like {like}")


def _rows(figures: Mapping[str, Mapping[str, Any]]) -> tuple[Against, ...]:
    return tuple(
        Against(
            name,
            each["time"]["value"],
            each["time"]["low"],
            each["time"]["high"],
            each["geometric"],
            each["device_hours"],
            each["reached"],
        )
        for name in BASELINES
        if (each := figures.get(name)) and each.get("time")
    )
