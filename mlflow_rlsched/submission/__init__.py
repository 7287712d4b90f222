"""From the arguments of ``mlflow run`` to a task in the store.

Everything that can be wrong is found before anything is made, and the run directory is prepared
aside. Then the MLflow run is made, marked with the id of this submission; a record of that id,
locked as long as we live, lets the next agent end the run and remove the files if we die before
the task is in the store.
"""

from mlflow_rlsched.submission.queueing import submit
from mlflow_rlsched.submission.request import Request

__all__ = ["Request", "submit"]
