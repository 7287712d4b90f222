"""The configurations of tasks, with what an administrator says where users share the store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mlflow_rlsched.config import ConfigError, PoolRules, RunConfig, pool_rules
from mlflow_rlsched.store import StoreError, Task


class Configs:
    """Configurations by task, each read once.

    Args:
        shared: Whether quotas and weights are an administrator's.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._rules = PoolRules()
        self._known: dict[str, RunConfig] = {}

    def __call__(self, task: Task) -> RunConfig:
        """The configuration of a task.

        Raises:
            ValueError: This version cannot use it.
        """
        if task.run_id not in self._known:
            config = RunConfig.model_validate(task.spec.config)
            theirs: dict[str, Any] = {}
            if self._shared:
                theirs = {"quotas": self._rules.quotas, "weights": self._rules.weights}
            self._known[task.run_id] = config.model_copy(update=theirs)
        return self._known[task.run_id]

    def forget(self, run_id: str) -> None:
        """Forget a task that is over."""
        self._known.pop(run_id, None)

    def administrators(self) -> Collection[str]:
        """Users who may ask something of another's tasks, by the last look."""
        return self._rules.administrators

    def renew(self) -> None:
        """Take what the administrator says now.

        Raises:
            StoreError: That cannot be used.
        """
        if not self._shared:
            return
        try:
            rules = pool_rules()
        except ConfigError as error:
            raise StoreError(str(error)) from error
        if rules != self._rules:
            self._known.clear()
            self._rules = rules
