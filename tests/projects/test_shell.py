"""The example in POSIX shell speaks the protocol of the run directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from tests.training.run_directory import RunDirectory
from tests.world import ROOT, wait_for

SCRIPT = ROOT / "examples" / "shell" / "train.sh"


def start(environ: Mapping[str, str], samples: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", str(SCRIPT), "64", "0.2", str(samples)],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_it_follows_stops_and_goes_on(run: RunDirectory) -> None:
    process = start(run.start_attempt(1, lr_scale=0.001), 10**9)
    wait_for(lambda: (run.attempt(1) / "report.jsonl").exists() and len(run.lines()) >= 2)
    run.direct(1, seq=1, batch_size=5, lr_scale=0.002, reason='a "stop", {said}: "seq":9')
    wait_for(lambda: run.reports()[-1].numbers["applied_seq"] == 1)
    run.direct(1, seq=2, lr_scale=0.002, action="checkpoint")
    wait_for(lambda: "checkpointed" in run.events())
    run.direct(1, seq=3, lr_scale=0.002, action="stop", reason="test")
    output, _ = process.communicate(timeout=200)
    assert (process.returncode, output) == (75, "")
    assert run.events() == ["hello", "checkpointed", "checkpointed", "stopped"]
    hello, *rest = run.reports()
    assert hello.can == {"batch_size", "learning_rate", "resume"}
    told = [(int(r.numbers["batch_size"]), r.numbers["learning_rate"]) for r in [hello, *rest]]
    assert list(dict.fromkeys(told)) == [(64, 0.0002), (5, 0.0004), (64, 0.0004)]
    assert all(report.numbers["loss"] > 5 for report in rest if "loss" in report.numbers)

    seen = int(rest[-1].numbers["samples"])
    process = start(run.start_attempt(2), seen + 2_000)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert output.startswith("learned 3.0") or output.startswith("learned 2.9")
    assert output.endswith(f"from {seen + 2_000} samples\n")
    assert run.reports(2)[0].numbers["samples"] == seen
    assert run.events(2) == ["hello", "done"]
    assert run.reports(2)[-1].numbers["loss"] < 1


def test_without_a_scheduler_it_just_trains() -> None:
    process = start({}, 1000)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert output.endswith("from 1000 samples\n")
