"""Simulated training runs and clusters: what policies are trained on and compared with.

Where Gymnasium is installed, importing this package registers ``rlsched/Run-v0`` and
``rlsched/Cluster-v0``.
"""

from importlib.util import find_spec

if find_spec("gymnasium"):
    import gymnasium

    gymnasium.register(
        "rlsched/Run-v0",
        entry_point="mlflow_rlsched.simulator.gyms:RunEnv",
        vector_entry_point="mlflow_rlsched.simulator.gyms:RunVectorEnv",
    )
    gymnasium.register("rlsched/Cluster-v0", entry_point="mlflow_rlsched.simulator.gyms:ClusterEnv")
