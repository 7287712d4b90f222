"""Learning from real runs: ``python -m mlflow_rlsched.learning.online``, a task of the queue.

It continues from the champion, with the transitions that the store keeps. What comes out is
promoted if it is better than the champion on simulated runs like the recorded ones, and not worse
on any others. Where it stands is saved now and then: stopped or killed at whatever moment, the next
attempt goes on from there, and the champion is the old one or the new one.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlflow_rlsched import decision_log
from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.learning.evaluation import Estimate, Played, mean_of, play
from mlflow_rlsched.learning.experience import experience, fill, usable
from mlflow_rlsched.learning.improvement import NEVER, evaluate, improve
from mlflow_rlsched.learning.mlflow_log import Log
from mlflow_rlsched.learning.workloads import NEWEST, Workload, WorkloadError
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.policy.ddpg import Learner, Settings
from mlflow_rlsched.policy.divergence import DivergenceError, Health, Watch
from mlflow_rlsched.policy.inputs import WEIGHTS
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.replay import Replay
from mlflow_rlsched.simulator.run import Runs
from mlflow_rlsched.store import Store, StoreError, Transition, open_store
from mlflow_rlsched.training import Session, attach
from mlflow_rlsched.versions import VersionNotFoundError, Versions

WORSE = math.log(0.99)
"""Logarithm of the ratio of the times from which a candidate counts as worse on other runs."""


@dataclass(frozen=True)
class Plan:
    """How much is learned, and how it is judged.

    Attributes:
        evaluation: Rounds in which the critics learn what the champion is worth.
        improvement: Rounds after that, in which the actor learns what was better.
        updates: Updates a round; a checkpoint follows.
        steps: Most rewards that a transition sums up.
        runs: Simulated runs of each kind on which the candidate is compared with the champion.
        at_once: Runs between two checkpoints.
        seed: Of all that is drawn.
    """

    evaluation: int = 20
    improvement: int = 8
    updates: int = 100
    steps: int = 10
    runs: int = 64
    at_once: int = 8
    seed: int = 0


class NothingToLearnError(Exception):
    """There is nothing to learn from or to go on from, and why, in a sentence."""


@dataclass(frozen=True)
class Verdict:
    """How a candidate compares with the champion.

    Attributes:
        fitted: Mean logarithm of the champion's time over the candidate's, on runs like those that
            were recorded.
        general: The same on any others.
    """

    fitted: Estimate
    general: Estimate

    @property
    def better(self) -> bool:
        """Whether the candidate is to be promoted."""
        return self.fitted.low > 0 and self.general.low > WORSE

    def __str__(self) -> str:
        pairs = (("runs like yours", self.fitted), ("others", self.general))
        return ", ".join(
            f"{math.expm1(e.value):+.1%} faster ({math.expm1(e.low):+.1%} to"
            f" {math.expm1(e.high):+.1%}) on {name}"
            for name, e in pairs
        )


class OnlineLearning:
    """One learning task, over all its attempts.

    Args:
        store: Has the transitions, and says where the records of the runs are.
        versions: The versions of the user.
        session: The attempt; saves where the learning stands.
        plan: How much is learned.
        log: Takes the losses and figures.

    Raises:
        NothingToLearnError: See there.
    """

    def __init__(
        self, store: Store, versions: Versions, session: Session, plan: Plan, log: Log
    ) -> None:
        self._store, self._versions, self._session = store, versions, session
        self._plan, self._log = plan, log
        self._state: dict[str, Any] = session.load() or {"round": 0, "fitted": [], "general": []}
        self._transitions = self._read()
        self._workload = self._fitted()
        self._learner = Learner(Settings(critic_rate=1e-3, actor_after=NEVER), plan.seed)
        self._champion = self._begin()

    def run(self) -> bool:
        """Learn, compare, and promote what is better; whether that was the candidate.

        Raises:
            DivergenceError: The learner diverges at its lowest rate too.
            OSError: The folder of the versions cannot be written; the champion stays.
            PolicyFileError: The record of the promotions is damaged; the champion stays.
            SystemExit: It was asked to stop; the next attempt goes on.
        """
        self._learn()
        candidate = self._candidate()
        self._compare("fitted", self._workload.runs, candidate)
        self._compare("general", Runs, candidate)
        verdict = Verdict(*(mean_of(np.array(self._state[kind])) for kind in ("fitted", "general")))
        figures = {**asdict(verdict), "fit": self._workload.figures()}
        self._log.figures(figures)
        path = self._versions.add(candidate)
        learned = f"version {candidate.name}, learned from {len(self._transitions)} decisions"
        if not verdict.better:
            self._log.say(f"{learned}, is not promoted: {verdict}")
            return False
        if self._versions.champion().version.name not in (self._champion.name, candidate.name):
            self._log.say(f"{learned}, is not promoted: there is another champion by now")
            return False
        self._versions.promote(candidate, str(verdict), figures)
        self._log.register(candidate, path)
        self._log.say(f"{learned}, is the champion now: {verdict}")
        return True

    # What there is

    def _read(self) -> list[Transition]:
        """What can be learned from, of what was there when the first attempt began."""
        found = self._store.transitions()
        last = self._state.setdefault("serial", found[-1][0] if found else 0)
        known = usable(item for serial, item in found if serial <= last)
        if not known:
            raise NothingToLearnError("no decision on a run can be learned from yet")
        return known

    def _fitted(self) -> Workload:
        newest = list(dict.fromkeys(item.run_id for item in reversed(self._transitions)))[:NEWEST]
        tasks = [task for run_id in newest if (task := self._store.get(run_id)) is not None]
        try:
            return Workload.fit(list(decision_log.read(Path(task.spec.run_dir))) for task in tasks)
        except WorkloadError as error:
            raise NothingToLearnError(f"a new version could not be judged: {error}") from error

    def _begin(self) -> Version:
        """The version to continue from; the learner is where the last attempt left it."""
        try:
            if "learner" in self._state:
                champion = self._versions.find(self._state["champion"])
            else:
                champion = self._versions.champion().version
            self._learner.adopt(champion.arrays)
        except (PolicyFileError, VersionNotFoundError) as error:
            raise NothingToLearnError(f"there is no policy to continue from: {error}") from error
        except KeyError as error:
            raise NothingToLearnError(
                f"the policy has no {error}: it can act, but nobody can continue its training"
            ) from error
        self._state["champion"] = champion.name
        if "learner" in self._state:
            saved = self._state["learner"].items()
            self._learner.resume({name: value.numpy() for name, value in saved})
        else:
            rows = [row.inputs for row, *_ in experience(self._transitions)]
            self._learner.observe(np.concatenate(rows))
        return champion

    # Learning

    def _learn(self) -> None:
        plan, learner = self._plan, self._learner
        replay = Replay(seed=plan.seed + self._state["round"])
        count = fill(replay, self._transitions, plan.steps)
        rewards = np.concatenate([row.reward for row, *_ in experience(self._transitions)])
        watch = Watch(learner, _largest(self._transitions))
        self._log.say(f"learning from {count} decisions; the fit: {self._workload.figures()}")
        while self._state["round"] < plan.evaluation + plan.improvement:
            if self._state["round"] < plan.evaluation:
                losses = evaluate(learner, replay, plan.updates)
                trouble = watch.check(Health(float(rewards.mean()), losses.value, losses.clipped))
                if trouble is not None:
                    self._log.say(trouble)
                told = {"loss/critic": losses.critic, "value": losses.value}
            else:
                loss, share = improve(learner, replay, plan.updates)
                told = {"loss/actor": loss, "better": share}
            self._state["round"] += 1
            self._log.metrics(told, self._state["round"])
            self._checkpoint()

    def _candidate(self) -> Version:
        card = dict(self._champion.card)
        card.pop("figures", None)  # those of the champion
        card["continued"] = {"from": self._champion.name, "decisions": len(self._transitions)}
        return Version(self._learner.arrays(), card, self._champion.optional, self._champion.heads)

    def _checkpoint(self) -> None:
        """Save where it stands; leave, when that was asked for."""
        learner = self._learner.state()
        self._state["learner"] = {name: torch.from_numpy(v) for name, v in learner.items()}
        self._session.save(self._state)
        self._session.step(samples=0)
        if self._session.should_stop:
            self._session.leave()

    # Judging

    def _compare(self, kind: str, runs: Callable[[int, int], Runs], candidate: Version) -> None:
        """Play the same runs under both; the logarithms of the ratios of their times."""
        found: list[float] = self._state[kind]
        weights = Weights(**self._transitions[-1].data["weights"])
        while len(found) < self._plan.runs:
            count = min(self._plan.at_once, self._plan.runs - len(found))
            seconds = [
                _played(runs(count, self._plan.seed + len(found)), version, weights).seconds
                for version in (self._champion, candidate)
            ]
            found += np.log(seconds[0] / seconds[1]).tolist()
            self._log.metrics({f"faster/{kind}": float(np.mean(found))}, len(found))
            self._checkpoint()


def _played(runs: Runs, version: Version, weights: Weights) -> Played:
    nodes = runs.parameters.gpus_per_node
    return play(runs, lambda run: Ddpg(version, weights, float(nodes[run])), weights)


def _largest(transitions: list[Transition]) -> Weights:
    told = [item.data["weights"] for item in transitions]
    return Weights(**{name: max(weights[name] for weights in told) for name in WEIGHTS})


def main() -> int:
    """Learn as the attempt of a task; returns the exit code."""
    os.nice(19)
    torch.set_num_threads(1)
    log = Log()
    try:
        with attach() as session, closing(open_store(os.environ["RLSCHED_CFG_STORE"])) as store:
            OnlineLearning(store, Versions(), session, Plan(), log).run()
    except NothingToLearnError as error:
        log.say(str(error))
    except (DivergenceError, PolicyFileError, StoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
