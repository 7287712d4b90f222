"""The projects of the real benchmark that nothing is fitted to: they run, and they resume."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.projects import test_resuming as resuming
from tests.world import PROJECTS

ARGUMENTS = {
    "picture": ("--pixels", "131072", "--width", "2", "--layers", "1", "--batch-size", "4096"),
    "highlight": ("--windows", "1024", "--width", "4", "--batch-size", "32"),
}
METRICS = {"picture": ("loss", "val_psnr"), "highlight": ("loss", "val_accuracy")}


@pytest.mark.parametrize(
    ("project", "parameters"),
    [("picture", {"pixels": 4096, "width": 4}), ("highlight", {"windows": 64, "width": 4})],
)
def test_it_runs_under_the_local_backend(
    project: str, parameters: dict[str, int], tracking: mlflow.MlflowClient
) -> None:
    submitted = mlflow.projects.run(
        str(PROJECTS / project), parameters=parameters, backend="local", env_manager="local"
    )
    found = tracking.get_run(submitted.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.metrics.keys() == set(METRICS[project])


@pytest.mark.parametrize("project", ["picture", "highlight"])
def test_the_history_is_the_one_of_an_unbroken_run(
    project: str, tmp_path: Path, tracking: mlflow.MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(resuming.ARGUMENTS, project, ARGUMENTS[project])
    monkeypatch.setitem(resuming.METRICS, project, METRICS[project])
    unbroken = resuming.Trainer(project, tmp_path / "unbroken", tracking)
    unbroken.train(monkeypatch)
    broken = resuming.Trainer(project, tmp_path / "broken", tracking)
    for prepare in (
        resuming.stop_in_an_epoch,
        resuming.kill_at_step,
        resuming.kill_at_log(False),
        resuming.kill_at_log(True),
    ):
        with monkeypatch.context() as patch:
            prepare(broken, patch)
            with pytest.raises((resuming.Killed, SystemExit)):
                broken.train(patch)
    broken.train(monkeypatch)
    assert broken.history() == unbroken.history()
    assert broken.run.events(5)[-1] == "done"


def test_every_character_has_the_kind_of_its_token(tmp_path: Path) -> None:
    """Kinds: 1 name, 2 number, 3 string, 4 comment, 5 operator, 6 keyword."""
    lines = {
        "def f(x):  # half\n": "666015155004444440",
        '    """One\n': "00003333333",
        '    two."""\n': "333333333330",
        "    return x / 2\n": "00006666660105020",
    }
    source = tmp_path / "source.py"
    source.write_text("".join(lines))
    project: dict[str, Any] = runpy.run_path(str(PROJECTS / "highlight" / "train.py"))
    codes, kinds = project["coloured"](source)
    assert "".join(map(chr, codes.tolist())) == "".join(lines)
    assert "".join(map(str, kinds.tolist())) == "".join(lines.values())
