"""``python -m mlflow_rlsched`` is the ``rlsched`` command."""

from mlflow_rlsched.cli import main

main()
