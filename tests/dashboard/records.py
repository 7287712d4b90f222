"""Decisions as the agent writes them down."""

from __future__ import annotations

from typing import Any

from mlflow_rlsched.policy.history import History


def decision(**changes: Any) -> dict[str, Any]:
    """A line of ``decisions.jsonl``; ``changes`` are parts of it."""
    nothing = {"gpu_delta": 0, "batch_factor": 1.0, "lr_factor": 1.0}
    setting = {"gpus": 1, "batch_size": 8, "lr_factor": 1.0, "lr_scale": 1.0}
    parts = ("throughput", "cost", "progress", "smoothness", "penalty", "total")
    return {
        "number": 1,
        "attempt": 1,
        "time": 100.0,
        "elapsed_s": 10.0,
        "policy": "rules",
        "version": "1",
        "reason": "calm",
        "state": {"loss": {"value": 1.0, "normalised": 0.0, "missing": False}},
        "before": setting,
        "setting": setting,
        "proposal": {"action": nothing, "reason": "calm"},
        "action": nothing,
        "vetoes": [],
        "reward": dict.fromkeys(parts, 0.0),
        "terms": {"progress": 0.1, "duration_s": 10.0, "scales": {"total_s": 1000.0}},
        "training": {"learning_rate": 0.1},
        "history": History().to_json(),
        **changes,
    }
