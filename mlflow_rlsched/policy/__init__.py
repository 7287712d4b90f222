"""What a run's setting should be: state, action, guard, reward and the simple policies.

Pure functions of what was measured: no MLflow, no processes, no files, no clock. The agent and
the simulator drive the same code.
"""
