"""The configuration of a run: its keys, the layers they come from, and the knobs it names."""

from mlflow_rlsched.config.errors import ConfigError
from mlflow_rlsched.config.keys import RunConfig, Settings
from mlflow_rlsched.config.knobs import find_knobs
from mlflow_rlsched.config.layers import resolve, store_url
from mlflow_rlsched.config.pool import PoolRules, pool_rules

__all__ = [
    "ConfigError",
    "PoolRules",
    "RunConfig",
    "Settings",
    "find_knobs",
    "pool_rules",
    "resolve",
    "store_url",
]
