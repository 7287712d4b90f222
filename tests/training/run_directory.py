"""A run directory as an agent lays it out for its attempts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.protocol import Directive, Report, ReportReader


class RunDirectory:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"

    def attempt(self, number: int) -> Path:
        return protocol.attempt_dir(self.folder, number)

    def start_attempt(self, number: int, **directive: Any) -> dict[str, str]:
        """Make the folder of an attempt; returns the variables that its processes get."""
        self.attempt(number).mkdir(parents=True)
        if directive:
            self.direct(number, seq=0, **directive)
        return {
            "RLSCHED_RUN_DIR": str(self.folder),
            "RLSCHED_ATTEMPT": str(number),
            "RLSCHED_ATTEMPT_DIR": str(self.attempt(number)),
            "RLSCHED_CHECKPOINT_DIR": str(self.checkpoints),
            "RLSCHED_NUM_GPUS": "0",
        }

    def direct(self, number: int, **directive: Any) -> None:
        Directive(number, **directive).write(self.attempt(number))

    def lines(self, number: int = 1) -> list[dict[str, Any]]:
        """The lines that the training wrote, as they are."""
        text = (self.attempt(number) / "report.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def reports(self, number: int = 1) -> list[Report]:
        """What the agent reads of them; none may be skipped."""
        reader = ReportReader(self.attempt(number) / "report.jsonl")
        reports = list(reader.poll())
        assert reader.skipped == 0
        return reports

    def events(self, number: int = 1) -> list[str]:
        return [report.event for report in self.reports(number) if report.event]
