"""Which policy decides: its file, the champion, and a champion that changes under load."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched import decision_log
from mlflow_rlsched import versions as module
from mlflow_rlsched.agent.policies import Policies
from mlflow_rlsched.agent.tuning import Tuning
from mlflow_rlsched.config import RunConfig, find_knobs, resolve
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.policy.learned import Ddpg
from mlflow_rlsched.protocol import Report, attempt_dir
from mlflow_rlsched.versions import Versions
from tests.policy.trained import trained

LOW, HIGH = trained(0.9), trained(1.1)


@pytest.fixture(autouse=True)
def _none_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "absent.safetensors")


def configured(policy: str, file: Path | None = None, **settings: Any) -> RunConfig:
    config = find_knobs(
        resolve({"policy": policy, **settings}, None, {}), {"batch_size": "64", "lr": "0.1"}, {}
    )
    return config.model_copy(update={"policy_file": None if file is None else str(file)})


def watched(root: Path, config: RunConfig, policies: Policies) -> Tuning:
    """The decisions on a training that has just begun."""
    folder = attempt_dir(root, 1)
    folder.mkdir(parents=True)
    tuning = Tuning(folder, 1, config, [], 1, 2**34, policies)
    tuning.observe(Report("hello", frozenset({"batch_size", "learning_rate"})))
    return tuning


def decide(tuning: Tuning, number: int) -> dict[str, Any]:
    """The record of a decision on five reports."""
    for place in range(5):
        at = 5.0 * number + place
        numbers = {"time": at, "samples": 64 * at, "loss": 1.0, "applied_seq": 1e9}
        tuning.observe(Report(numbers=numbers))
    tuning._seq = tuning._applied  # the training follows at once
    return tuning.decide(0.0).record


@pytest.mark.parametrize("name", ["fixed", "rules", "goodput"])
def test_a_name_is_that_policy_and_the_others_are_asked_too(name: str) -> None:
    policies = Policies(Versions(), 4)
    policy = policies.of(configured(name), "run")
    assert policy.name == name
    others = {other.name for other in policies.others(policy, configured(name))}
    assert others == {"fixed", "rules", "goodput"} - {name}
    Versions().promote(LOW)
    others = {other.name for other in policies.others(policy, configured(name))}
    assert others == {"ddpg", "fixed", "rules", "goodput"} - {name}


def test_ddpg_is_the_champion_of_the_moment_with_the_users_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, float, float]] = []

    def remember(self: Ddpg, trained: Version, weights: Any, per_node: float, _: str) -> None:
        made.append((trained.name, weights.beta, per_node))

    monkeypatch.setattr(Ddpg, "__init__", remember)
    policies, versions = Policies(Versions(), 4), Versions()
    for version in (LOW, HIGH):
        versions.promote(version)
        policies.of(configured("ddpg", reward={"beta": 2.0}), "run")
    assert made == [(LOW.name, 2.0, 4), (HIGH.name, 2.0, 4)]


def test_each_version_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = Versions()
    for version in (LOW, HIGH, LOW):
        versions.promote(version)
    policies = Policies(Versions(), 4)
    read, whole = [], Version.read

    def counted(path: Path) -> Version:
        read.append(path.name)
        return whole(path)

    monkeypatch.setattr(Version, "read", counted)
    file = versions.path(HIGH.name)
    for _ in range(3):
        policies.of(configured("ddpg"), "run")
        policies.of(configured("models:/p@a", file), "run")
    assert sorted(read) == sorted([f"{LOW.name}.safetensors", file.name])


def test_a_file_that_has_become_unusable_leaves_the_run_to_the_rules(tmp_path: Path) -> None:
    file = Versions().add(LOW)
    config = configured(str(file), file)
    assert Policies(Versions(), 4).of(config, "run").version == LOW.name
    file.write_bytes(b"spoilt")
    tuning = watched(tmp_path / "run", config, Policies(Versions(), 4))
    record = decide(tuning, 1)
    assert record["policy"] == "rules"
    assert record["reason"].startswith(f"the rules decide, as {file} cannot be read as a policy")
    assert record["proposal"]["doubt"].startswith(str(file))


def test_without_a_champion_the_rules_decide_until_there_is_one(tmp_path: Path) -> None:
    tuning = watched(tmp_path / "run", configured("ddpg"), Policies(Versions(), 4))
    assert "there is no trained policy yet" in decide(tuning, 1)["reason"]
    Versions().promote(HIGH)
    record = decide(tuning, 2)
    assert (record["policy"], record["version"]) == ("ddpg", HIGH.name)


def test_a_swap_is_told_once(tmp_path: Path) -> None:
    versions = Versions()
    versions.promote(LOW)
    tuning = watched(tmp_path / "run", configured("ddpg"), Policies(Versions(), 4))
    firsts = []
    for number in range(1, 7):
        if number == 4:
            versions.promote(HIGH)
        for place in range(5):
            tuning.observe(Report(numbers={"time": 5.0 * number + place, "loss": 1.0}))
        firsts.append(tuning.decide(0.0).first)
    assert firsts == [True, False, False, True, False, False]


def test_versions_that_are_swapped_under_load_are_never_mixed(tmp_path: Path) -> None:
    versions = Versions()
    versions.promote(LOW)
    factors = {LOW.name: 0.9, HIGH.name: 1.1}
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for version in (HIGH, LOW):
                versions.promote(version)

    tuning = watched(tmp_path / "run", configured("ddpg"), Policies(Versions(), 4))
    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        decided: Counter[str] = Counter()
        # Until each has decided often enough, however busy the machine is.
        while min(decided[name] for name in factors) < 15 and decided.total() < 2000:
            decided[decide(tuning, decided.total() + 1)["version"]] += 1
    finally:
        over.set()
        swapping.join(60)
    found = list(decision_log.read(tmp_path / "run"))
    assert {record["version"] for record in found} == set(factors)
    for record in found:
        proposal = record["proposal"]
        wanted = proposal["action"]["lr_factor"] - 0.2 * proposal["noise"][1]
        assert wanted == pytest.approx(factors[record["version"]], abs=1e-3)
        assert record["proposal"]["doubt"] is None
