from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from mlflow_rlsched.protocol import Directive
from mlflow_rlsched.training import distributed
from tests.training.conftest import Clock
from tests.training.run_directory import RunDirectory

RANK = """
import atexit, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from mlflow_rlsched import attach
from mlflow_rlsched.protocol import Directive

folder = Path(os.environ["RLSCHED_ATTEMPT_DIR"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], world_size=2,
                        rank=int(os.environ["RANK"]))
atexit.register(dist.destroy_process_group)  # one that is left open may abort the exit
changes = []
with attach(batch_size=64, learning_rate=0.1) as session:
    session.load()
    while not session.should_stop:
        dist.all_reduce(torch.zeros(1))
        if session.step(loss=1.0):
            changes.append([session.steps, session.knobs.batch_size, session.knobs.lr_scale])
        if dist.get_rank() == 0 and session.steps == 20:
            Directive(1, 1, 32, 0.5).write(folder)
        if dist.get_rank() == 0 and len(changes) == 1:
            Directive(1, 2, 48, 0.25, action="stop", reason="test").write(folder)
    saved = session.save({"step": session.steps})
    print(json.dumps({"changes": changes, "stopped": session.steps, "saved": saved}), flush=True)
"""


def test_all_ranks_change_at_the_same_step(run: RunDirectory, tmp_path: Path) -> None:
    """The ranks see different directives at first: the first of them was just replaced."""
    ranks = []
    for rank in (0, 1):
        Directive(1, seq=0, batch_size=64 + rank).write(run.attempt(1))
        ranks.append(start_rank(rank, tmp_path / "rendezvous"))
    outputs = [process.communicate(timeout=180) for process in ranks]
    assert [process.returncode for process in ranks] == [75, 75], outputs
    first, second = (json.loads(output) for output, _ in outputs)
    assert first["changes"] == second["changes"]
    assert [change[1:] for change in first["changes"]] == [[32, 0.5], [48, 0.25]]
    assert first["stopped"] == second["stopped"] == first["changes"][1][0]
    assert (first["saved"], second["saved"]) == (True, False)
    assert run.events() == ["hello", "checkpointed", "stopped"]


def test_slow_steps_are_not_waited_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that takes ten seconds a step would else be killed before it sees a stop."""
    monkeypatch.setattr(distributed, "time", clock)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", world_size=1, rank=0)
    try:
        agreement = distributed.Agreement(1, interval_s=0.2)
        seen = []
        for seq in range(5):
            agreed = agreement.step(lambda: Directive(1, seq))  # noqa: B023
            seen.append(None if agreed is None else agreed.seq)
            clock.now += 10
    finally:
        dist.destroy_process_group()
    assert seen == [None, 0, 1, 2, 3]


def start_rank(rank: int, rendezvous: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["env", f"RANK={rank}", sys.executable, "-c", RANK, rendezvous],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
