from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_rlsched.cli.simulate import POLICIES
from mlflow_rlsched.simulator.schedulers import SCHEDULERS
from tests.cli.conftest import Rlsched
from tests.simulator.conftest import profiles, workload, write_workload

__all__ = ["profiles", "workload"]


def options(profiles: Path, workload: Path, policy: str = "fixed") -> list[str]:
    return [f"--profiles={profiles}", f"--workload={workload}", f"--policy={policy}"]


def test_the_command_knows_all_schedulers() -> None:
    assert set(POLICIES) == set(SCHEDULERS)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_scheduler_ends_a_workload(
    rlsched: Rlsched, profiles: Path, workload: Path, policy: str
) -> None:
    result = rlsched("simulate", *options(profiles, workload, policy), "--json")
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["finished"] == 2
    assert figures["utilisation"] < 1


def test_the_cluster_and_its_times_can_be_set(
    rlsched: Rlsched, profiles: Path, workload: Path
) -> None:
    size = ["--nodes=1", "--gpus-per-node=2", "--interval=10", "--restart=5", "--json"]
    result = rlsched("simulate", *options(profiles, workload), *size)
    figures = json.loads(result.stdout)
    # a: 5 + 60 s; b, which waits for it: from 70 on, 5 + 100 s
    assert figures["avg_jct_s"] == pytest.approx((65 + 175 - 30) / 2)
    first, second = figures["jobs"]
    assert first["spans"] == [{"start_s": 0, "end_s": pytest.approx(65), "held": {"0": 2}}]
    assert second["spans"] == [{"start_s": 70, "end_s": pytest.approx(175), "held": {"0": 1}}]
    assert (second["application"], second["submitted_s"]) == ("toy", 30)


def test_text_says_the_same(rlsched: Rlsched, profiles: Path, workload: Path) -> None:
    result = rlsched("simulate", *options(profiles, workload))
    assert "2 jobs on 64 GPUs" in result.stdout


Break = Callable[[Path, Path], object]


def append(name: str, line: str) -> Break:
    def change(profiles: Path, workload: Path) -> None:
        with (profiles / "toy" / name).open("a") as file:
            file.write(line + "\n")

    return change


def jobs(*rows: tuple[object, ...]) -> Break:
    return lambda _, workload: write_workload(workload, *rows)


FAULTS: list[tuple[Break, list[str]]] = [
    (lambda p, w: w.unlink(), ["workload.csv", "No such file"]),
    (lambda p, w: shutil.rmtree(p), ["profiles", "No such file"]),
    (lambda p, w: w.write_text(""), ["workload.csv", "name, application, time"]),
    (lambda p, w: w.write_bytes(b"\xff\xfe\x00name"), ["workload.csv", "no CSV file"]),
    (lambda p, w: w.write_text("a,b\n1,2\n"), ["workload.csv", "no column 'name'"]),
    (jobs(), ["workload.csv", "holds no row"]),
    (jobs(("a", 0, "tpy", 1, 10)), ["'tpy'", "did you mean 'toy'?"]),
    (jobs(("a", "noon", "toy", 1, 10)), ["line 2", "time is 'noon'"]),
    (jobs(("a", -5, "toy", 1, 10)), ["line 2", "time is '-5'"]),
    (jobs(("a", 0, "toy", 0, 10)), ["num_replicas is '0'"]),
    (jobs(("a", 0, "toy", 1.5, 10)), ["num_replicas is '1.5'"]),
    (jobs(("a", 0, "toy", 1, 40)), ["batch_size is 40", "10 to 20"]),
    (jobs(("a", 0, "toy", 12, 10)), ["num_replicas is 12", "batch of 10"]),
    (jobs(("a", 0, "toy", 1, 10), ("a", 0, "toy", 1, 10)), ["two jobs", "'a'"]),
    (jobs(("a", 0)), ["line 2", "application is ''"]),
    (append("placements.csv", "1,5,0,0"), ["toy", "step times"]),
    (append("placements.csv", "1x,5,1,0"), ["placements.csv", "'1x'"]),
    (append("placements.csv", "1,5,nan,0"), ["placements.csv", "'nan'"]),
    (append("validation-10.csv", "99,200,1,1,1"), ["validation-10.csv", "progress must grow"]),
    (append("validation-10.csv", "200,200,1,0,0"), ["validation-10.csv", "both 0"]),
    (append("validation-x.csv", "progress"), ["validation-x.csv", "<batch size>"]),
    (lambda p, w: (p / "toy" / "placements.csv").unlink(), ["placements.csv", "No such file"]),
    (lambda p, w: [f.unlink() for f in p.glob("toy/validation-*")], ["holds no validation-"]),
]


def test_a_job_larger_than_the_cluster_is_refused(
    rlsched: Rlsched, profiles: Path, workload: Path
) -> None:
    result = rlsched("simulate", *options(profiles, workload), "--nodes=1", "--gpus-per-node=1")
    assert result.exit_code == 2
    assert "job 'a' asks for 2 GPUs and the cluster has 1" in result.stderr


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_a_wrong_file_is_one_sentence(
    rlsched: Rlsched, profiles: Path, workload: Path, change: Break, words: list[str]
) -> None:
    change(profiles, workload)
    result = rlsched("simulate", *options(profiles, workload))
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr
