"""How real runs went under policy versions, and whether the champion is worse than the one before.

A run's *gain* is its mean reward an interval, less that of its first interval, over the sum of its
weights: the first interval, in which next to nothing has been decided yet, stands for what differs
between runs whatever decides on them, such as the part of their devices that they hold.

Gains of runs under two versions are compared by ranks (Mann and Whitney 1947, "On a Test of Whether
one of Two Random Variables is Stochastically Larger than the Other"), so that one run that failed
cannot decide. The comparison is made at 8, 16, 32, ... runs of the champion, each time at half the
level of the time before: however long it goes on, a champion that is no worse is rolled back with a
probability of at most ``FALSE_ALARM``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.reward import Terms, reward
from mlflow_rlsched.store import Transition
from mlflow_rlsched.versions import Versions, champions

NAME = "outcomes.jsonl"

FEWEST_DECISIONS = 10
"""Decisions from which a run says something of its policy."""

FEWEST_RUNS = 8
"""Runs of either version from which they are compared."""

MOST_RUNS = 64
"""Runs of the version before, the newest, that the champion is compared with."""

FALSE_ALARM = 0.05

MARGIN = 0.01
"""Fall of the gain that does not count: with the usual weights, a tenth of the first throughput."""

_TAIL_BYTES = 2**20


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        run_id: The run.
        version: The policy version that decided on all of it.
        gain: See the module's text.
        time: When it ended, seconds since the epoch.
    """

    run_id: str
    version: str
    gain: float
    time: float


def outcome_of(transitions: Sequence[Transition], ended_at: float) -> Outcome | None:
    """The outcome of a run; None where one version did not decide on all of it, or on too little.

    Args:
        transitions: All of the run, in their order.
        ended_at: When it ended, seconds since the epoch.
    """
    told = [transition.data for transition in transitions]
    by = {(data["policy"], data["version"]) for data in told}
    if len(told) < FEWEST_DECISIONS or len(by) != 1 or told[0]["policy"] != "ddpg":
        return None
    weights = Weights(**told[0]["weights"])
    worth = weights.alpha + weights.beta + weights.gamma
    terms = [Terms.from_json(data["terms"]) for data in told]
    lengths = [each.duration_s / each.scales.interval_s for each in terms]
    if worth == 0 or lengths[0] <= 0:
        return None
    rewards = [reward(each, weights) for each in terms]
    start = (rewards[0].total - rewards[0].penalty) / lengths[0]
    mean = sum(each.total for each in rewards) / sum(lengths)
    return Outcome(transitions[0].run_id, told[0]["version"], (mean - start) / worth, ended_at)


def fall(champion: Sequence[float], before: Sequence[float]) -> str | None:
    """Why the champion is to be rolled back, in a sentence; None when it is not.

    Args:
        champion: Gains of runs under the champion, oldest first.
        before: Gains of runs under the version before, oldest first.
    """
    before = before[-MOST_RUNS:]
    if min(len(champion), len(before)) < FEWEST_RUNS:
        return None
    doublings = int(math.log2(len(champion) / FEWEST_RUNS))
    champion = champion[: FEWEST_RUNS << doublings]
    chance = chance_of_so_low([gain + MARGIN for gain in champion], before)
    if chance >= FALSE_ALARM / 2 ** (doublings + 1):
        return None
    return (
        f"the reward of real runs fell: median gain {median(champion):+.3f} in {len(champion)}"
        f" runs, {median(before):+.3f} in {len(before)} under the version before"
        f" (chance {chance:.2g})"
    )


def chance_of_so_low(these: Sequence[float], others: Sequence[float]) -> float:
    """Probability that ``these`` rank so low among ``others`` or lower, if both are alike.

    By the normal approximation with correction for ties and continuity, good from about 8 values
    each.
    """
    pairs = len(these) * len(others)
    total = len(these) + len(others)
    above = sum((a > b) + (a == b) / 2 for a in these for b in others)
    ties = sum(count**3 - count for count in Counter([*these, *others]).values())
    variance = pairs / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = (above + 0.5 - pairs / 2) / math.sqrt(variance)
    return math.erfc(-z / math.sqrt(2)) / 2


def review(versions: Versions, transitions: Sequence[Transition]) -> str | None:
    """Take in a run that is over, and roll the champion back where its runs say so.

    Args:
        versions: The versions of the user; the outcomes are kept in their folder.
        transitions: All of the run, in their order.

    Returns:
        Why the champion was rolled back, or None when it was not.

    Raises:
        PolicyFileError: The record of the champions is damaged, or there is none to go back to.
        OSError: The folder cannot be written.
    """
    outcome = outcome_of(transitions, time.time())
    if outcome is None:
        return None
    versions.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _append(versions.folder / NAME, outcome)
    changes = versions.changes()
    names = champions(changes)
    if names[-1:] != [outcome.version]:
        return None
    before = names[-2] if len(names) > 1 else versions.find("shipped").name
    since = max(c.time for c in changes if c.champion == outcome.version and not c.rollback)
    found = _read(versions.folder / NAME)
    reason = fall(
        [each.gain for each in found if each.version == outcome.version and each.time >= since],
        [each.gain for each in found if each.version == before],
    )
    if reason is not None and versions.rollback(reason, of=outcome.version):
        return reason
    return None


def _append(path: Path, outcome: Outcome) -> None:
    line = json.dumps(asdict(outcome)).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[Outcome]:
    """The newest outcomes, oldest first; of a run that was resumed, the last one."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().splitlines()
    found: dict[str, Outcome] = {}
    for line in lines:
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue  # torn by a crash or by where the reading begins
        found.pop(outcome.run_id, None)
        found[outcome.run_id] = outcome
    return list(found.values())
