"""The dashboard of mlflow-rlsched: see what the scheduler does, and why."""
