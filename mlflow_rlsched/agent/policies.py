"""Which policy decides on a run: the one that its configuration names, as it is now."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.policy.advice import Goodput
from mlflow_rlsched.policy.baselines import Fixed, Rules
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.policy.proposal import Policy
from mlflow_rlsched.policy_names import POLICIES
from mlflow_rlsched.versions import Versions

_logger = logging.getLogger(__name__)


class Policies:
    """The policies of an agent's runs; each version is loaded once.

    Args:
        versions: The versions of the user.
        per_node: Devices of this host.
    """

    def __init__(self, versions: Versions, per_node: float) -> None:
        self._versions = versions
        self._per_node = per_node
        self._files: dict[str, Version] = {}
        self._trouble = ""

    def of(self, config: RunConfig, run_id: str) -> Policy:
        """Who decides on a run now: ``rules``, with the reason, where its policy cannot be used.

        To be asked before each decision, so that runs under ``ddpg`` follow the champion. These
        explore.
        """
        try:
            if config.policy_file is not None:
                return self._ddpg(self._read(config.policy_file), config)
            return self._named(config.policy, config, explores=run_id)
        except PolicyFileError as error:
            return Rules(doubt=str(error))

    def others(self, policy: Policy, config: RunConfig) -> list[Policy]:
        """The policies to compare a run's own with, as far as there are any."""
        found = []
        for name in POLICIES:
            if name != policy.name:
                with contextlib.suppress(PolicyFileError):  # no trained policy is there
                    found.append(self._named(name, config))
        return found

    def _named(self, name: str, config: RunConfig, explores: str | None = None) -> Policy:
        if name == "fixed":
            return Fixed()
        if name == "rules":
            return Rules()
        if name == "goodput":
            return Goodput(config.reward, self._per_node)
        champion = self._versions.champion()
        if champion.trouble != self._trouble:
            self._trouble = champion.trouble
            text = "version %s decides for ddpg%s"
            _logger.warning(text, champion.version.name, f", as {champion.trouble}")
        return self._ddpg(champion.version, config, explores)

    def _ddpg(self, version: Version, config: RunConfig, explores: str | None = None) -> Policy:
        return Ddpg(version, config.reward, self._per_node, explores)

    def _read(self, file: str) -> Version:
        if file not in self._files:
            self._files[file] = Version.read(Path(file))
        return self._files[file]
