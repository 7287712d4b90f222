from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_rlsched.config import ConfigError, RunConfig, Settings, find_knobs, resolve, store_url

NOTHING: dict[str, str] = {"XDG_CONFIG_HOME": "/nonexistent"}


def error(config: Mapping[Any, Any], project: Path | None = None, /, **variables: str) -> str:
    """What a configuration is refused with."""
    with pytest.raises(ConfigError) as caught:
        resolve(config, project, {**NOTHING, **variables})
    text = str(caught.value)
    assert_for_people(text)
    return text


def assert_for_people(text: str) -> None:
    lines = text.split("\n")
    assert lines == text.splitlines(), text
    assert all(line and len(line) < 700 for line in lines), text
    assert "pydantic" not in text.lower(), text
    assert "https://" not in text, text


def accept(
    config: Mapping[Any, Any], project: Path | None = None, /, **variables: str
) -> RunConfig:
    return resolve(config, project, {**NOTHING, **variables})


def project_file(folder: Path, text: str) -> Path:
    (folder / "rlsched.toml").write_text(text)
    return folder


def user_file(folder: Path, text: str) -> str:
    """Write the user's file; the value of XDG_CONFIG_HOME that makes it found."""
    (folder / "rlsched").mkdir()
    (folder / "rlsched" / "config.toml").write_text(text)
    return str(folder)


# -- keys ---------------------------------------------------------------------------------------


def test_every_key_of_the_contract_has_its_default(tmp_path: Path) -> None:
    config = accept({})
    assert config.model_dump(mode="json") == {
        "policy": "fixed",
        "priority": 0,
        "gpus": {"initial": 1, "min": 1, "max": 1},
        "batch_size": {"param": None, "min": None, "max": None},
        "learning_rate": {"param": None, "min": None, "max": None},
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
    }


def test_a_configuration_that_names_every_key_is_taken_as_it_is() -> None:
    written = {
        "policy": "fixed",
        "priority": -5,
        "gpus": {"initial": 2, "min": 1, "max": 4},
        "batch_size": {"param": "bs", "min": 16, "max": 1024},
        "learning_rate": {"param": "eta", "min": 1e-5, "max": 1},
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
    assert dumped == {**written, "initial_batch_size": None}


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
        ({"policy": "fixd"}, "policy is 'fixd', must be 'rules' or 'fixed' (did you mean 'f"),
        ({"policy": 3}, "policy is 3, must be 'rules' or 'fixed'"),
        ({"policy": "ddpg"}, "policy 'ddpg' is not available in this version; write 'rules'"),
        ({"policy": "models:/p@champion"}, "policy 'models:/p@champion' is not available in "),
        ({"executor": "ray"}, "executor 'ray' is not available in this version; write 'local'"),
        ({"executor": "rey"}, "executor is 'rey', must be 'local'"),
        ({"launcher": "torchrun"}, "launcher 'torchrun' is not available in this version; write"),
        ({"memory_cap_gb": 8}, "memory_cap_gb 8.0 is not available in this version; write null"),
        ({"quantum_s": 60}, "quantum_s 60.0 is not available in this version; write null"),
        ({"quotas": {"me": 1}}, 'quotas {"me": 1} is not available in this version; write {}'),
        ({"weights": {"me": 1}}, 'weights {"me": 1.0} is not available in this version; write {}'),
        ({"store": 5}, "store is 5, must be sqlite:///<path of a file>"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config: dict[Any, Any], message: str) -> None:
    assert error(config).startswith(f"backend config: {message}")


def test_of_several_errors_each_has_a_line() -> None:
    text = error({"priority": "x", "cpu_slots": 0, "foo": 1})
    assert [line[: line.index("is") + 2] for line in text.splitlines()[:2]] == [
        "backend config: priority is",
        "backend config: cpu_slots is",
    ]
    assert text.splitlines()[2].startswith("backend config: unknown key 'foo'")
    assert text.count("\n") == 2
    text = error({"executor": "ray", "quantum_s": 60})
    assert [line.split()[2] for line in text.splitlines()] == ["executor", "quantum_s"]
    assert "\n" not in error({"gpus": {"initial": -1}})  # min and max only follow from it


# -- layers -------------------------------------------------------------------------------------


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
        ("RLSCHED_POLICY", "", "policy", "fixed"),
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
        ("RLSCHED_POLICY", "goodput", "policy 'goodput' is not available in this version; write"),
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


# -- the store ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["sqlite:///", ""])
def test_a_store_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert accept({"store": f"{prefix}x/s.db"}).store == f"sqlite:///{tmp_path}/x/s.db"
    assert accept({"store": f"{prefix}~/s.db"}).store == f"sqlite:///{tmp_path}/me/s.db"
    assert accept({"store": f"{prefix}/a/../b.db"}).store == "sqlite:////b.db"


def test_a_store_behind_a_link_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to("real.db")
    assert store_url(str(tmp_path / "link.db")) == f"sqlite:///{tmp_path}/real.db"


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("postgresql://me:secret@db/x", "store on postgresql is not available in this version; "),
        ("redis://:secret@box:6379", "store on redis is not available in this version; write "),
        ("mysql://me:secret@db/x", "store begins with 'mysql://'; write sqlite:///<path of a f"),
        ("sqlite://x.db", "store begins with 'sqlite://'; write sqlite:///<path of a file>"),
        ("sqlite:///", "store 'sqlite:///' is no path of a file; write sqlite:///<path of a file>"),
        ("sqlite:///:memory:", "store 'sqlite:///:memory:' is no path of a file; write "),
        ("sqlite:////x.db?mode=ro", "store 'sqlite:////x.db?mode=ro' is no path of a file"),
        ("~nobody-of-that-name/x.db", "store '~nobody-of-that-name/x.db' is no path of a file"),
        ("a\0b", r"store 'a\x00b' is no path of a file"),
        ("sqlite:////tmp", "store 'sqlite:////tmp' is a folder; write sqlite:///<path of a file>"),
    ],
)
def test_a_store_that_cannot_be_is_refused(store: str, message: str) -> None:
    said = error({"store": store})
    assert said.startswith(f"backend config: {message}")
    assert "secret" not in said
    with pytest.raises(ConfigError) as caught:
        store_url(store, NOTHING)
    assert str(caught.value).startswith(f"--store: {message}")


def test_the_store_of_reading_commands(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": user_file(tmp_path, 'store = "/user.db"\n')}
    variable = {"RLSCHED_CFG_STORE": "/variable.db", "RLSCHED_CFG_PRIORITTY": "1"}
    assert store_url("/named.db", {**home, **variable}) == "sqlite:////named.db"
    assert store_url(None, {**home, **variable}) == "sqlite:////variable.db"
    assert store_url(None, home) == "sqlite:////user.db"
    assert store_url(None, NOTHING) == f"sqlite:///{tmp_path}/rlsched-home/rlsched.db"


def test_reading_commands_and_runs_agree_on_the_store(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": user_file(tmp_path, 'store = "/user.db"\n')}
    for environ in (home, NOTHING, {**home, "RLSCHED_CFG_STORE": "null"}):
        assert store_url(None, environ) == resolve({}, None, environ).store


def test_a_home_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSCHED_HOME", "/what?")
    assert error({}).startswith("variable RLSCHED_HOME: store '/what?/rlsched.db' is no path of a")


# -- knobs --------------------------------------------------------------------------------------


def knobs(
    parameters: Mapping[str, Any], given: Mapping[str, Any] | None = None, **config: Any
) -> tuple[str | None, int | None, str | None]:
    found = find_knobs(accept(config), parameters, given or {})
    return found.batch_size.param, found.initial_batch_size, found.learning_rate.param


def knob_error(
    parameters: Mapping[str, Any], given: Mapping[str, Any] | None = None, **config: Any
) -> str:
    with pytest.raises(ConfigError) as caught:
        find_knobs(accept(config), parameters, given or {})
    assert_for_people(str(caught.value))
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "batch_size",
        "batch-size",
        "batchsize",
        "bs",
        "BS",
        "train_batch_size",
        "per_device_train_batch_size",
    ],
)
def test_the_batch_size_is_found_by_its_name(name: str) -> None:
    assert knobs({name: "32", "epochs": "3"}) == (name, 32, None)


@pytest.mark.parametrize("name", ["lr", "LR", "learning_rate", "learning-rate"])
def test_the_learning_rate_is_found_by_its_name(name: str) -> None:
    assert knobs({name: 0.1, "epochs": 3}) == (None, None, name)


def test_what_the_user_gave_goes_before_the_default() -> None:
    assert knobs({"bs": 32}, {"bs": "8"}) == ("bs", 8, None)
    assert knobs({"bs": None}, {"bs": "8"}) == ("bs", 8, None)
    assert knobs({}, {"batch_size": "8", "lr": "1e-3"}) == ("batch_size", 8, "lr")


def test_a_small_batch_is_nobodys_business_without_bounds() -> None:
    assert knobs({"batch_size": "1", "lr": "100"}) == ("batch_size", 1, "lr")


@pytest.mark.parametrize("value", [None, "", "auto", "0.5", True, "32.0", [8], "9" * 5000])
def test_words_in_a_fitting_parameter_turn_the_knob_off(value: object) -> None:
    assert knobs({"batch_size": value}) == (None, None, None)


@pytest.mark.parametrize("value", [None, "", "auto", False, "1/3"])
def test_words_in_a_fitting_rate_turn_the_knob_off(value: object) -> None:
    assert knobs({"lr": value}) == (None, None, None)


def test_an_explicit_null_turns_the_knob_off(tmp_path: Path) -> None:
    off = {"batch_size": {"param": None}, "learning_rate": {"param": None}}
    assert knobs({"batch_size": "-1", "bs": "3", "lr": "0"}, **off) == (None, None, None)
    project = project_file(tmp_path, '[batch_size]\nparam = "bs"\n')
    config = find_knobs(accept(off, project), {"bs": "8"}, {})
    assert config.batch_size.param is None


def test_a_knob_that_was_found_or_is_off_stays_so() -> None:
    for parameters in ({"bs": "8", "lr": "1"}, {}):
        config = find_knobs(accept({}), parameters, {})
        restored = RunConfig.model_validate(config.model_dump(mode="json"))
        assert find_knobs(restored, {"bs": "8", "lr": "1"}, {}).batch_size == config.batch_size


def test_configured_names_go_before_fitting_ones() -> None:
    config = {"batch_size": {"param": "chunk"}, "learning_rate": {"param": "eta"}}
    parameters = {"chunk": "4", "eta": "0.5", "batch_size": "8", "bs": "9", "lr": "1"}
    assert knobs(parameters, **config) == ("chunk", 4, "eta")


@pytest.mark.parametrize(
    ("parameters", "given", "config", "message"),
    [
        (
            {"batch_size": "8", "bs": "9"},
            {},
            {},
            "parameters 'batch_size' and 'bs' all look like the batch_size: say which one it is"
            ' with {"batch_size": {"param": "batch_size"}}, or null for none',
        ),
        ({"lr": "1"}, {"learning-rate": "2"}, {}, "parameters 'lr' and 'learning-rate' all look"),
        (
            {"chunk": "8"},
            {},
            {"batch_size": {"param": "chunks"}},
            "batch_size.param is 'chunks', but the entry point has no such parameter (did you mean"
            " 'chunk'?)",
        ),
        (
            {"a": "1", "b": "2"},
            {},
            {"learning_rate": {"param": "eta"}},
            "learning_rate.param is 'eta', but the entry point has no such parameter; it has 'a',"
            " 'b'",
        ),
        ({}, {}, {"learning_rate": {"param": "eta"}}, "learning_rate.param is 'eta', but the en"),
        (
            {"bs": "auto"},
            {},
            {"batch_size": {"param": "bs"}},
            "parameter 'bs' is 'auto', batch_size must be a whole number from 1 to 2147483647",
        ),
        ({"bs": None}, {}, {"batch_size": {"param": "bs"}}, "parameter 'bs' is null, batch_size"),
        (
            {"bs": "0"},
            {},
            {},
            "parameter 'bs' is '0', batch_size must be a whole number from 1 to 2147483647; if it"
            ' is something else, write {"batch_size": {"param": null}}',
        ),
        ({"bs": "-4"}, {}, {}, "parameter 'bs' is '-4', batch_size must be a whole number from 1"),
        ({"bs": str(2**31)}, {}, {}, "parameter 'bs' is '2147483648', batch_size must be"),
        ({"lr": "0"}, {}, {}, "parameter 'lr' is '0', learning_rate must be a finite number abo"),
        ({"lr": "nan"}, {}, {}, "parameter 'lr' is 'nan', learning_rate must be a finite number"),
        ({"lr": "inf"}, {}, {}, "parameter 'lr' is 'inf', learning_rate must be a finite number"),
        ({"lr": -0.1}, {}, {}, "parameter 'lr' is -0.1, learning_rate must be a finite number"),
        (
            {"bs": "8"},
            {},
            {"batch_size": {"min": 16}},
            "parameter 'bs' is '8', below batch_size.min 16",
        ),
        (
            {"lr": "8"},
            {"lr": "9"},
            {"learning_rate": {"max": 8}},
            "parameter 'lr' is '9', above learning_rate.max 8.0",
        ),
    ],
)
def test_parameters_that_cannot_be_knobs_are_refused(
    parameters: dict[str, Any], given: dict[str, str], config: dict[str, Any], message: str
) -> None:
    assert knob_error(parameters, given, **config).startswith(message)


# -- anything -----------------------------------------------------------------------------------

SECTIONS = ("gpus", "batch_size", "learning_rate", "objective", "reward", "requires")
NAMES = st.one_of(
    st.sampled_from([*Settings.model_fields, "initial", "min", "max", "param", "mode", "alpha"]),
    st.text(max_size=8),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "fixed", "min", "share", "local", 10**400, "~", "x/y", "\ud800"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(NAMES, VALUES, max_size=5)


VARIABLES = st.dictionaries(
    st.sampled_from(list(Settings.model_fields)),
    st.text(max_size=6) | VALUES.map(json.dumps),
    max_size=3,
)


@settings(max_examples=400, deadline=None)
@given(backend=CONFIGS, variables=VARIABLES)
def test_any_configuration_is_taken_or_refused_in_one_line(
    backend: dict[str, Any], variables: dict[str, str]
) -> None:
    environ = {f"RLSCHED_CFG_{key.upper()}": text for key, text in variables.items()}
    try:
        config = resolve(backend, None, {**NOTHING, **environ})
    except ConfigError as refused:
        assert_for_people(str(refused))
    else:
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config
        json.dumps(config.model_dump(mode="json")).encode()


@settings(max_examples=300, deadline=None)
@given(section=st.sampled_from(SECTIONS), values=VALUES)
def test_any_section_is_taken_or_refused_in_one_line(section: str, values: Any) -> None:
    try:
        resolve({section: values}, None, NOTHING)
    except ConfigError as refused:
        assert_for_people(str(refused))


@settings(max_examples=300, deadline=None)
@given(
    parameters=st.dictionaries(st.sampled_from(["bs", "batch-size", "lr", "x\n"]), SCALARS),
    given_=st.dictionaries(st.sampled_from(["bs", "lr", "eta"]), st.text(max_size=5)),
    param=st.sampled_from([None, "bs", "eta", "x"]),
)
def test_any_parameters_are_taken_or_refused_in_one_line(
    parameters: dict[str, Any], given_: dict[str, str], param: str | None
) -> None:
    config = resolve({"learning_rate": {"param": param}} if param else {}, None, NOTHING)
    try:
        found = find_knobs(config, parameters, given_)
    except ConfigError as refused:
        assert_for_people(str(refused))
    else:
        assert (found.initial_batch_size is None) == (found.batch_size.param is None)
