"""The policy version that a configuration names by a path or by an address of the registry."""

from __future__ import annotations

from pathlib import Path

from mlflow_rlsched.config import ConfigError, RunConfig
from mlflow_rlsched.config.keys import ADDRESS
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.policy_names import POLICIES
from mlflow_rlsched.registry import download
from mlflow_rlsched.submission import tracking
from mlflow_rlsched.versions import Versions


def find_policy(config: RunConfig, uri: str, experiment_id: str) -> RunConfig:
    """The configuration with ``policy_file`` filled in: a copy that is the run's for good.

    Args:
        config: The resolved configuration.
        uri: The tracking server, which has the registry.
        experiment_id: The run's experiment there.

    Raises:
        ConfigError: The policy cannot be used.
        ExecutionException: The tracking server does not answer.
        MlflowException: The registry refuses.
        OSError: The folder of the versions cannot be written.
    """
    versions = Versions()
    try:
        if config.policy == "ddpg":
            versions.champion()
        if config.policy in POLICIES:
            return config
        if ADDRESS.fullmatch(config.policy):
            file = download(tracking.contact(uri, experiment_id), config.policy, versions)
        else:
            file = versions.add(Version.read(Path(config.policy)))
    except PolicyFileError as error:
        raise ConfigError(f"policy cannot be used: {error}") from error
    return config.model_copy(update={"policy_file": str(file)})
