"""Searches for hyper-parameters: Optuna's trials as runs of the queue, and past runs as trials.

Optuna is imported where it is needed: without it all but the search works.
"""

from mlflow_rlsched.search.seeding import Seeded, SeedingError, seed_study

__all__ = ["Seeded", "SeedingError", "seed_study"]
