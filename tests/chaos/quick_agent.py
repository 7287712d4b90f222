"""An agent that does every fraction of a second what others do every few seconds.

Runs whose devices may change get a policy that is never content with their number.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from mlflow_rlsched.agent import service
from mlflow_rlsched.daemon import AgentFiles


def argv(files: AgentFiles) -> list[str]:
    """The command that starts it: stands for ``AgentFiles.argv``."""
    return [sys.executable, str(Path(__file__)), files.store]


class QuickService(service.Service):
    """What it uses is loaded by now, as late as in any agent."""

    def __init__(self, files: AgentFiles, agent: Any, idle_timeout_s: float | None) -> None:
        from mlflow_rlsched.agent import loop, policies, tracking, tuning
        from mlflow_rlsched.policy.action import Action
        from mlflow_rlsched.policy.proposal import Proposal

        class Restless:
            name, version = "restless", "1"

            def propose(self, *_: object) -> Proposal:
                return Proposal(Action(random.choice((-1, 1))), "for a change", predicted_gain=9.0)

        usual = policies.Policies.of
        policies.Policies.of = (  # type: ignore[method-assign]
            lambda self, config, run_id: (
                Restless() if config.gpus.are_elastic else usual(self, config, run_id)
            )
        )
        loop.BUDGET_S = 2.0
        tuning.RESTART_COST_S = 0.2  # as short as these trainings
        super().__init__(files, agent, idle_timeout_s)
        agent._pool._drain_s = 1.0
        service.TICK_S = 0.2
        loop.PASS_S, loop.SAMPLE_S, loop.REGISTER_S, loop.UPLOAD_S = 0.5, 0.1, 0.5, 1.0
        tracking.FLUSH_S, tracking.POLL_S, tracking.TICK_S = 0.2, 0.5, 0.1


def main(store: str, idle_timeout_s: str = "60") -> int:
    service.Service = QuickService  # type: ignore[misc]
    AgentFiles.argv = argv  # type: ignore[method-assign]
    return service.run_agent(store, float(idle_timeout_s))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
