"""Training runs as a policy meets them, many side by side, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Any, NamedTuple

import numpy as np

from mlflow_rlsched.policy.memory import OOM_FACTOR, SHARE
from mlflow_rlsched.simulator.drawing import draw
from mlflow_rlsched.simulator.guards import batch_rule
from mlflow_rlsched.simulator.measured import (
    DIVERGED,
    DONE,
    FAILED,
    OOM,
    Bounds,
    Measured,
    Settings,
)
from mlflow_rlsched.simulator.models import Floats
from mlflow_rlsched.simulator.parameters import REPORTS, Effects, Parameters, Ranges, along, nodes
from mlflow_rlsched.simulator.windows import Flags

LOST = 5.0
"""Logarithm of the loss over what it would be from which it is not finite."""

_UPSET = 0.1  # the same from which nothing is learnt
_STUCK = 3.0  # the same of a training that is back where it began
_DIRECTIONS = 100.0  # directions over which the gradient's noise spreads: its estimates' error
_OOM_S = 1.0  # seconds until the first step runs out of memory


class Speed(NamedTuple):
    """What settings come to, by run, while nothing goes wrong.

    Attributes:
        rate: Samples a second.
        input_wait: Part of the time that the input takes.
        use: Utilisation of the devices.
        off: ln(learning rate / best).
        noise_scale: Gradient noise scale, samples.
        progress: Part of the training a second.
    """

    rate: Floats
    input_wait: Floats
    use: Floats
    off: Floats
    noise_scale: Floats
    progress: Floats


class Runs:
    """Runs that advance by one decision interval at a time.

    A run that ended stands still until ``renew`` puts another one in its place; so does one that
    waits.

    Attributes:
        parameters: What the runs are.
        settings: The settings in force.
        progress: Part of the training that is done, useful progress.
        elapsed: Running time, seconds.
        ended: Whether a run ended.
        waiting: Whether a run has not begun; none by itself.
        in_rounds: Whether all have one clock, so that restarts take their time of the intervals;
            else an interval goes on until a run has trained for its length, as the agent's does.
    """

    in_rounds = False

    def __init__(
        self,
        count: int,
        seed: int = 0,
        effects: Effects | None = None,
        ranges: Ranges | None = None,
        apps: Sequence[str] | None = None,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._effects, self._ranges, self._apps = effects, ranges, apps
        self.parameters = draw(self._random, count, effects, ranges, apps)
        bounds = self.parameters.bounds
        ones = np.ones(count)
        self.settings = Settings(
            self.parameters.gpus_start.copy(), bounds.batch_initial.copy(), ones, ones.copy()
        )
        self.progress, self.elapsed, self._samples, self._steps = np.zeros((4, count))
        self.ended, self.waiting = np.zeros((2, count), bool)
        self._upset, self._heat, self._restart_left, self._ooms = np.zeros((4, count))
        self._pressure, self._free = np.zeros((2, count))
        self._slow, self._crowded, self._ran_out, self._broken = np.zeros((4, count), bool)
        self._applied = self.settings.copy()
        self._world(np.ones(count, bool))

    @property
    def bounds(self) -> Bounds:
        """The limits of each run."""
        return self.parameters.bounds

    @property
    def standing(self) -> Flags:
        """Whether a run stands still."""
        return np.asarray(self.ended | self.waiting)

    def renew(self, runs: Flags) -> None:
        """Begin new runs in the place of some."""
        if not runs.any():
            return
        fresh = draw(self._random, int(runs.sum()), self._effects, self._ranges, self._apps)
        self.parameters.replace(runs, fresh)
        for settings in (self.settings, self._applied):
            settings.gpus[runs] = fresh.gpus_start
            settings.batch[runs] = fresh.bounds.batch_initial
            settings.lr_factor[runs] = settings.lr_scale[runs] = 1.0
        for values in (self.progress, self.elapsed, self._samples, self._steps, self._upset):
            values[runs] = 0.0
        self._heat[runs] = self._restart_left[runs] = self._ooms[runs] = 0.0
        self.ended[runs] = self._ran_out[runs] = self._broken[runs] = False
        self._world(runs)

    @property
    def learning(self) -> Flags:
        """Whether a run's loss is where its progress puts it: only then does it go on learning."""
        return np.asarray(self._upset <= _UPSET)

    def begin_with(self, gpus: Floats, batch: Floats | None = None) -> None:
        """Begin with other devices, and with another batch at the same learning rate.

        The training stays as long, in steps at the base batch.
        """
        p, bounds = self.parameters, self.bounds
        p.gpus_start[:] = self.settings.gpus[:] = self._applied.gpus[:] = gpus
        if batch is None:
            return
        usual = 10 ** p.noise_scale.mean(axis=1)
        p.lr_optimum *= self._best_by_batch(batch)
        p.planned *= (batch + usual) / (bounds.batch_initial + usual)
        bounds.batch_initial[:] = self.settings.batch[:] = self._applied.batch[:] = batch

    def repeated(self, times: int) -> Runs:
        """Runs of their own, each of these ``times`` in a row, where these are now."""
        found: Runs = _repeated(self, len(self.progress), times)
        return found

    def most_samples(self) -> Floats:
        """Most samples that a device holds."""
        p = self.parameters
        room = p.memory_total - p.memory_base
        unlimited = np.full(len(room), np.inf)
        return np.asarray(
            np.divide(room, p.memory_sample, out=unlimited, where=p.memory_sample > 0)
        )

    def speed(self, settings: Settings) -> Speed:
        """What settings come to now."""
        p, bounds = self.parameters, self.bounds
        gpus, batch = settings.gpus, settings.batch
        local = batch / gpus
        model = p.model
        gradient = model.gradient_time(local)
        computed = batch / model.step_time(nodes(gpus, p.gpus_per_node), gpus, local)
        computed = computed * (1 - np.where(self._crowded, p.interference, 0.0))
        rate = np.where(self._slow, np.minimum(computed, p.input_rate), computed)
        busy = model.gradient_time(local) - np.asarray(model.alpha_c)
        use = gradient * rate / batch * (0.3 + 0.7 * busy / gradient)
        noise = 10 ** along(p.noise_scale, self.progress)
        usual = 10 ** p.noise_scale.mean(axis=1)
        drift = ((1 + usual / batch) / (1 + noise / batch)) ** p.lr_drift
        drift = np.where(bounds.sgd, drift, np.sqrt(drift))
        best = p.lr_optimum * self._best_by_batch(batch) * drift
        off = np.log(settings.lr_scale / best)
        fall = np.where(off < 0, p.lr_fall_below, p.lr_fall_above)
        worth = (1 + noise / p.base_batch) / (1 + noise / batch) / np.cosh(fall * off)
        learnt = np.where(self.learning, worth, 0.0)
        return Speed(rate, 1 - rate / computed, use, off, noise, rate / batch * learnt / p.steps)

    def _best_by_batch(self, batch: Floats) -> Floats:
        """Best rate at a batch over that at the initial one, at the usual noise scale."""
        usual = 10 ** self.parameters.noise_scale.mean(axis=1)
        room = (1 + usual / self.bounds.batch_initial) / (1 + usual / batch)
        return np.asarray(np.where(self.bounds.sgd, room, np.sqrt(room)))

    def advance(self, wanted: Settings) -> Measured:
        """Train for an interval.

        Args:
            wanted: The settings from now on. A run that ran out of memory or lost a device goes
                on with what is left to it.

        Returns:
            What was measured.
        """
        p = self.parameters
        acknowledged = self._take_over(wanted)
        live = ~self.standing
        length = np.where(live, self.bounds.interval_s, 0.0)
        dead = np.where(live, self._restart_left, 0.0)
        if self.in_rounds:
            dead = np.minimum(dead, length)
        active = length - dead if self.in_rounds else length
        now = self._applied
        need = p.memory_base + p.memory_sample * now.batch / now.gpus
        ran_out = live & (active > 0) & (need > p.memory_total)
        active = np.where(ran_out, np.minimum(active, _OOM_S), active)
        speed = self.speed(now)
        gained = np.where(ran_out, 0.0, speed.progress * active)
        done = live & (self.progress + gained >= 1)
        share = np.divide(1 - self.progress, gained, out=np.ones(len(gained)), where=done)
        active, gained = active * share, gained * share
        works = np.where(ran_out, 0.0, active)
        self._diverge(speed.off, np.divide(works, length, out=np.zeros(len(works)), where=live))
        told = self._reports(speed, dead, works, gained)
        self.progress = np.where(done, 1.0, self.progress + gained)
        self.elapsed = self.elapsed + dead + active
        self._samples = self._samples + speed.rate * works
        self._steps = self._steps + speed.rate / now.batch * works
        self._restart_left = self._restart_left - dead
        lost = live & (self._upset > LOST) & np.isinf(p.loss_top)
        stuck = ran_out & (now.batch <= np.maximum(self.bounds.batch_min, now.gpus))
        ending = np.select([done, lost, stuck, ran_out], [DONE, DIVERGED, FAILED, OOM], 0)
        self.ended = self.ended | done | lost | stuck
        self._ran_out = ran_out
        self._ooms = self._ooms + ran_out
        self._break(live & ~self.ended & ~ran_out, dead + active, gained, speed.rate * works)
        self._world(self._random.random(len(live)) < length / p.phase_s)
        return Measured(
            duration=dead + active,
            elapsed=self.elapsed.copy(),
            settings=self.settings.copy(),
            **self._readings(speed, works / np.maximum(dead + active, 1e-9), need),
            pressure=self._pressure.copy(),
            free_gpus=np.minimum(self._free, self.bounds.gpus_max),
            acknowledged=acknowledged,
            oom_batch=np.where(ran_out, now.batch, np.nan),
            ending=ending,
            **told,
        )

    def _take_over(self, wanted: Settings) -> Flags:
        """Put settings in force; whether the trainings have applied them."""
        p, last = self.parameters, self.settings
        gpus = np.where(self._broken, np.maximum(last.gpus - 1, 1), wanted.gpus)
        gpus = np.minimum(gpus, wanted.gpus)
        moved = (gpus != last.gpus) | self._broken
        batch = np.where(self._ran_out, np.minimum(wanted.batch, self._fitting()), wanted.batch)
        scale = wanted.lr_scale * batch_rule(batch, self.bounds)
        scale = scale / batch_rule(wanted.batch, self.bounds)
        self.settings = Settings(gpus, batch, wanted.lr_factor.copy(), scale)
        restarted = moved | self._ran_out
        self._restart_left = np.where(restarted, self.bounds.restart_s, self._restart_left)
        late = ~restarted & (self._random.random(len(gpus)) < p.late)
        self._applied = Settings(
            gpus,
            np.where(late, self._applied.batch, batch),
            self.settings.lr_factor,
            np.where(late, self._applied.lr_scale, scale),
        )
        return np.asarray(~late)

    def _fitting(self) -> Floats:
        """Batch to go on with after the last one did not fit (``policy.memory.after_oom``)."""
        p, batch = self.parameters, self._applied.batch
        size = np.minimum(np.trunc(batch * OOM_FACTOR), batch - 1)
        room = SHARE * p.memory_total - p.memory_base
        each = np.divide(room, p.memory_sample, out=np.full(len(room), np.inf), where=self._ran_out)
        predicted = np.trunc(each * self._applied.gpus)
        size = np.where(self._ooms > 1, np.minimum(size, predicted), size)
        return np.maximum(size, np.maximum(self.bounds.batch_min, self._applied.gpus))

    def _diverge(self, off: Floats, part: Floats) -> None:
        """Let what was learnt be lost above the rate that diverges, and recover below it."""
        beyond = off - np.log(self.parameters.lr_diverges)
        grown = self._upset + (0.5 + 2 * beyond) * part
        grown = np.where(np.isinf(self.parameters.loss_top), grown, np.minimum(grown, _STUCK))
        self._upset = np.where(beyond > 0, grown, self._upset * np.exp(-0.7 * part))
        self._heat += (np.exp(np.minimum(off, 1.0)) - self._heat) * -np.expm1(-part)
        self.progress = self.progress * np.where(self._upset > 0.5, np.exp(-0.3 * part), 1.0)

    def _break(self, may: Flags, seconds: Floats, gained: Floats, samples: Floats) -> None:
        """Let devices fail: a run goes back to its last checkpoint and has one device less."""
        chance = -np.expm1(-self.parameters.failures * self.settings.gpus * seconds)
        self._broken = may & (self._random.random(len(may)) < chance)
        back = np.where(self._broken, self._random.random(len(may)), 0.0)
        self.progress = self.progress - back * gained
        self._samples = self._samples - back * samples
        self._steps = self._steps - back * samples / self._applied.batch

    def _world(self, where: Flags) -> None:
        """Let the phases of some runs change."""
        p, random = self.parameters, self._random
        count = len(where)
        self._slow = np.where(where, random.random(count) < p.slow_input, self._slow)
        self._crowded = np.where(where, random.random(count) < p.interfered, self._crowded)
        waiting = np.where(random.random(count) < 0.5, random.exponential(p.demand), 0.0)
        self._pressure = np.where(where, waiting, self._pressure)
        free = np.where(waiting > 0, random.integers(0, 3, count), np.inf)
        self._free = np.where(where, free, self._free)

    def _reports(self, speed: Speed, dead: Floats, works: Floats, gained: Floats) -> dict[str, Any]:
        """What the trainings say in an interval, arrays of runs x reports."""
        p, now, random = self.parameters, self._applied, self._random
        shape = len(works), REPORTS
        at = np.arange(1, REPORTS + 1) / REPORTS
        noise, rough, slip, share = random.standard_normal((4, *shape))
        told = (works > 0)[:, None] & (random.random(shape) >= p.unread[:, None])
        told &= at > 1 - (p.reports[:, None] - 0.5) / REPORTS
        progress = np.minimum(self.progress[:, None] + gained[:, None] * at, 1.0)
        begun = (progress / p.loss_knee[:, None]) ** p.loss_delay[:, None]
        falls = (1 + begun) ** -p.loss_power[:, None]
        level = p.loss_floor[:, None] + (1 - p.loss_floor[:, None]) * falls
        level = level * (1 + p.loss_excess * self._heat)[:, None]
        upset = level * np.exp(np.minimum(self._upset, LOST))[:, None]
        level = np.where(
            upset > level, np.maximum(np.minimum(upset, p.loss_top[:, None]), level), level
        )
        bad = (self._upset > LOST)[:, None] & np.isinf(p.loss_top)[:, None] & told
        loss = level * np.exp(p.loss_noise[:, None] * noise)
        sqr = np.exp(along(p.grad_sqr, self.progress))
        var = speed.noise_scale * sqr
        each = var / now.batch  # of the gradient of a batch
        error = (each + np.sqrt(sqr * each)) / np.sqrt(_DIRECTIONS)
        gradients = told & p.has_gradients[:, None]
        samples = self._samples[:, None] + (speed.rate * works)[:, None] * at
        need = p.memory_base + p.memory_sample * now.batch / now.gpus
        return {
            "time": np.where(told, (self.elapsed + dead)[:, None] + works[:, None] * at, np.nan),
            "samples": np.where(told, samples, np.nan),
            "step": np.where(
                told,
                self._steps[:, None] + (speed.rate / now.batch * works)[:, None] * at,
                np.nan,
            ),
            "loss": np.where(told & ~bad, loss, np.nan),
            "loss_bad": bad,
            "grad_sqr": np.where(gradients, sqr[:, None] + error[:, None] * slip, np.nan),
            "grad_var": np.where(gradients, var[:, None] * np.exp(0.2 * rough), np.nan),
            "grad_norm": np.where(gradients, np.sqrt(sqr + each)[:, None], np.nan),
            "memory_bytes": np.where(gradients, need[:, None], np.nan),
            "progress": np.where(
                told & p.has_progress[:, None],
                np.minimum(samples / p.planned[:, None], 1.0),
                np.nan,
            ),
            "input_wait": np.where(
                told, speed.input_wait[:, None] * np.exp(p.reading_noise[:, None] * share), np.nan
            ),
        }

    def _readings(self, speed: Speed, active: Floats, need: Floats) -> dict[str, Any]:
        """What the devices say."""
        p, random = self.parameters, self._random
        count = len(need)
        read = p.has_devices & (random.random(count) >= p.unread)
        first, second, third = np.exp(p.reading_noise * random.standard_normal((3, count)))
        use = np.clip(speed.use * active * first, 0, 1)
        slower = 1 - np.where(self.settings.gpus > 1, 0.2 * random.random(count), 0.0)
        power = (p.power_idle + (1 - p.power_idle) * use) * p.power_limit * second
        step_s = self._applied.batch / speed.rate
        sent = np.where(self.settings.gpus > 1, p.gradient_bytes / step_s, 0.0) * active
        readings = {
            "use": use,
            "use_straggler": use * slower,
            "memory_used": np.minimum(1.03 * need, p.memory_total),
            "memory_total": p.memory_total,
            "power": power,
            "power_limit": p.power_limit,
            "network_rate": sent * third,
        }
        return {name: np.where(read, values, np.nan) for name, values in readings.items()}


Source = Callable[[int, int], Runs]
"""Draws runs, so many and by a seed; picklable where several processes do."""


def _repeated(value: Any, count: int, times: int) -> Any:
    """A copy of what holds arrays with a value a run, each value ``times`` in a row."""
    if isinstance(value, np.ndarray) and value.shape[:1] == (count,):
        return np.repeat(value, times, axis=0)
    if isinstance(value, Runs | Parameters | Bounds | Settings):
        found = copy(value)
        for name, part in vars(value).items():
            setattr(found, name, _repeated(part, count, times))
        return found
    return deepcopy(value)
