"""mlflow-rlsched: the MLflow project backend that makes a training run schedule itself.

Training code needs :func:`attach` from here, and may use :class:`ElasticDataLoader`; everything
else is reached through ``mlflow run --backend rlsched`` and the ``rlsched`` command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_rlsched.training import attach
    from mlflow_rlsched.training.data import ElasticDataLoader

__version__ = "0.1.0"
__all__ = ["ElasticDataLoader", "__version__", "attach"]


def __getattr__(name: str) -> Any:
    # The shim and the training side import this package in every attempt: load nothing early.
    if name == "attach":
        from mlflow_rlsched.training import attach

        return attach
    if name == "ElasticDataLoader":
        from mlflow_rlsched.training.data import ElasticDataLoader

        return ElasticDataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
