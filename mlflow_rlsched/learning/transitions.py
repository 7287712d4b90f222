"""Transitions of real runs: what each decision led to, from the records of two decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mlflow_rlsched.config.keys import Reward as Weights
from mlflow_rlsched.policy.replay import LARGE_CHANGE
from mlflow_rlsched.store import Transition

TERMINAL = ("done", "diverged", "failed")
"""Endings after which a run earns and loses nothing more."""


def transition_of(
    run_id: str, before: Mapping[str, Any], after: Mapping[str, Any], weights: Weights
) -> Transition:
    """What a decision led to.

    Its data, by the names of ``decisions.jsonl``: ``inputs`` and ``next_inputs`` of the networks
    (None where they saw nothing); ``action``, what the guard left of it, with the ``noise`` of the
    proposal, and ``setting``; ``terms`` of the reward, raw; ``elapsed_s`` at its end; ``policy``
    and ``version`` that decided, and the ``weights`` of the reward.

    Args:
        run_id: The run.
        before: Record of the decision.
        after: Record of the next one.
        weights: The run's.
    """
    terms, seen = after["terms"], after.get("inputs")
    data = {
        "inputs": before.get("inputs"),
        "action": before["action"],
        "noise": before["proposal"].get("noise"),
        "setting": before["setting"],
        "terms": terms,
        "next_inputs": seen,
        "elapsed_s": after["elapsed_s"],
        "policy": before["policy"],
        "version": before["version"],
        "weights": weights.model_dump(),
    }
    learnable = data["inputs"] is not None and (seen is not None or terms["ending"] in TERMINAL)
    return Transition(run_id, before["number"], data, _is_key(before, after), learnable)


def transitions_of(
    run_id: str, records: Sequence[Mapping[str, Any]], weights: Weights
) -> list[Transition]:
    """The transitions of a run, from the records of decisions that follow each other."""
    return [
        transition_of(run_id, before, after, weights)
        for before, after in pairwise(records)
        if after["number"] == before["number"] + 1
    ]


def _is_key(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    changed = abs(after["reward"]["total"] - before["reward"]["total"]) > LARGE_CHANGE
    restarted = before["setting"]["gpus"] != before["before"]["gpus"]
    return changed or restarted or after["terms"]["ending"] in ("oom", "diverged", "failed")
