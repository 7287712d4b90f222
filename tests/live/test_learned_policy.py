"""A trained policy on real, running trainings: found, swapped, damaged, and told everywhere."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import ExecutionException

from mlflow_rlsched import decision_log
from mlflow_rlsched import versions as module
from mlflow_rlsched.learning.outcomes import FEWEST_DECISIONS, FEWEST_RUNS, NAME, Outcome
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.registry import register
from mlflow_rlsched.versions import Versions
from tests.policy.trained import trained
from tests.world import FAULTY, World, wait_for

PROJECT = Path(__file__).parent / "project"
LOW, HIGH = trained(0.95), trained(1.05)
STEADY = {"decision_interval_s": 1, "retry_delays_s": [0]}


def records(world: World, run_id: str) -> list[dict[str, Any]]:
    return list(decision_log.read(Path(world.task(run_id).spec.run_dir)))


def decided_by(world: World, run_id: str, version: Version) -> list[dict[str, Any]]:
    return [r for r in records(world, run_id) if r["version"] == version.name]


def test_a_run_follows_the_champion_and_says_so(world: World) -> None:
    Versions().promote(LOW)
    run = world.submit(PROJECT, config={"policy": "ddpg", **STEADY})
    wait_for(lambda: decided_by(world, run.run_id, LOW), 60)
    Versions().promote(HIGH)
    first = wait_for(lambda: decided_by(world, run.run_id, HIGH), 60)[0]
    assert first["policy"] == "ddpg"
    assert set(first["alternatives"]) == {"fixed", "rules", "goodput"}

    def told() -> bool:
        tags = world.run_of(run.run_id).data.tags
        return tags.get("rlsched.policy_version") == HIGH.name

    wait_for(told, 60)
    out = world.rlsched("explain", run.run_id, str(first["number"]), "--alternatives").stdout
    assert f"ddpg (version {HIGH.name})" in out
    assert "goodput" in out
    run.cancel()
    world.over(run.run_id)


def test_a_registered_model_becomes_the_runs_own_copy(world: World) -> None:
    versions = Versions(world.root / "theirs")
    register(world.client, LOW, versions.add(LOW))
    config = {"policy": "models:/rlsched-policy@champion", **STEADY}
    run = world.submit(PROJECT, config=config)
    copy = Versions().path(LOW.name)
    assert world.task(run.run_id).spec.config["policy_file"] == str(copy)
    # Whatever becomes of the alias, the run keeps what it was given.
    register(world.client, HIGH, versions.add(HIGH))
    wait_for(lambda: decided_by(world, run.run_id, LOW), 60)
    run.cancel()
    world.over(run.run_id)


def test_a_run_that_ends_can_roll_the_champion_back(world: World) -> None:
    versions = Versions()
    versions.promote(HIGH)
    versions.promote(LOW)
    ended = time.time()
    known = [Outcome(f"old{n}", HIGH.name, 0.5, ended) for n in range(FEWEST_RUNS)]
    known += [Outcome(f"new{n}", LOW.name, -0.5, ended) for n in range(FEWEST_RUNS - 1)]
    lines = [json.dumps(asdict(outcome)) + "\n" for outcome in known]
    (versions.folder / NAME).write_text("".join(lines))
    run = world.submit(PROJECT, config={"policy": "ddpg", **STEADY})
    wait_for(lambda: len(records(world, run.run_id)) > FEWEST_DECISIONS, 90)
    assert versions.champion().version.name == LOW.name
    run.cancel()
    wait_for(lambda: versions.champion().version.name == HIGH.name, 60)
    assert "the reward of real runs fell" in versions.changes()[-1].reason
    assert "the policy is rolled back" in world.agent.log.read_text()
    assert "the reward of real runs fell" in world.rlsched("policy", "list").stdout


def test_a_file_that_was_spoilt_meanwhile_leaves_the_run_to_the_rules(world: World) -> None:
    LOW.save(world.folder / "mine.safetensors")
    config = {"policy": "mine.safetensors", "queue_timeout_s": 60, "cpu_slots": 1, **STEADY}
    holding = [world.submit(FAULTY, "count", {"steps": 40, "step_s": 0.1}) for _ in range(2)]
    run = world.submit(FAULTY, "count", {"steps": 100, "step_s": 0.05}, config)
    copy = Path(world.task(run.run_id).spec.config["policy_file"])
    copy.write_bytes(b"spoilt")
    assert run.wait()
    assert all(other.wait() for other in holding)
    world.over(run.run_id)
    decided = records(world, run.run_id)
    assert {record["policy"] for record in decided} == {"rules"}
    assert f"the rules decide, as {copy} cannot be read as a policy" in decided[0]["reason"]
    assert f"as {copy} cannot be read" in world.rlsched("show", run.run_id).stdout


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("./absent.safetensors", "absent.safetensors cannot be read as a policy"),
        ("ddpg", "there is no trained policy yet: write the policy rules or goodput"),
        ("foreign.safetensors", "foreign.safetensors cannot be read as a policy"),
        ("models:/nothing@champion", "there is no models:/nothing@champion in the model registry"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_queued(
    world: World, policy: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHIPPED", world.root / "absent.safetensors")
    (world.folder / "foreign.safetensors").write_text("foreign")
    with pytest.raises(ExecutionException, match=says) as caught:
        world.submit(FAULTY, "count", config={"policy": policy})
    assert str(caught.value).startswith("policy cannot be used: ")
    assert "\n" not in str(caught.value)
    assert world.client.search_runs(["0"]) == []
    assert world.store.tasks() == []
