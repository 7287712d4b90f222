"""mlflow-rlsched: the MLflow project backend that makes a training run schedule itself.

Training code needs one name from here, :func:`attach`; everything else is reached through
``mlflow run --backend rlsched`` and the ``rlsched`` command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_rlsched.training import attach

__version__ = "0.1.0"
__all__ = ["__version__", "attach"]


def __getattr__(name: str) -> Any:
    # The shim and the training side import this package in every attempt: load nothing early.
    if name == "attach":
        from mlflow_rlsched.training import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
