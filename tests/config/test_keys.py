"""The keys of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.config import ConfigError, RunConfig, find_knobs
from tests.config.asking import (
    accept,
    error,
)


def test_every_key_of_the_contract_has_its_default(tmp_path: Path) -> None:
    config = accept({})
    assert config.model_dump(mode="json") == {
        "policy": "ddpg",
        "priority": 0,
        "gpus": {"initial": 1, "min": 1, "max": 1},
        "batch_size": {"param": None, "min": None, "max": None, "start": None},
        "learning_rate": {"param": None, "min": None, "max": None, "start": None},
        "objective": {"metric": "val_loss", "mode": "min", "target": None},
        "reward": {"alpha": 1.0, "beta": 0.5, "gamma": 1.0, "smoothness": 0.1},
        "decision_interval_s": "auto",
        "wait": None,
        "nested": "share",
        "resume_run_id": None,
        "max_retries": 3,
        "retry_delays_s": [10.0, 30.0, 60.0],
        "timeout_s": None,
        "queue_timeout_s": None,
        "grace_s": 30.0,
        "heartbeat_s": 300.0,
        "memory_cap_gb": None,
        "gpu_fraction": 1.0,
        "requires": {"host": None, "gpu_type": None, "memory_gb": None},
        "cpu_slots": 1,
        "quotas": {},
        "weights": {},
        "prices": {},
        "quantum_s": None,
        "env": [],
        "launcher": "command",
        "executor": "local",
        "store": f"sqlite:///{tmp_path}/rlsched-home/rlsched.db",
        "initial_batch_size": None,
        "policy_file": None,
    }


def test_a_configuration_that_names_every_key_is_taken_as_it_is() -> None:
    written = {
        "policy": "fixed",
        "priority": -5,
        "gpus": {"initial": 2, "min": 1, "max": 4},
        "batch_size": {"param": "bs", "min": 16, "max": 1024, "start": None},
        "learning_rate": {"param": "eta", "min": 1e-5, "max": 1, "start": "study:s@journal:///f"},
        "objective": {"metric": "accuracy", "mode": "max", "target": 0.9},
        "reward": {"alpha": 2, "beta": 0, "gamma": 0.5, "smoothness": 0},
        "decision_interval_s": 12.5,
        "wait": False,
        "nested": "queue",
        "resume_run_id": "0" * 32,
        "max_retries": 0,
        "retry_delays_s": [0],
        "timeout_s": 60,
        "queue_timeout_s": 5,
        "grace_s": 0,
        "heartbeat_s": 10,
        "memory_cap_gb": None,
        "gpu_fraction": 0.25,
        "requires": {"host": "box", "gpu_type": "H100", "memory_gb": 40},
        "cpu_slots": 2,
        "quotas": {},
        "weights": {},
        "prices": {"H100": 2.5},
        "quantum_s": None,
        "env": ["WANDB_MODE"],
        "launcher": "command",
        "executor": "local",
        "store": "sqlite:////data/store.db",
    }
    dumped = accept(written).model_dump(mode="json")
    assert dumped == {**written, "initial_batch_size": None, "policy_file": None}


def test_a_resolved_configuration_survives_json() -> None:
    config = accept({"gpus": 2, "env": ["A"], "retry_delays_s": [1], "prices": {"x": 1}})
    config = find_knobs(config, {"bs": "8"}, {})
    again = RunConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json"))))
    assert again == config


def test_a_resolved_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        accept({}).priority = 3


@pytest.mark.parametrize(
    ("written", "initial", "least", "most"),
    [
        (3, 3, 3, 3),
        (0, 0, 0, 0),
        ({}, 1, 1, 1),
        ({"initial": 4}, 4, 1, 4),
        ({"initial": 0}, 0, 0, 0),
        ({"max": 4}, 1, 1, 4),
        ({"initial": 2, "max": 8}, 2, 1, 8),
        ({"initial": 2, "min": 0}, 2, 0, 2),
    ],
)
def test_counts_of_gpus(written: object, initial: int, least: int, most: int) -> None:
    gpus = accept({"gpus": written}).gpus
    assert (gpus.initial, gpus.min, gpus.max) == (initial, least, most)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prioritty": 1}, "unknown key 'prioritty' (did you mean 'priority'?)"),
        ({"gpus": {"intial": 2}}, "unknown key 'gpus.intial' (did you mean 'gpus.initial'?)"),
        ({"requires": {"foo": None}}, "unknown key 'requires.foo'; known are host, gpu_type, mem"),
        ({"foo": None}, "unknown key 'foo'; known are policy, priority, gpus, "),
        ({"a\nb": 1}, r"unknown key 'a\nb'; known are "),
        ({1: 2}, "unknown key 1; known are "),
        ({"initial_batch_size": 8}, "unknown key 'initial_batch_size' (did you mean 'batch_"),
        ({"gpus": {"min": 4, "initial": 2}}, "gpus.min is 4, above gpus.initial 2"),
        ({"gpus": {"max": 1, "initial": 2}}, "gpus.max is 1, below gpus.initial 2"),
        ({"gpus": {"initial": 5000}}, "gpus.initial is 5000, must be a whole number from 0 to 4"),
        ({"gpus": -1}, "gpus is -1, must be a whole number from 0 to 4096, or an object with"),
        ({"gpus": True}, "gpus is true, must be a whole number from 0 to 4096, or an object"),
        ({"gpus": 1.5}, "gpus is 1.5, must be a whole number from 0 to 4096, or an object"),
        ({"gpus": {"initial": True}}, "gpus.initial is true, must be a whole number from 0"),
        ({"priority": "high"}, "priority is 'high', must be a whole number from -1000000 to 1"),
        ({"priority": 10**5000}, "priority is <int>, must be a whole number from -1000000 to"),
        ({"priority": 1.0}, "priority is 1.0, must be a whole number"),
        ({"nested": "shair"}, "nested is 'shair', must be 'share' or 'queue' (did you mean 'sha"),
        ({"nested": 3}, "nested is 3, must be 'share' or 'queue'"),
        ({"objective": "loss"}, "objective is 'loss', must be an object with the keys metric, "),
        ({"objective": {"mode": "MAX"}}, "objective.mode is 'MAX', must be 'min' or 'max'"),
        ({"objective": {"metric": "a\nb"}}, r"objective.metric is 'a\nb', must be the name of"),
        ({"objective": {"target": float("nan")}}, "objective.target is NaN, must be a finite"),
        ({"reward": {"alpha": float("inf")}}, "reward.alpha is Infinity, must be a number of"),
        ({"reward": {"beta": -1}}, "reward.beta is -1, must be a number of at least 0"),
        ({"reward": {"beta": 10**400}}, "reward.beta is 1000"),
        ({"batch_size": {"min": 0}}, "batch_size.min is 0, must be a whole number from 1 to 2"),
        ({"batch_size": {"min": 9, "max": 8}}, "batch_size.min is 9, above batch_size.max 8"),
        ({"batch_size": {"param": ""}}, "batch_size.param is '', must be the name of a param"),
        ({"learning_rate": {"min": 0}}, "learning_rate.min is 0, must be a number above 0"),
        ({"learning_rate": {"min": 1, "max": 0.1}}, "learning_rate.min is 1.0, above learning_"),
        ({"decision_interval_s": 0}, "decision_interval_s is 0, must be 'auto', or a number of"),
        ({"decision_interval_s": "soon"}, "decision_interval_s is 'soon', must be 'auto', or"),
        ({"wait": "yes"}, "wait is 'yes', must be true, false or null"),
        ({"wait": 1}, "wait is 1, must be true, false or null"),
        ({"resume_run_id": "../x"}, "resume_run_id is '../x', must be the id of a run, or null"),
        ({"max_retries": -1}, "max_retries is -1, must be a whole number from 0 to 1000"),
        ({"retry_delays_s": [1, "a"]}, 'retry_delays_s is [1, "a"], must be a list of seconds'),
        ({"retry_delays_s": []}, "retry_delays_s is [], must be a list of seconds like [10, 30"),
        ({"timeout_s": 0}, "timeout_s is 0, must be a number of seconds above 0, at most 1e8"),
        ({"timeout_s": 1e300}, "timeout_s is 1e+300, must be a number of seconds above 0, at m"),
        ({"timeout_s": {}}, "timeout_s is {}, must be a number of seconds"),
        ({"gpu_fraction": 0.001}, "gpu_fraction is 0.001, must be a number from 0.01 to 1"),
        ({"gpu_fraction": 2}, "gpu_fraction is 2, must be a number from 0.01 to 1"),
        ({"cpu_slots": 0}, "cpu_slots is 0, must be a whole number from 1 to 4096"),
        ({"requires": {"memory_gb": -1}}, "requires.memory_gb is -1, must be a number above 0"),
        ({"prices": {"H100": "much"}}, 'prices is {"H100": "much"}, must be an object like {"H'),
        ({"prices": {3: 1}}, 'prices is {"3": 1}, must be an object like'),
        ({"env": "HOME"}, "env is 'HOME', must be a list of names of variables like [\"WANDB_MO"),
        ({"env": ["A=secret"]}, 'env is ["A=secret"], must be a list of names of variables'),
        ({"policy": "fixd"}, "policy is 'fixd', must be 'ddpg', 'rules', 'goodput', 'fixed', the "),
        ({"policy": 3}, "policy is 3, must be 'ddpg', 'rules', 'goodput', 'fixed', the path of "),
        ({"policy": "s3://b/p"}, "policy is 's3://b/p', must be 'ddpg', 'rules', 'goodput', 'fix"),
        ({"policy": "models:/p"}, "policy is 'models:/p', must be models:/NAME@ALIAS or models"),
        ({"policy": "models:/p/x"}, "policy is 'models:/p/x', must be models:/NAME@ALIAS or "),
        ({"executor": "ray"}, "executor 'ray' is not available in this version; write 'local'"),
        ({"executor": "rey"}, "executor is 'rey', must be 'local'"),
        ({"quantum_s": 0}, "quantum_s is 0, must be "),
        ({"store": 5}, "store is 5, must be sqlite:///<path of a file>"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config: dict[Any, Any], message: str) -> None:
    assert error(config).startswith(f"backend config: {message}")


def test_a_policy_has_a_name_a_path_or_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for text in ("ddpg", "rules", "goodput", "fixed", "models:/p@champion", "models:/p/3"):
        assert accept({"policy": text}).policy == text
    for text in ("p.safetensors", "./p.safetensors"):
        assert accept({"policy": text}).policy == str(tmp_path / "p.safetensors")
    assert accept({"policy": "~/p"}).policy == "/home/me/p"
    assert error({"policy": "fixd"}).endswith("VERSION (did you mean 'fixed'?)")


def test_of_several_errors_each_has_a_line() -> None:
    text = error({"priority": "x", "cpu_slots": 0, "foo": 1})
    assert [line[: line.index("is") + 2] for line in text.splitlines()[:2]] == [
        "backend config: priority is",
        "backend config: cpu_slots is",
    ]
    assert text.splitlines()[2].startswith("backend config: unknown key 'foo'")
    assert text.count("\n") == 2
    assert "\n" not in error({"gpus": {"initial": -1}})  # min and max only follow from it


@pytest.mark.parametrize("start", ["digits", "study:", "study:a@", "study:@sqlite:///f"])
def test_a_start_names_a_study(start: str) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate.start is .*'study:NAME'"):
        accept({"learning_rate": {"start": start}})
