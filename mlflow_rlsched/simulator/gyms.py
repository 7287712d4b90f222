"""The Gymnasium environments ``rlsched/Run-v0`` and ``rlsched/Cluster-v0``.

An observation is the state of a run (``policy.state.FIELDS``). An action is a pair: the place in
``policy.action.GPU_DELTAS``, and the factors on the batch size and the learning rate, each encoded
from -1 (0.8) to 1 (1.2), 0 for no change (``Action.encoded``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.policy.state import FIELDS
from mlflow_rlsched.simulator.cluster_environment import ClusterEnvironment
from mlflow_rlsched.simulator.environment import RunEnvironment
from mlflow_rlsched.simulator.measured import ENDINGS
from mlflow_rlsched.simulator.models import Floats

Observation: TypeAlias = NDArray[np.float32]
HybridAction: TypeAlias = tuple[Any, Any]
Info: TypeAlias = dict[str, Any]

_LARGEST_SEED = 2**31


def observation_space() -> spaces.Box[Any]:
    """The space of the states."""
    return spaces.Box(-1, 1, (len(FIELDS),), np.float32)


def action_space() -> spaces.Tuple[Any]:
    """The space of the actions: GPU delta, and both factors."""
    factors = spaces.Box(-1, 1, (2,), np.float32)
    return spaces.Tuple((spaces.Discrete(len(GPU_DELTAS)), factors))


def encoded(action: HybridAction) -> Floats:
    """Actions as ``RunEnvironment.step`` takes them, runs x 3."""
    delta = np.atleast_1d(np.asarray(action[0], int))
    factors = np.atleast_2d(np.asarray(action[1], float))
    deltas = np.asarray(GPU_DELTAS)[delta] / GPU_DELTAS[-1]
    return np.concatenate([deltas[:, None], factors], axis=1)


class RunEnv(gymnasium.Env[Observation, HybridAction]):
    """One run from its start to its end; an episode begins with another run.

    ``info`` says what the state does not: ``elapsed_s``, the true ``progress``, the setting
    (``gpus``, ``batch_size``, ``lr_scale``), ``energy_j`` of the devices in the last interval as
    measured (NaN when it was not), and ``ending`` (``done``, ``oom``, ``diverged``, ``failed`` or
    None).
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # as its base class declares it

    def __init__(self, **options: Any) -> None:
        """Make the environment.

        Args:
            options: Of ``RunEnvironment``: ``effects``, ``ranges``, ``apps``, ``weights``.
        """
        self.observation_space = observation_space()
        self.action_space = action_space()
        self._options = options
        self._runs: RunEnvironment | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin another run; its first observation is of an interval at its initial setting."""
        super().reset(seed=seed)
        self._runs = RunEnvironment(1, int(self.np_random.integers(_LARGEST_SEED)), **self._options)
        return _first(self._runs.states), _info(self._runs, 0)

    def step(self, action: HybridAction) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on the run and let it train for an interval."""
        if self._runs is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        states, rewards, terminated, truncated = self._runs.step(encoded(action))
        info = _info(self._runs, 0)
        return _first(states), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info


class RunVectorEnv(VectorEnv[Observation, HybridAction, NDArray[Any]]):
    """Many runs at once, much faster than as many ``RunEnv``: ``gymnasium.make_vec``."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        """Make the environments.

        Args:
            num_envs: Runs side by side.
            options: Of ``RunEnvironment``: ``effects``, ``ranges``, ``apps``, ``weights``.
        """
        self.num_envs = num_envs
        self.single_observation_space = observation_space()
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._options = options
        self._runs: RunEnvironment | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin other runs.

        Args:
            seed: One seed for all runs.
            options: Not used.
        """
        if isinstance(seed, list):
            raise ValueError("all runs share one seed: give a number, not a list")
        super().reset(seed=seed)
        self._runs = RunEnvironment(
            self.num_envs, int(self.np_random.integers(_LARGEST_SEED)), **self._options
        )
        return self._runs.states.astype(np.float32), {}

    def step(
        self, actions: HybridAction
    ) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Decide on all runs and let them train for an interval."""
        if self._runs is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        step = self._runs.step(encoded(actions))
        return (
            step.states.astype(np.float32),
            step.rewards,
            step.terminated,
            step.truncated,
            {},
        )


class ClusterEnv(gymnasium.Env[Observation, HybridAction]):
    """Many runs that share one pool of devices; a step decides on one of them, in turn.

    When all running ones had their turn they train for an interval; the step that ends the turn
    has the mean of their rewards, the others have none. Runs that do not fit wait, first come,
    first served. The episode ends when all are done. ``info`` is that of the run observed, and
    ``run``, its number.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # as its base class declares it

    def __init__(self, runs: int = 8, gpus: int = 16, **options: Any) -> None:
        """Make the environment.

        Args:
            runs: Runs that come.
            gpus: Devices of the pool.
            options: Of ``ClusterEnvironment``.
        """
        self.observation_space = observation_space()
        self.action_space = action_space()
        self._options = {"count": runs, "gpus": gpus, **options}
        self._cluster: ClusterEnvironment | None = None
        self._actions: list[Floats] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin with an empty pool and other runs."""
        super().reset(seed=seed)
        seed = int(self.np_random.integers(_LARGEST_SEED))
        self._cluster = ClusterEnvironment(seed=seed, **self._options)
        self._actions = []
        return self._observed(self._cluster)

    def step(self, action: HybridAction) -> tuple[Observation, float, bool, bool, Info]:
        """Decide on the run that was observed."""
        cluster = self._cluster
        if cluster is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        self._actions.append(encoded(action)[0])
        reward = 0.0
        if len(self._actions) == len(cluster.turn):
            actions = np.zeros((len(cluster.runs.elapsed), 3))
            actions[cluster.turn] = self._actions
            reward = float(cluster.round(actions).mean())
            self._actions = []
        observation, info = self._observed(cluster)
        return observation, reward, cluster.done, cluster.truncated, info

    def _observed(self, cluster: ClusterEnvironment) -> tuple[Observation, Info]:
        run = int(cluster.turn[len(self._actions)]) if len(cluster.turn) else 0
        info = _info(cluster, run) | {"run": run}
        return _first(cluster.states[[run]]), info


class FlattenHybridAction(
    gymnasium.ActionWrapper[Observation, NDArray[np.float32], HybridAction], RecordConstructorArgs
):
    """Gives an environment of this module a plain ``Box(3)`` of actions, each from -1 to 1.

    So any library for continuous actions can learn on it. The encoding is ``Action.encoded``: 0
    changes nothing; the GPU delta is the nearest of five equally spaced values.
    """

    def __init__(self, env: gymnasium.Env[Observation, HybridAction]) -> None:
        """Wrap ``env``."""
        RecordConstructorArgs.__init__(self)
        gymnasium.ActionWrapper.__init__(self, env)
        self.action_space = spaces.Box(-1, 1, (3,), np.float32)

    def action(self, action: NDArray[np.float32]) -> HybridAction:
        """The pair that a flat action stands for."""
        bounded = np.clip(action, -1, 1)
        delta = round(float(bounded[0]) * GPU_DELTAS[-1])
        return GPU_DELTAS.index(delta), bounded[1:]


def _first(states: Floats) -> Observation:
    return np.asarray(states[0], np.float32)


def _info(environment: RunEnvironment, run: int) -> Info:
    seen, setting = environment.seen, environment.runs.settings.of(run)
    energy = seen.power[run] * seen.settings.gpus[run] * seen.duration[run]
    read = {"energy_j": float(energy)} if np.isfinite(energy) else {}
    return {
        "elapsed_s": float(environment.runs.elapsed[run]),
        "progress": float(environment.runs.progress[run]),
        "gpus": setting.gpus,
        "batch_size": setting.batch_size,
        "lr_scale": setting.lr_scale,
        "ending": ENDINGS[seen.ending[run]],
        **read,
    }
