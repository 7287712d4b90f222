"""The training of a policy on simulated runs, from random weights: DAgger, then the critics.

The expert says what it would do on the runs that the *actor* leads, so that the actor learns to
come back from its own mistakes (Ross et al. 2011, "A Reduction of Imitation Learning and Structured
Prediction to No-Regret Online Learning"). A learned scheduler needs such a beginning (Peng et al.
2021, "DL2: A Deep Learning-Driven Scheduler"). Then the critics of DDPG learn what the actor is
worth, so that it can go on from real runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from mlflow_rlsched.learning.expert import expert
from mlflow_rlsched.learning.improvement import NEVER, evaluate
from mlflow_rlsched.learning.parallel import pool
from mlflow_rlsched.learning.rollouts import Rollouts
from mlflow_rlsched.policy.action import FACTOR_MAX, FACTOR_MIN
from mlflow_rlsched.policy.baselines import Fixed
from mlflow_rlsched.policy.ddpg import Learner, Settings
from mlflow_rlsched.policy.decision import Decider
from mlflow_rlsched.policy.inputs import FACTORS, WEIGHTS, Array, decode, encode
from mlflow_rlsched.policy.learned import EXPLORATION
from mlflow_rlsched.policy.replay import Replay, Returns
from mlflow_rlsched.simulator.environment import WEIGHTS as USUAL
from mlflow_rlsched.simulator.parameters import Ranges
from mlflow_rlsched.simulator.run import Runs, Source

TRAINED_ON = ("cifar10", "imagenet", "ncf")
"""Applications that policies are trained on; yolov3 is there to choose by, the rest to judge by."""

RANGES = Ranges(rigid_gpus=0.3, rigid_batch=0.15)
"""Of the runs: not all of them can change all."""

HEADS = ("gpus", "batch_size")
"""Knobs that the actor sets; there is nobody to learn the rate from, so the rules set it."""

_FOLDED = 10  # most rewards that a transition sums up
_USUAL = 0.5  # part of the runs with the usual weights of the reward
_SPREAD = np.log([[0.5, 2.0], [0.1, 2.0], [0.5, 2.0], [0.02, 0.5]])  # of the others'
_TRIED_GPUS, _TRIED_BATCH = 0.01, 0.1  # how often something else than what is proposed is done
_WANDERS, _AS_FAR = 0.03, 1.5  # how often the rate sets out, and how far: a logarithm


Examples = tuple[Array, Array]
"""Inputs (N, 31) that were met, and what the expert would do there, (N, 7) encoded."""


def drawn(count: int, seed: int, apps: Sequence[str] = TRAINED_ON) -> Runs:
    """Runs to train on."""
    return Runs(count, seed, None, RANGES, apps)


@dataclass(frozen=True)
class Plan:
    """How a policy is trained.

    Attributes:
        rounds: Rounds of acting, then learning.
        runs: Simulated runs side by side.
        steps: Intervals of each run a round.
        passes: How often a round learns from each step.
        batch_size: Steps an update.
        rate: Learning rate of the first round; it falls to 0 in equal steps.
        mixing: The expert acts instead of the actor with this probability to the power of the
            round (beta of Ross et al., section 3.1): always in the first.
    """

    rounds: int = 150
    runs: int = 512
    steps: int = 32
    passes: int = 4
    batch_size: int = 1024
    rate: float = 1e-3
    mixing: float = 0.5


class Pretraining:
    """A training.

    Attributes:
        learner: The policy, and the critics that it goes on with.
        round: Rounds that are done.
    """

    def __init__(self, plan: Plan, seed: int = 0, source: Source = drawn, workers: int = 1) -> None:
        """Begin.

        Args:
            plan: How much.
            seed: Of all that is drawn: the same one leads to the same policy.
            source: Draws the runs.
            workers: Processes that the runs are split over; 1 for this one alone. Another number
                leads to another policy: each draws runs of its own.
        """
        self._plan, self._seed, self._source = plan, seed, source
        self._workers = min(workers, plan.runs)
        self.learner = Learner(Settings(critic_rate=1e-3, actor_after=NEVER), seed)
        self.round = 0

    def rounds(self) -> Generator[float, None, None]:
        """Act and learn, round by round; yields the mean loss of each.

        Raises:
            WorkerError: A process ended.
        """
        plan, learner = self._plan, self.learner
        # Runs are not kept over an interruption: others begin, drawn anew.
        seed = self._seed + 7919 * self.round
        random = np.random.default_rng([seed, 2])
        gathered = self._alone(seed, random) if self._workers == 1 else self._together(seed)
        with contextlib.closing(gathered):
            while self.round < plan.rounds:
                examples, actions = next(gathered)
                updates = max(1, plan.passes * len(examples) // plan.batch_size)
                rate = plan.rate * (1 - self.round / plan.rounds)
                losses = [
                    learner.imitate(examples[some], actions[some], rate)
                    for some in random.integers(len(examples), size=(updates, plan.batch_size))
                ]
                self.round += 1
                yield float(np.mean(losses))

    def _alone(self, seed: int, random: np.random.Generator) -> Generator[Examples, None, None]:
        """What the runs of each round show, in this process."""
        world = _World(self._source, self._plan.runs, seed)
        while True:
            yield world.lead(self.learner, self._plan.steps, self._mixed, random)

    def _together(self, seed: int) -> Generator[Examples, None, None]:
        """The same, side by side: each part of the runs meets the actor as the round begins."""
        sizes = [len(part) for part in np.array_split(np.arange(self._plan.runs), self._workers)]
        seeds = np.random.SeedSequence(seed).generate_state(len(sizes)).tolist()
        worlds = [_World(self._source, *each) for each in zip(sizes, seeds, strict=True)]
        randoms = [np.random.default_rng([each, 2]) for each in seeds]
        with pool(_Part.lead, self._workers) as do:
            while True:
                arrays = self.learner.arrays()
                parts = [
                    _Part(world, random, arrays, self._plan.steps, self._mixed)
                    for world, random in zip(worlds, randoms, strict=True)
                ]
                found = dict(do(parts))
                ordered = [found[place] for place in range(len(parts))]
                worlds, randoms, seen = (list(column) for column in zip(*ordered, strict=True))
                inputs, actions = map(np.concatenate, zip(*seen, strict=True))
                self.learner.observe(inputs)
                yield inputs, actions

    @property
    def _mixed(self) -> float:
        return self._plan.mixing**self.round

    def judge(self, runs: int = 256, steps: int = 100, updates: int = 2000) -> float:
        """Let the critics of DDPG learn what the actor is worth; returns their last loss.

        Args:
            runs: Simulated runs.
            steps: Intervals of each.
            updates: Updates of the critics.
        """
        world = _World(self._source, runs, self._seed + 1)
        replay, returns = Replay(runs * steps, seed=self._seed), Returns(_FOLDED)
        random = np.random.default_rng([self._seed, 4])
        self.learner.hold_here()
        for _ in range(steps):
            action = self.learner.act(world.rollouts.inputs)
            noise = EXPLORATION * random.standard_normal((runs, FACTORS))
            action[:, -FACTORS:] = np.clip(action[:, -FACTORS:] + noise, -1, 1)
            taken = world.rollouts.take(action)
            for folded in returns.push(taken.transitions, taken.ended, taken.key, taken.real):
                replay.add(*folded)
        return evaluate(self.learner, replay, updates).critic

    def optional(self, runs: int = 32, decisions: int = 40) -> list[str]:
        """Fields of the state that the simulated runs do without now and then."""
        played = self._source(runs, self._seed + 2)
        deciders = [Decider(played.bounds.of(run), Fixed()) for run in range(runs)]
        found: set[str] = set()
        settings = played.settings.copy()
        for _ in range(decisions):
            seen = played.advance(settings)
            for run in np.flatnonzero(~played.ended):
                found |= deciders[run].decide(seen.interval(int(run))).state.missing
        return sorted(found)

    # Where it stands

    def state(self) -> dict[str, Any]:
        """All that the next round depends on but the runs."""
        learner = self.learner.state().items()
        return {"round": self.round, "learner": {k: torch.from_numpy(v) for k, v in learner}}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.learner.resume({k: v.numpy() for k, v in state["learner"].items()})
        self.round = int(state["round"])


class _World:
    """Simulated runs with all kinds of weights, whose rate wanders as rules and users let it."""

    def __init__(self, source: Source, runs: int, seed: int) -> None:
        self.rollouts = Rollouts(runs, seed, runs=source(runs, seed))
        self._random = np.random.default_rng([seed, 3])
        self._aims = np.zeros(runs)
        self.rollouts.weigh(self._weights(runs))

    def lead(
        self, learner: Learner, steps: int, mixed: float, random: np.random.Generator
    ) -> Examples:
        """Let the learner's actor act, which sees the inputs for the first time.

        Args:
            learner: Who acts.
            steps: Intervals of each run.
            mixed: Probability that the expert acts instead.
            random: Draws where.
        """
        seen, taught = [], []
        for _ in range(steps):
            inputs, wanted = self.rollouts.inputs, expert(self.rollouts)
            learner.observe(inputs)
            seen.append(inputs)
            taught.append(wanted)
            led = random.random((len(inputs), 1)) < mixed
            self.act(np.where(led, wanted, learner.act(inputs)))
        return np.concatenate(seen), np.concatenate(taught)

    def act(self, action: Array) -> None:
        """Take encoded actions, with another rate and now and then something else."""
        random, environment = self._random, self.rollouts.environment
        begins, count = environment.over, len(action)
        environment.weights[begins] = self._weights(int(begins.sum()))
        deltas, batch, _ = decode(action)
        other = random.random(count) < _TRIED_GPUS
        deltas = np.where(other, random.integers(-2, 3, count), deltas)
        other = random.random(count) < _TRIED_BATCH
        batch = np.where(other, random.uniform(FACTOR_MIN, FACTOR_MAX, count), batch)
        anew = random.random(count) < _WANDERS
        self._aims = np.where(anew, random.uniform(-_AS_FAR, _AS_FAR, count), self._aims)
        self._aims[begins] = 0.0
        rate = np.exp(self._aims) / environment.runs.settings.lr_factor
        self.rollouts.take(encode(deltas, batch, np.clip(rate, FACTOR_MIN, FACTOR_MAX)))

    def _weights(self, count: int) -> Array:
        low, high = _SPREAD.T
        others = np.exp(self._random.uniform(low, high, (count, len(WEIGHTS))))
        usual = self._random.random((count, 1)) < _USUAL
        return np.where(usual, USUAL, others)


class _Part(NamedTuple):
    """Runs of a process for a round, and the actor that leads them."""

    world: _World
    random: np.random.Generator
    arrays: Mapping[str, Array]
    steps: int
    mixed: float

    def lead(self) -> tuple[_World, np.random.Generator, Examples]:
        """What they show, and where they and what they draw are then."""
        torch.set_num_threads(1)  # the others have the other cores
        learner = Learner()
        learner.adopt(self.arrays)
        examples = self.world.lead(learner, self.steps, self.mixed, self.random)
        return self.world, self.random, examples
