"""The configuration of a run: its keys, the layers they come from, and the knobs it names."""

from mlflow_rlsched.config.errors import ConfigError
from mlflow_rlsched.config.keys import RunConfig, Settings
from mlflow_rlsched.config.knobs import find_knobs
from mlflow_rlsched.config.layers import resolve, store_url

__all__ = ["ConfigError", "RunConfig", "Settings", "find_knobs", "resolve", "store_url"]
