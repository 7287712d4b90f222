"""The policies without a model: ``fixed`` and ``rules``."""

from __future__ import annotations

from dataclasses import replace

from mlflow_rlsched.policy.action import Action
from mlflow_rlsched.policy.history import History
from mlflow_rlsched.policy.interval import Interval
from mlflow_rlsched.policy.limits import Limits
from mlflow_rlsched.policy.memory import OOM_FACTOR, sparing
from mlflow_rlsched.policy.proposal import Policy, Proposal
from mlflow_rlsched.policy.rate import rate_proposal
from mlflow_rlsched.policy.state import State

IDLE_S = 10.0
IDLE_INTERVALS = 2
RELEASED = -2


class Fixed:
    """Changes nothing, and says why.

    Args:
        reason: Why nothing is changed.
        instead_of: The policy of the run, where it can do nothing now; what it has to remember is
            kept, and the decisions bear its name.
    """

    def __init__(
        self, reason: str = "the setting is fixed", instead_of: Policy | None = None
    ) -> None:
        self.name = "fixed" if instead_of is None else instead_of.name
        self.version = "1" if instead_of is None else instead_of.version
        self._reason = reason

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """No change."""
        return Proposal(Action(), self._reason, None, history.notes)


class Rules:
    """Three rules: out of memory, idle devices, and the learning rate by loss and gradients.

    Args:
        doubt: Why they decide in the place of another policy, where they do.
    """

    name = "rules"
    version = "1"

    def __init__(self, doubt: str | None = None) -> None:
        self._doubt = doubt

    def propose(
        self, state: State, interval: Interval, history: History, limits: Limits
    ) -> Proposal:
        """The first rule that applies; the learning rate last."""
        proposal = (
            _out_of_memory(interval)
            or _idle(state, interval, history, limits)
            or rate_proposal(interval, history)
        )
        proposal = sparing(proposal, interval, history, limits)
        if self._doubt is None:
            return proposal
        reason = f"the rules decide, as {self._doubt}: {proposal.reason}"
        return replace(proposal, reason=reason, doubt=self._doubt)


def _out_of_memory(interval: Interval) -> Proposal | None:
    batch, oom = interval.setting.batch_size, interval.oom_batch
    if batch is None or oom is None or batch < oom:  # the recovery may have made it smaller
        return None
    return Proposal(Action(batch_factor=OOM_FACTOR), f"out of memory at batch size {oom}")


def _idle(state: State, interval: Interval, history: History, limits: Limits) -> Proposal | None:
    if history.idle_intervals < IDLE_INTERVALS or history.idle_s < IDLE_S:
        return None
    if state.values["pressure"] <= 0 or interval.setting.gpus <= limits.gpus_min:
        return None
    return Proposal(
        Action(gpu_delta=RELEASED),
        f"the devices have been idle for {history.idle_s:.0f} s"
        f" (use {state.values['gpu_utilisation']:.0%}) while others wait",
    )
