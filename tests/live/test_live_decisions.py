"""Decisions on real, running trainings, from the agent's samples to MLflow and the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from tests.world import FAULTY, World, signal_all, wait_for

PROJECT = Path(__file__).parent / "project"
RULES = {"policy": "rules", "decision_interval_s": 1, "retry_delays_s": [0]}


def records(world: World, run_id: str) -> list[dict[str, Any]]:
    return list(decision_log.read(Path(world.task(run_id).spec.run_dir)))


def changes(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in found if record["setting"] != record["before"]]


def test_a_planted_overshoot_is_met_within_two_decisions_and_told_everywhere(world: World) -> None:
    run = world.submit(PROJECT, params={"narrow_at": 600}, config=RULES)
    lowered = wait_for(
        lambda: [r for r in records(world, run.run_id) if r["action"]["lr_factor"] < 1], 90
    )[0]
    decided = records(world, run.run_id)
    wild = [
        r["number"]
        for r in decided
        if r["state"]["loss"]["value"] > 5 or any(loss > 5 for _, loss in r["history"]["losses"])
    ]
    assert wild
    assert lowered["number"] <= wild[0] + 1
    # The training follows without a restart, and grows calm again.
    wait_for(lambda: records(world, run.run_id)[-1]["state"]["loss"]["value"] < 5, 60)
    run.cancel()
    task = world.over(run.run_id)
    assert task.attempt == 1
    decided = records(world, run.run_id)
    assert [r["number"] for r in decided] == list(range(1, len(decided) + 1))
    history = world.client.get_metric_history(run.run_id, "rlsched/action/lr_scale")
    told = {point.step: point.value for point in history}
    assert told == {r["number"]: r["action"]["lr_factor"] for r in decided}
    tags = world.run_of(run.run_id).data.tags
    assert (tags["rlsched.policy"], tags["rlsched.tuned"]) == ("rules", "true")
    artifacts = [a.path for a in world.client.list_artifacts(run.run_id, "rlsched")]
    assert "rlsched/decisions.jsonl" in artifacts
    stored = [t.decision for _, t in world.store.transitions(run.run_id)]
    assert stored == list(range(1, len(decided)))
    shown = json.loads(world.rlsched("show", run.run_id, "--json").stdout)["decisions"]
    assert shown == decided
    text = world.rlsched("show", run.run_id).stdout
    assert f"{len(changes(decided))} of {len(decided)} decisions changed something" in text
    assert lowered["reason"] in world.rlsched("explain", run.run_id, str(lowered["number"])).stdout


def test_out_of_memory_shrinks_the_batch_and_is_part_of_the_story(world: World) -> None:
    params = {"batch_size": 64, "fits": 50, "steps": 3, "step_s": 0.01}
    run = world.submit(FAULTY, "count", params, RULES)
    assert run.wait()
    task = world.over(run.run_id)
    assert (task.ooms, task.attempt) == (2, 3)
    decided = records(world, run.run_id)
    sizes = [r["setting"]["batch_size"] for r in changes(decided)]
    assert sizes == [54, 45]
    assert all("out of memory" in r["reason"] for r in changes(decided))
    assert [r["terms"]["ending"] for r in decided] == ["oom", "oom", "done"]
    # The square root of the batch's ratio: the optimizer is not known.
    assert decided[-1]["setting"]["lr_scale"] == pytest.approx((45 / 64) ** 0.5)
    # Directives of later attempts start from there.
    report = (Path(task.spec.run_dir) / "attempts" / "3" / "report.jsonl").read_text()
    hello = json.loads(report.splitlines()[0])
    assert hello["batch_size"] == 45
    assert hello["learning_rate"] == pytest.approx(0.1 * (45 / 64) ** 0.5)


def test_what_never_fits_ends_at_the_floor_with_one_sentence(world: World) -> None:
    params = {"batch_size": 8, "fits": 1, "steps": 3}
    run = world.submit(FAULTY, "count", params, RULES | {"batch_size": {"min": 5}})
    assert not run.wait()
    task = world.over(run.run_id)
    assert (task.ooms, task.retries) == (3, 0)
    assert task.message == "out of memory even at the smallest batch size allowed, 5"
    assert [r["setting"]["batch_size"] for r in records(world, run.run_id)] == [6, 5, 5]


def test_a_noisy_throughput_changes_neither_devices_nor_batch(world: World) -> None:
    run = world.submit(PROJECT, config=RULES)
    wait_for(lambda: len(records(world, run.run_id)) >= 12, 90)
    run.cancel()
    world.over(run.run_id)
    decided = records(world, run.run_id)
    assert len({(r["setting"]["gpus"], r["setting"]["batch_size"]) for r in decided}) == 1
    assert max(r["history"]["throughput_noise"] or 0.0 for r in decided) > 0


def test_a_killed_attempt_goes_on_with_the_setting_that_was_decided(world: World) -> None:
    run = world.submit(PROJECT, params={"narrow_at": 400}, config=RULES)
    wait_for(lambda: [r for r in records(world, run.run_id) if r["action"]["lr_factor"] < 1], 90)
    agent = world.agent_process()
    assert agent is not None
    agent.signal(9)
    decided = records(world, run.run_id)[-1]
    signal_all(world.training_processes())
    reports = world.running(run.run_id, 2, 60) / "report.jsonl"
    wait_for(lambda: reports.exists() and "\n" in reports.read_text(), 60)
    hello = json.loads(reports.read_text().splitlines()[0])
    assert hello["learning_rate"] == pytest.approx(0.1 * decided["setting"]["lr_scale"])
    numbers = [r["number"] for r in records(world, run.run_id)]
    assert numbers == sorted(set(numbers))
    run.cancel()


def test_the_fixed_policy_watches_and_changes_nothing(world: World) -> None:
    config = {"decision_interval_s": 0.5}
    run = world.submit(FAULTY, "count", {"steps": 100, "step_s": 0.05}, config)
    assert run.wait()
    world.over(run.run_id)
    decided = records(world, run.run_id)
    assert len(decided) > 2
    assert changes(decided) == []
    data = world.run_of(run.run_id).data
    assert "rlsched.tuned" not in data.tags
    assert data.tags["rlsched.policy"] == "fixed"
    counts = world.client.get_metric_history(run.run_id, "rlsched/gpus")
    assert [p.step for p in counts] == [0, *(r["number"] for r in decided)]
    assert 0 < data.metrics["rlsched/loss"] <= 1
