"""The learner: DDPG (Lillicrap et al. 2016) with the remedies of TD3 (Fujimoto et al. 2018).

Values are in units of the reward of a reference interval: rewards are scaled by 1 - discount, so
that returns stay near 1 whatever the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_rlsched.policy.action import GPU_DELTAS
from mlflow_rlsched.policy.inputs import CLIP, FACTORS, LAST_ACTION, Array, chosen
from mlflow_rlsched.policy.networks import Actor, Critics, Normaliser, gumbel, one_hot
from mlflow_rlsched.policy.replay import Replay
from mlflow_rlsched.policy.reward import DISCOUNT


@dataclass(frozen=True)
class Settings:
    """What the learner is told.

    Attributes:
        batch_size: Transitions an update.
        actor_rate: Learning rate of the actor.
        critic_rate: Learning rate of the critics.
        target_rate: Part of the way that the target networks go to the others, an update.
        critics: Critics; the target takes the lowest (TD3, section 4.2).
        actor_every: Updates of the critics for one of the actor (TD3, section 5.2).
        actor_after: Updates of the critics before the first of the actor: critics that know
            nothing would lead an actor astray that was taught.
        target_noise: Standard deviation of the noise on the target's factors (TD3, section 5.3).
        target_clip: Largest such noise.
        smoothness: Weight of mean((a - a')^2), the change against the action before.
        cloning: Weight of the distance to the reference actor.
        authority: How far reinforcement moves the GPU delta, the batch factor and the
            learning-rate factor, 0 to 1 each: the scale of its gradient. What it does not move,
            the reference holds.
    """

    batch_size: int = 256
    actor_rate: float = 1e-4
    critic_rate: float = 3e-4
    target_rate: float = 0.005
    critics: int = 2
    actor_every: int = 2
    actor_after: int = 0
    target_noise: float = 0.2
    target_clip: float = 0.5
    smoothness: float = 0.1
    cloning: float = 1.0
    authority: tuple[float, float, float] = (1.0, 1.0, 1.0)


def critic_loss(values: Tensor, target: Tensor, importance: Tensor) -> Tensor:
    """Weighted mean squared error, summed over the critics.

    Args:
        values: (N, critics) estimates.
        target: (N, 1) what they should be.
        importance: (N, 1) importance weights.
    """
    return (importance * (values - target) ** 2).mean(0).sum()


def reinforcement_loss(values: Tensor) -> Tensor:
    """Minus the mean value, over the mean absolute value.

    So the other terms weigh the same whatever the reward's scale (Fujimoto and Gu 2021, "A
    Minimalist Approach to Offline Reinforcement Learning", equation 5).

    Args:
        values: (N, 1) values of the actor's own actions.
    """
    return -values.mean() / values.detach().abs().mean().clamp_min(1e-3)


def smoothness_loss(choice: Tensor, factors: Tensor, before: Tensor) -> Tensor:
    """mean((a - a')^2) of encoded actions, as in the reward.

    Args:
        choice: (N, 5) one-hot GPU deltas.
        factors: (N, 2) factors in [-1, 1].
        before: (N, 3) the encoded actions before.
    """
    deltas = torch.tensor(GPU_DELTAS, dtype=factors.dtype) / GPU_DELTAS[-1]
    action = torch.cat([(choice @ deltas)[:, None], factors], 1)
    return ((action - before) ** 2).mean()


def cloning_loss(logits: Tensor, factors: Tensor, shares: Tensor, wanted: Tensor) -> Tensor:
    """Distance to what a teacher would do: cross-entropy, and squared error of the factors.

    Args:
        logits: (N, 5) of the actor.
        factors: (N, 2) of the actor.
        shares: (N, 5) the teacher's probabilities.
        wanted: (N, 2) the teacher's factors.
    """
    return functional.cross_entropy(logits, shares) + ((factors - wanted) ** 2).mean()


@dataclass(frozen=True)
class Losses:
    """What an update found.

    Attributes:
        critic: Loss of the critics.
        actor: Loss of the actor; NaN when it was not its turn.
        value: Mean absolute value, reward a reference interval.
        clipped: Share of the normalised inputs that were clipped.
    """

    critic: float
    actor: float
    value: float
    clipped: float


class Learner:
    """Actor, critics and their targets, and how they learn from a replay.

    The same seed and the same transitions give the same policy.

    Attributes:
        actor: Who acts.
        critics: Who judge.
        normaliser: Statistics of the inputs; ``act`` and ``update`` see inputs through it.
        reference: A frozen actor that the actor is held near, or None.
    """

    def __init__(self, settings: Settings | None = None, seed: int = 0) -> None:
        self.settings = settings or Settings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critics = Actor(), Critics(self.settings.critics)
        self.normaliser = Normaliser()
        self.reference: Actor | None = None
        self.updates = 0
        self._actor_target, self._critics_target = _frozen(self.actor), _frozen(self.critics)
        self._actor_adam = _adam(self.actor, self.settings.actor_rate)
        self._critic_adam = _adam(self.critics, self.settings.critic_rate)
        self._teacher_adam = _adam(self.actor, rate=0.0)  # each step brings its own
        self._random = torch.Generator().manual_seed(seed)

    def observe(self, inputs: Array) -> None:
        """Take (N, 31) new inputs into the normalisation, once each."""
        self.normaliser.update(torch.from_numpy(inputs))

    def act(self, inputs: Array, noise: float = 0.0) -> Array:
        """Encoded actions (N, 7) for inputs (N, 31).

        Args:
            inputs: What is seen.
            noise: Standard deviation of the noise on the factors; above 0 the GPU delta is drawn
                too, not chosen.
        """
        with torch.no_grad():
            logits, factors = self.actor(self.normaliser(torch.from_numpy(inputs)))
        if noise <= 0:
            return chosen(torch.cat([logits, factors], 1).numpy())
        drawn: Array = torch.cat(self._drawn(logits, factors, noise, clip=math.inf), 1).numpy()
        return drawn

    def update(self, replay: Replay, updates: int = 1) -> Losses:
        """Updates from what the replay draws at once, whose priorities are set.

        The targets of all ``updates`` batches are those of before the first one; so a few at once
        cost less than one by one, and a few leave the slow target networks where they were.

        Returns:
            The means.
        """
        size = self.settings.batch_size
        sample = replay.sample(updates * size)
        seen = sample.transitions
        raw, action, importance = map(
            torch.from_numpy, (seen.inputs, seen.action, sample.importance)
        )
        inputs = self.normaliser(raw)
        target = self._target(
            *map(torch.from_numpy, (seen.reward, seen.discount, seen.next_inputs))
        )
        actors = _pairs(self._actor_target, self.actor)
        critics = _pairs(self._critics_target, self.critics)
        critic, actor, estimates = [], [], []
        # Every so many-th row makes a batch, which has a share of all parts of the priorities.
        columns = (inputs, action, target, importance, raw[:, LAST_ACTION])
        batches = (column.unflatten(0, (size, updates)).unbind(1) for column in columns)
        for state, taken, wanted, weight, before in zip(*batches, strict=True):
            values = self.critics(state, taken)
            loss = critic_loss(values, wanted, weight)
            _step(self._critic_adam, loss)
            critic.append(loss.detach())
            estimates.append(values.detach())
            self.updates += 1
            if self._is_actors_turn():
                actor.append(self._update_actor(state, before))
                _follow(actors, self.settings.target_rate)
            _follow(critics, self.settings.target_rate)
        found = torch.stack(estimates, 1).flatten(0, 1)
        replay.update(sample.places, (found - target).abs().mean(1).numpy())
        clipped = float((inputs.abs() >= CLIP).float().mean())
        return Losses(_mean(critic), _mean(actor), float(found.abs().mean()), clipped)

    def imitate(self, inputs: Array, actions: Array, rate: float = 1e-3) -> float:
        """One step of supervised learning towards a teacher's actions; returns the loss.

        Args:
            inputs: (N, 31) inputs.
            actions: (N, 7) encoded actions of the teacher.
            rate: Learning rate of the step.
        """
        self._teacher_adam.param_groups[0]["lr"] = rate
        teacher = torch.from_numpy(actions)
        logits, factors = self.actor(self.normaliser(torch.from_numpy(inputs)))
        loss = cloning_loss(logits, factors, teacher[:, :-FACTORS], teacher[:, -FACTORS:])
        _step(self._teacher_adam, loss)
        return float(loss.item())

    def hold_here(self) -> None:
        """Make the actor as it is the reference and the target, as after imitation."""
        self.reference = _frozen(self.actor)
        self._actor_target = _frozen(self.actor)

    def arrays(self) -> dict[str, Array]:
        """What a policy version holds: actor, critics and normalisation, by name."""
        return _arrays(self._parts())

    def adopt(self, arrays: Mapping[str, Array]) -> None:
        """Go on from a policy version, whose actor is the reference and the target."""
        _load(self._parts(), arrays)
        self._critics_target = _frozen(self.critics)
        self.hold_here()

    def state(self) -> dict[str, Array]:
        """All that the next ``update`` depends on, but for the replay."""
        found = _arrays(self._parts() | self._followers())
        for which, adam in self._optimisers().items():
            found[f"{which}.rate"] = np.array([adam.param_groups[0]["lr"]])
            for number, moments in adam.state_dict()["state"].items():
                for name, value in moments.items():
                    found[f"{which}.{number}.{name}"] = value.numpy().reshape(-1).copy()
        found["updates"] = np.array([self.updates])
        found["random"] = self._random.get_state().numpy().copy()
        return found

    def resume(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where ``state`` was taken."""
        if "reference.body.0.bias" in state:
            self.reference = _frozen(self.actor)
        _load(self._parts() | self._followers(), state)
        for which, adam in self._optimisers().items():
            adam.param_groups[0]["lr"] = float(state[f"{which}.rate"][0])
            for number, parameter in enumerate(adam.param_groups[0]["params"]):
                prefix = f"{which}.{number}."
                adam.state[parameter] = {
                    name.removeprefix(prefix): torch.from_numpy(value.copy()).view(
                        () if name.endswith("step") else parameter.shape
                    )
                    for name, value in state.items()
                    if name.startswith(prefix)
                }
        self.updates = int(state["updates"][0])
        self._random.set_state(torch.from_numpy(state["random"]))

    def _parts(self) -> dict[str, nn.Module]:
        return {"actor": self.actor, "critics": self.critics, "normaliser": self.normaliser}

    def _followers(self) -> dict[str, nn.Module]:
        found = {"actor_target": self._actor_target, "critics_target": self._critics_target}
        return found if self.reference is None else found | {"reference": self.reference}

    def _optimisers(self) -> dict[str, torch.optim.Adam]:
        return {"actor_adam": self._actor_adam, "critic_adam": self._critic_adam}

    def slow_down(self, factor: float = 0.5) -> None:
        """Lower both learning rates."""
        for adam in self._optimisers().values():
            for group in adam.param_groups:
                group["lr"] *= factor

    def _is_actors_turn(self) -> bool:
        settings = self.settings
        return self.updates > settings.actor_after and self.updates % settings.actor_every == 0

    def _target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        settings = self.settings
        with torch.no_grad():
            inputs = self.normaliser(following)
            logits, factors = self._actor_target(inputs)
            drawn = self._drawn(logits, factors, settings.target_noise, settings.target_clip)
            values = self._critics_target(inputs, torch.cat(drawn, 1))
            return (1 - DISCOUNT) * reward + discount * values.amin(1, keepdim=True)

    def _drawn(
        self, logits: Tensor, factors: Tensor, noise: float, clip: float
    ) -> tuple[Tensor, Tensor]:
        """A draw round what an actor says: one-hot GPU deltas and factors with noise."""
        normal = noise * torch.randn(factors.shape, generator=self._random)
        choice = one_hot(logits, gumbel(logits, self._random))
        return choice, (factors + normal.clamp(-clip, clip)).clamp(-1, 1)

    def _update_actor(self, inputs: Tensor, before: Tensor) -> Tensor:
        settings = self.settings
        logits, factors = self.actor(inputs)
        choice = one_hot(logits, gumbel(logits, self._random))
        gpus, batch, rate = settings.authority
        moved = torch.cat([_scaled(choice, gpus), _scaled(factors, torch.tensor([batch, rate]))], 1)
        loss = reinforcement_loss(self.critics.first(inputs, moved))
        loss = loss + settings.smoothness * smoothness_loss(
            moved[:, :-FACTORS], moved[:, -FACTORS:], before
        )
        if self.reference is not None:
            with torch.no_grad():
                held, wanted = self.reference(inputs)
            loss = loss + settings.cloning * cloning_loss(logits, factors, held.softmax(1), wanted)
        _step(self._actor_adam, loss)
        return loss.detach()


def _mean(values: Sequence[Tensor]) -> float:
    return float(torch.stack(list(values)).mean()) if values else math.nan


def _arrays(modules: Mapping[str, nn.Module]) -> dict[str, Array]:
    return {
        f"{part}.{name}": value.numpy().copy()
        for part, module in modules.items()
        for name, value in module.state_dict().items()
    }


def _load(modules: Mapping[str, nn.Module], arrays: Mapping[str, Array]) -> None:
    for part, module in modules.items():
        module.load_state_dict(
            {name: torch.from_numpy(arrays[f"{part}.{name}"]) for name in module.state_dict()}
        )


def _frozen(module: nn.Module) -> nn.Module:
    return deepcopy(module).requires_grad_(False)


def _adam(module: nn.Module, rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=rate, fused=True)


def _step(adam: torch.optim.Adam, loss: Tensor) -> None:
    # Gradients of its parameters alone: the actor's loss runs through the critics.
    parameters = adam.param_groups[0]["params"]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    adam.step()


def _pairs(target: nn.Module, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return list(zip(target.parameters(), module.parameters(), strict=True))


def _follow(pairs: Sequence[tuple[Tensor, Tensor]], rate: float) -> None:
    with torch.no_grad():
        for slow, fast in pairs:
            slow.lerp_(fast, rate)


def _scaled(values: Tensor, authority: Tensor | float) -> Tensor:
    """The same values with their gradient scaled."""
    return values.detach() + authority * (values - values.detach())
