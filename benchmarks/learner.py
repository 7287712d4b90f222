"""How fast the learner, its replay and a decision are, beside the libraries that are at hand.

Stable-Baselines3 and TorchRL are no dependencies: what they are missing for is left out, and said.
All that is compared is measured in turns, so that a busy machine slows it down alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Figure, command
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.ddpg import Learner, Settings
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.inputs import ENCODED, INPUTS, STATE, Array
from mlflow_rlsched.policy.interval import Interval, Setting
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.measuring import observe
from mlflow_rlsched.policy.replay import PARTS, Replay, Transitions
from mlflow_rlsched.policy.state import build_state
from mlflow_rlsched.protocol import CAPABILITIES, Report

CAPACITY = 100_000
BATCH = 256
AT_ONCE = 8


def filled() -> Replay:
    """A full replay of random transitions, one in ten a key transition."""
    random = np.random.default_rng(0)
    replay = Replay(CAPACITY)
    widths = {
        "inputs": len(INPUTS),
        "action": ENCODED,
        "parts": PARTS,
        "discount": 1,
        "next_inputs": len(INPUTS),
    }
    for _ in range(CAPACITY // 1000):
        rows = (
            random.normal(size=(1000, widths[field.name])).astype(np.float32)
            for field in fields(Transitions)
        )
        replay.add(Transitions(*rows), random.random(1000) < 0.1)
    return replay


def in_turns(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, measured in turns."""
    took: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            began = time.perf_counter()
            call()
            took[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in took.items()}


def replays(rounds: int) -> list[Figure]:
    """Milliseconds to draw 256 of 100,000 transitions, and to set their priorities."""
    uniform = torchrl_uniform()
    if uniform is None:
        return missing("torchrl")
    replay, random = filled(), np.random.default_rng(0)
    rows, errors = replay._rows, random.normal(size=BATCH)

    def draw_and_update() -> None:
        replay.update(replay.sample(BATCH).places, errors)

    work: dict[str, Callable[[], object]] = {
        "draw": lambda: replay.sample(BATCH),
        "both": draw_and_update,
        "numpy": lambda: rows[random.integers(0, CAPACITY, BATCH)],
        "torchrl": uniform,
    }
    took = in_turns(work, 20 * rounds)
    base = took["torchrl"]
    note = f"256 of 100,000 rows; numpy's bare uniform gather {took['numpy']:.3g} ms"
    return [
        Figure("draw by priority", took["draw"], "ms", base, base, note),
        Figure("draw and set priorities", took["both"], "ms", 2 * base, base, note),
    ]


def missing(package: str) -> list[Figure]:
    """No figures, and why."""
    print(f"{package} is not installed: there is nothing to compare with", file=sys.stderr)
    return []


def torchrl_uniform() -> Callable[[], object] | None:
    """Drawing 256 from TorchRL's uniform buffer, 100,000 rows of 23 numbers; None without it."""
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, ReplayBuffer
    except ImportError:
        return None
    buffer = ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    rows = {
        "observation": torch.randn(CAPACITY, len(STATE)),
        "action": torch.randn(CAPACITY, ENCODED),
        "reward": torch.randn(CAPACITY, 1),
        "done": torch.zeros(CAPACITY, 1, dtype=torch.bool),
        "next": torch.randn(CAPACITY, len(STATE)),
    }
    buffer.extend(TensorDict(rows, batch_size=[CAPACITY]))
    sample: Callable[[], object] = buffer.sample
    return sample


def learners(rounds: int) -> list[Figure]:
    """Milliseconds of an update at batches of 256 and [256, 256] hidden units, on one thread.

    Matrix products are most of it. SB3's DDPG, which moves its actor each time, does 1.47 times as
    many as one critic here, and 0.96 times as many as two; no more is to be had at this precision.
    """
    other = stable_baselines()
    if other is None:
        return missing("stable-baselines3")
    torch.set_num_threads(1)  # as learning from runs has; two would wait for each other
    replay = filled()
    variants = {
        "one critic": Learner(Settings(critics=1)),
        "two critics": Learner(),
        "two critics, held by a reference": Learner(),
    }
    variants["two critics, held by a reference"].hold_here()

    def updates(learner: Learner) -> Callable[[], object]:
        return lambda: learner.update(replay, AT_ONCE)

    work = {name: updates(learner) for name, learner in variants.items()} | {"sb3": other}
    took = {name: each / AT_ONCE for name, each in in_turns(work, rounds).items()}
    base = took["sb3"]
    note = f"{AT_ONCE} updates drawn at once, the actor's every second; baseline: SB3's DDPG"
    return [
        Figure(
            f"an update, {name}",
            took[name],
            "ms",
            base / 2,
            base,
            f"{1000 / took[name]:.0f}/s, {note}",
        )
        for name in variants
    ]


def stable_baselines() -> Callable[[], object] | None:
    """As many updates of Stable-Baselines3's DDPG at the same sizes; None without it."""
    try:
        from stable_baselines3 import DDPG
    except ImportError:
        return None
    import gymnasium

    class Nothing(gymnasium.Env[Array, Array]):
        observation_space = gymnasium.spaces.Box(-1, 1, (len(INPUTS),), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ENCODED,), np.float32)

        def reset(self, **_: Any) -> tuple[Array, dict[str, Any]]:
            return self.observation_space.sample(), {}

    model: Any = DDPG(
        "MlpPolicy",
        Nothing(),
        policy_kwargs={"net_arch": [256, 256]},
        batch_size=BATCH,
        buffer_size=CAPACITY,
        device="cpu",
    )
    model._setup_learn(1)
    state, action = model.observation_space, model.action_space
    for _ in range(2000):
        row = (state.sample(), state.sample(), action.sample(), np.zeros(1), np.zeros(1))
        model.replay_buffer.add(*row, [{}])
    return lambda: model.train(AT_ONCE, BATCH)


def decision(rounds: int) -> Figure:
    """Milliseconds of a decision: the fit of the goodput model, its advice and the actor."""
    learner = Learner()
    learner.observe(np.full((2, len(INPUTS)), 2, np.float32))
    learner.observe(np.full((2, len(INPUTS)), -2, np.float32))
    policy = Ddpg(Version(learner.arrays(), optional=STATE))
    limits, history = Limits(batch_initial=64, gpus_max=4, gpus_are_live=True), History()
    took = []
    for number in range(20 * rounds):
        start = 10 * number
        told = [
            Report(
                numbers={
                    "time": at,
                    "samples": 900.0 * at,
                    "loss": 1.0,
                    "grad_sqr": 1,
                    "grad_var": 9,
                }
            )
            for at in map(float, range(start, start + 5))
        ]
        setting = Setting(1, 64 + number % 30)
        now = Interval(5, 5.0 * number, setting, reports=told, can=frozenset(CAPABILITIES))
        history = observe(history, now, limits)
        state = build_state(history, now, limits)
        began = time.perf_counter()
        proposal = policy.propose(state, now, history, limits)
        took.append(1000 * (time.perf_counter() - began))
        history = History(**{**vars(history), "notes": proposal.notes})
    note = f"median of {len(took)}, the model's fit included"
    return Figure("a decision", statistics.median(took), "ms", 2.0, None, note)


def measure(quick: bool) -> list[Figure]:
    """All figures."""
    rounds = 3 if quick else 30
    return [*replays(rounds), *learners(rounds), decision(rounds)]


main = command(measure)

if __name__ == "__main__":
    main()
