"""Where a configuration comes from, and which layer wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_rlsched.config import resolve
from tests.config.asking import (
    accept,
    error,
    project_file,
    user_file,
)


def test_layers_in_order(tmp_path: Path) -> None:
    home = user_file(tmp_path, "priority = 1\ncpu_slots = 1\nmax_retries = 1\ngrace_s = 1\n")
    project = project_file(tmp_path, "priority = 2\ncpu_slots = 2\nmax_retries = 2\n")
    variables = {"RLSCHED_CFG_PRIORITY": "3", "RLSCHED_CFG_CPU_SLOTS": "3"}
    config = accept({"priority": 4}, project, XDG_CONFIG_HOME=home, **variables)
    assert (config.priority, config.cpu_slots) == (4, 3)
    assert (config.max_retries, config.grace_s) == (2, 1)


def test_sections_are_merged_key_by_key(tmp_path: Path) -> None:
    home = user_file(tmp_path, "gpus = 2\n[reward]\nalpha = 7\nbeta = 7\n[prices]\nA = 1\n")
    project = project_file(tmp_path, "[gpus]\nmax = 4\n[reward]\nbeta = 8\n[prices]\nB = 2\n")
    config = accept(
        {"gpus": {"min": 1}},
        project,
        XDG_CONFIG_HOME=home,
        RLSCHED_CFG_REWARD='{"gamma": 9}',
    )
    assert config.gpus.model_dump() == {"initial": 2, "min": 1, "max": 4}
    assert config.reward.model_dump() == {"alpha": 7, "beta": 8, "gamma": 9, "smoothness": 0.1}
    assert config.prices == {"A": 1, "B": 2}


def test_null_takes_a_key_back_to_its_default(tmp_path: Path) -> None:
    project = project_file(tmp_path, "priority = 2\n[gpus]\ninitial = 4\nmax = 8\n[reward]\nbeta=9")
    config = accept({"priority": None, "gpus": {"max": None}}, project, RLSCHED_CFG_REWARD="null")
    assert config.priority == 0
    assert config.gpus.model_dump() == {"initial": 4, "min": 1, "max": 4}
    assert config.reward.beta == 0.5


def test_a_section_after_null_starts_from_the_defaults(tmp_path: Path) -> None:
    project = project_file(tmp_path, "[reward]\nalpha = 9\n")
    config = accept({"reward": {"beta": 2}}, project, RLSCHED_CFG_REWARD="null")
    assert config.reward.model_dump() == {"alpha": 1, "beta": 2, "gamma": 1, "smoothness": 0.1}


def test_keys_of_mlflow_are_dropped_and_the_callers_dict_is_left_alone() -> None:
    written: dict[str, Any] = {
        "ENV_MANAGER": None,
        "SYNCHRONOUS": False,
        "DOCKER_ARGS": {"gpus": "all"},
        "STORAGE_DIR": None,
        "build_image": False,
        "docker_auth": None,
        "_mlflow_local_backend_run_id": "abc",
        "gpus": {"initial": 2, "max": None},
    }
    before = json.dumps(written)
    assert accept(written, RLSCHED_CFG_GPUS='{"min": 2}').gpus.min == 2
    assert json.dumps(written) == before


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("RLSCHED_CFG_PRIORITY", "5", "priority", 5),
        ("RLSCHED_CFG_WAIT", "false", "wait", False),
        ("RLSCHED_CFG_NESTED", "queue", "nested", "queue"),
        ("RLSCHED_CFG_NESTED", '"queue"', "nested", "queue"),
        ("RLSCHED_CFG_NESTED", "", "nested", "share"),
        ("RLSCHED_CFG_DECISION_INTERVAL_S", "auto", "decision_interval_s", "auto"),
        ("RLSCHED_CFG_DECISION_INTERVAL_S", "2", "decision_interval_s", 2),
        ("RLSCHED_CFG_ENV", '["A"]', "env", ("A",)),
        ("RLSCHED_CFG_RESUME_RUN_ID", "12345678", "resume_run_id", "12345678"),
        ("RLSCHED_CFG_RESUME_RUN_ID", "null", "resume_run_id", None),
        ("RLSCHED_CFG_STORE", "/data/5", "store", "sqlite:////data/5"),
        ("RLSCHED_POLICY", "", "policy", "ddpg"),
    ],
)
def test_variables_hold_json_or_a_plain_string(
    name: str, text: str, key: str, value: object
) -> None:
    assert getattr(accept({}, **{name: text}), key) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("RLSCHED_CFG_PRIORITTY", "1", "unknown key 'prioritty' (did you mean 'priority'?)"),
        ("RLSCHED_CFG_", "1", "unknown key ''; known are "),
        ("RLSCHED_CFG_PRIORITY", "high", "priority is 'high', must be a whole number from"),
        ("RLSCHED_CFG_GPUS", '{"initial": 2', "not valid JSON: Expecting ',' delimiter: line 1"),
        ("RLSCHED_CFG_GPUS", "[" * 100_000, "not valid JSON: "),
        ("RLSCHED_CFG_ENV", "A,B", "env is 'A,B', must be a list of names"),
        ("RLSCHED_CFG_STORE", "redis://me:secret@host", "store on redis is not available in"),
        ("RLSCHED_POLICY", "best", "policy is 'best', must be 'ddpg', 'rules', 'goodput', 'fix"),
    ],
)
def test_an_error_names_the_variable(name: str, text: str, message: str) -> None:
    said = error({}, **{name: text})
    assert said.startswith(f"variable {name}: {message}")
    assert "secret" not in said


def test_rlsched_policy_overrides_every_layer() -> None:
    config = accept({"policy": "ddpg"}, RLSCHED_POLICY="fixed", RLSCHED_CFG_POLICY="rules")
    assert config.policy == "fixed"


def test_an_error_names_the_layer_that_is_at_fault(tmp_path: Path) -> None:
    home = user_file(tmp_path, "cpu_slots = 0\n[reward]\nalpha = -1\n")
    project = project_file(tmp_path, "prioritty = 2\n")
    path = Path(home) / "rlsched" / "config.toml"
    assert error({}, project).startswith(
        "rlsched.toml: unknown key 'prioritty' (did you mean 'priority'?)"
    )
    project_file(tmp_path, "[reward]\nbeta = 1\n")
    variables = {"XDG_CONFIG_HOME": home}
    assert error({"cpu_slots": 1}, project, **variables).startswith(f"{path}: reward.alpha is -1")
    project_file(tmp_path, "[gpus]\nmin = 3\n")
    overridden = {"cpu_slots": 1, "reward": {"alpha": 1}}
    assert error(
        overridden, project, **variables
    ) == "rlsched.toml: gpus.min is 3, above gpus.i" + ("nitial 1")


@pytest.mark.parametrize("key", ["store", "executor"])
def test_a_project_has_no_say_in_where_runs_are_kept(tmp_path: Path, key: str) -> None:
    project_file(tmp_path, f'{key} = "local"\n')
    text = error({}, tmp_path)
    assert text.startswith(f"rlsched.toml: {key} is not for a project to set; write it in your")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = \n", "not valid TOML: Invalid value (at line 1, column 5)"),
        (b"\n\n[gpus\n", "not valid TOML: Expected ']' at the end of a table declaration (at lin"),
        (b"\xff\xfe", "not valid TOML: it is not UTF-8 text"),
        (b"a = " + b"[" * 50_000, "not valid TOML: "),
        (b"priority = 2020-01-01", "priority is <date>, must be a whole number"),
        (b"timeout_s = nan", "timeout_s is NaN, must be a number of seconds"),
        (b"priority = " + b"9" * 5000, ""),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "rlsched.toml").write_bytes(content)
    assert error({}, tmp_path).startswith(f"rlsched.toml: {message}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rlsched.toml").mkdir()
    assert error({}, tmp_path) == "rlsched.toml: cannot be read: Is a directory"


def test_a_project_that_is_a_file_has_no_layer(tmp_path: Path) -> None:
    (tmp_path / "MLproject").touch()
    assert accept({}, tmp_path / "MLproject").priority == 0


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_CFG_PRIORITY", "7")
    assert resolve({}, None).priority == 7
