"""The keys of a configuration: their meaning, types, bounds and defaults."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mlflow_rlsched import daemon
from mlflow_rlsched.config.errors import ConfigError, near, shown
from mlflow_rlsched.policy_names import POLICIES
from mlflow_rlsched.sharing import SQLITE

MAX_BATCH = 2**31 - 1
"""Largest batch size that is accepted, in samples."""

MAX_GPUS = 4096

_COUNT = f"a whole number from 0 to {MAX_GPUS}"

DEFAULT_POLICY = "ddpg"

ADDRESS = re.compile(r"models:/(?P<model>[^/@]+)(@(?P<alias>[^/@]+)|/(?P<number>\d+))")
"""How a model of MLflow's registry is named."""

_MODEL = "models:/NAME@ALIAS or models:/NAME/VERSION"
_POLICY = f"{', '.join(map(repr, POLICIES))}, the path of a policy file, or {_MODEL}"
_BATCH = f"a whole number from 1 to {MAX_BATCH}, or null"
_START = "'study:NAME', 'study:NAME@STORAGE', or null"
_PARAMETER = "the name of a parameter, or null"
_SECONDS = "a number of seconds above 0, at most 1e8"
_SECONDS_OR_NULL = f"{_SECONDS}, or null"
_POSITIVE_OR_NULL = "a number above 0, or null"
_WEIGHT = "a number of at least 0"
_STORE = "write sqlite:///<path of a file>"

Text = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$", max_length=1000)]
Start = Annotated[str, Field(pattern=r"^study:[^@\p{C}]+(@[^\p{C}]+)?$", max_length=1000)]
Seconds = Annotated[float, Field(gt=0, le=1e8)]
Delay = Annotated[float, Field(ge=0, le=1e8)]
NotNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections; the ``description`` of a field completes the words "must be"."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Gpus(Section):
    """Devices of a run: how many it starts with, and between which counts it may go.

    ``min`` is 1 by default (0 when ``initial`` is), ``max`` is ``initial``: then it stays.
    """

    initial: int = Field(default=1, ge=0, le=MAX_GPUS, description=_COUNT)
    min: int = Field(default=1, ge=0, le=MAX_GPUS, description=_COUNT)
    max: int = Field(default=1, ge=0, le=MAX_GPUS, description=_COUNT)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        initial = value.get("initial", 1) if isinstance(value, dict) else None
        if type(initial) is not int:
            return value
        return {"min": min(1, initial), "max": initial, **value}

    @model_validator(mode="after")
    def _ordered(self) -> Gpus:
        if self.min > self.initial:
            raise ValueError(f"gpus.min is {self.min}, above gpus.initial {self.initial}")
        if self.max < self.initial:
            raise ValueError(f"gpus.max is {self.max}, below gpus.initial {self.initial}")
        return self

    @property
    def are_elastic(self) -> bool:
        """Whether their number may change while a run goes on."""
        return self.max > self.initial


class BatchSize(Section):
    """The batch size as a knob: the parameter that sets it, its bounds in samples, and its start.

    A ``param`` that is not given is found by its name; a given ``null`` turns the knob off. A
    ``start`` names a study whose best value a parameter has that the user does not give.
    """

    param: Text | None = Field(default=None, description=_PARAMETER)
    min: int | None = Field(default=None, ge=1, le=MAX_BATCH, description=_BATCH)
    max: int | None = Field(default=None, ge=1, le=MAX_BATCH, description=_BATCH)
    start: Start | None = Field(default=None, description=_START)

    @model_validator(mode="after")
    def _ordered(self) -> BatchSize:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"batch_size.min is {self.min}, above batch_size.max {self.max}")
        return self


class LearningRate(Section):
    """The learning rate as a knob: the parameter that sets it, its bounds, and its start.

    A ``param`` that is not given is found by its name; a given ``null`` turns the knob off. A
    ``start`` names a study whose best value a parameter has that the user does not give.
    """

    param: Text | None = Field(default=None, description=_PARAMETER)
    min: float | None = Field(default=None, gt=0, description=_POSITIVE_OR_NULL)
    max: float | None = Field(default=None, gt=0, description=_POSITIVE_OR_NULL)
    start: Start | None = Field(default=None, description=_START)

    @model_validator(mode="after")
    def _ordered(self) -> LearningRate:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"learning_rate.min is {self.min}, above learning_rate.max {self.max}")
        return self


class Objective(Section):
    """The metric that counts, which way is better, and the value at which the run is done."""

    metric: Text = Field(default="val_loss", description="the name of a metric")
    mode: Literal["min", "max"] = "min"
    target: float | None = Field(default=None, description="a finite number, or null")


class Reward(Section):
    """Weights of the reward's terms: throughput, cost, progress, smoothness."""

    alpha: NotNegative = Field(default=1.0, description=_WEIGHT)
    beta: NotNegative = Field(default=0.5, description=_WEIGHT)
    gamma: NotNegative = Field(default=1.0, description=_WEIGHT)
    smoothness: NotNegative = Field(default=0.1, description=_WEIGHT)


class Requires(Section):
    """What a device must be: on which host, of which type (part of its name), how large."""

    host: Text | None = Field(default=None, description="the name of a host, or null")
    gpu_type: Text | None = Field(default=None, description="a part of a device's name, or null")
    memory_gb: float | None = Field(default=None, gt=0, description=_POSITIVE_OR_NULL)


def _policy(text: str) -> str:
    """A policy's name, an address of the model registry, or the absolute path of a file."""
    if text in POLICIES or ADDRESS.fullmatch(text):
        return text
    if text.startswith("models:"):
        raise ValueError(f"policy is {shown(text)}, must be {_MODEL}")
    if "://" in text or not ("/" in text or text.endswith(".safetensors")):
        raise ValueError(f"policy is {shown(text)}, must be {_POLICY}" + near(text, POLICIES))
    return os.path.abspath(os.path.expanduser(text))


def _absolute_store(text: str) -> str:
    """The URL of a store given as ``sqlite:///<path>`` or as a path.

    Links are followed, so that a file has one URL (and one agent) whatever way leads to it.
    """
    scheme, colon, _ = text.partition(":")
    if colon and scheme in ("postgresql", "postgres", "redis", "rediss"):
        raise ValueError(f"store on {scheme} is not available in this version; {_STORE}")
    if "://" in text and not text.startswith(SQLITE):
        raise ValueError(f"store begins with {shown(text.split('://')[0] + '://')}; {_STORE}")
    path = os.path.expanduser(text.removeprefix(SQLITE))
    if path in ("", ":memory:") or path.startswith("~") or "?" in path or not path.isprintable():
        raise ValueError(f"store {shown(text)} is no path of a file; {_STORE}")
    real = os.path.realpath(path)
    if os.path.isdir(real):
        raise ValueError(f"store {shown(text)} is a folder; {_STORE}")
    return SQLITE + real


def _default_store() -> str:
    try:
        return _absolute_store(str(daemon.home() / "rlsched.db"))
    except ValueError as error:
        raise ConfigError(f"variable RLSCHED_HOME: {error}") from None


class Settings(Section):
    """Everything that people can set, checked and complete.

    Attributes:
        policy: Who decides.
        priority: Larger goes first.
        gpus: How many devices.
        batch_size: The batch size as a knob.
        learning_rate: The learning rate as a knob.
        objective: The metric that counts.
        reward: Weights of the reward's terms.
        decision_interval_s: Seconds between decisions, or ``auto``.
        wait: Whether the submission waits for the end; None: on the command line.
        nested: Whether a run started inside a run shares its parent's devices or queues.
        resume_run_id: Run to go on with, instead of a new one.
        max_retries: How often it is tried again (out of memory has its own budget).
        retry_delays_s: Seconds before each retry; the last counts for all that follow.
        timeout_s: Longest time that it may run.
        queue_timeout_s: Longest time that it may wait for its start.
        grace_s: Seconds between asking a training to end and killing it.
        heartbeat_s: Longest silence of an idle training that did report before.
        memory_cap_gb: Most memory of each device that it may use.
        gpu_fraction: Part of each device, and of its memory, that is leased.
        requires: What a device must be.
        cpu_slots: CPU slots for each device.
        quotas: Most devices at once, by user.
        weights: Fair share, by user.
        prices: Price of an hour, by type of device.
        quantum_s: Seconds after which equal tasks take turns.
        env: Names of the submitter's variables that it gets besides the usual ones.
        launcher: Whether the command is started as it is or by torchrun on each device.
        executor: Where attempts run.
        store: Absolute URL of the store.
    """

    policy: Annotated[Text, AfterValidator(_policy)] = Field(
        default=DEFAULT_POLICY, description=_POLICY
    )
    priority: int = Field(
        default=0,
        ge=-1_000_000,
        le=1_000_000,
        description="a whole number from -1000000 to 1000000",
    )
    gpus: Gpus = Field(
        default=Gpus(), description=f"{_COUNT}, or an object with the keys initial, min, max"
    )
    batch_size: BatchSize = BatchSize()
    learning_rate: LearningRate = LearningRate()
    objective: Objective = Objective()
    reward: Reward = Reward()
    decision_interval_s: Literal["auto"] | Seconds = Field(
        default="auto", description=f"'auto', or {_SECONDS}"
    )
    wait: bool | None = Field(default=None, description="true, false or null")
    nested: Literal["share", "queue"] = "share"
    resume_run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = Field(
        default=None, description="the id of a run, or null"
    )
    max_retries: int = Field(default=3, ge=0, le=1000, description="a whole number from 0 to 1000")
    retry_delays_s: tuple[Delay, ...] = Field(
        default=(10.0, 30.0, 60.0),
        strict=False,
        min_length=1,
        max_length=1000,
        description="a list of seconds like [10, 30, 60]",
    )
    timeout_s: Seconds | None = Field(default=None, description=_SECONDS_OR_NULL)
    queue_timeout_s: Seconds | None = Field(default=None, description=_SECONDS_OR_NULL)
    grace_s: Delay = Field(default=30.0, description="a number of seconds from 0 to 1e8")
    heartbeat_s: Seconds = Field(default=300.0, description=_SECONDS)
    memory_cap_gb: float | None = Field(default=None, gt=0, description=_POSITIVE_OR_NULL)
    gpu_fraction: float = Field(default=1.0, ge=0.01, le=1, description="a number from 0.01 to 1")
    requires: Requires = Requires()
    cpu_slots: int = Field(default=1, ge=1, le=4096, description="a whole number from 1 to 4096")
    quotas: dict[Text, Annotated[int, Field(ge=0)]] = Field(
        default={}, description='an object like {"alice": 4}, of numbers not below 0'
    )
    weights: dict[Text, NotNegative] = Field(
        default={}, description='an object like {"alice": 2.0}, of numbers not below 0'
    )
    prices: dict[Text, NotNegative] = Field(
        default={}, description='an object like {"H100": 2.5}, of numbers not below 0'
    )
    quantum_s: Seconds | None = Field(default=None, description=_SECONDS_OR_NULL)
    env: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)], ...] = (
        Field(
            default=(), strict=False, description='a list of names of variables like ["WANDB_MODE"]'
        )
    )
    launcher: Literal["command", "torchrun"] = "command"
    executor: Literal["local", "ray"] = Field(default="local", description="'local'")
    store: Annotated[str, AfterValidator(_absolute_store)] = Field(
        default_factory=_default_store, description="sqlite:///<path of a file>"
    )


class RunConfig(Settings):
    """The settings of one run, with what its project's parameters say.

    Attributes:
        initial_batch_size: Value of the parameter ``batch_size.param`` as submitted, or None
            when the batch size is no knob; ``find_knobs`` fills it in.
        policy_file: The policy version that ``policy`` led to at the submission, where that is a
            path or an address; None where it is a name.
    """

    initial_batch_size: int | None = None
    policy_file: str | None = None
