"""Attempts of this agent that no task accounts for: where others can write the store, they may.

Whoever changes, ends or removes the row of a run while its agent is dead leaves an attempt that the
next agent finds by no task. It is found by its processes then, which only their user can make, and
is ended: nothing runs that nobody looks after.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from mlflow_rlsched.agent.authority import FORGED
from mlflow_rlsched.executors.local import LocalExecutor

_logger = logging.getLogger(__name__)


class Strays:
    """Ends strays.

    Args:
        executor: Finds and ends attempts.
        agent: The folder of the agent whose attempts these are.
    """

    def __init__(self, executor: LocalExecutor, agent: Path) -> None:
        self._executor = executor
        self._agent = agent
        self._ending: set[Path] = set()

    def end(self, known: Collection[Path]) -> None:
        """Begin to end what runs.

        Args:
            known: Directories of attempts that tasks account for.

        Raises:
            OSError: An attempt cannot be asked to end (a full disk); ask again later.
        """
        for folder, spec in self._executor.alive(self._agent).items():
            if folder in known or folder in self._ending:
                continue
            text = "run %s, attempt %d goes on, and no task of this user in the store has it: ended"
            _logger.error(text, spec.run_id, spec.attempt)
            self._executor.stop(folder, FORGED, spec.grace_s)
            self._ending.add(folder)

    def are_left(self) -> bool:
        """Whether some have not ended; to be asked again and again, which buries the dead."""
        self._ending = {each for each in self._ending if self._executor.ended(each) is None}
        return bool(self._ending)
