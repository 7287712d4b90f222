from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from mlflow_rlsched.policy import checkpoint
from mlflow_rlsched.policy.checkpoint import (
    HEADER,
    PolicyFileError,
    Version,
    actor_outputs,
    critic_outputs,
)
from mlflow_rlsched.policy.ddpg import Learner
from mlflow_rlsched.policy.inputs import INPUTS


@pytest.fixture(scope="module")
def learner() -> Learner:
    learner = Learner(seed=2)
    random = np.random.default_rng(0)
    learner.observe(random.uniform(-1, 1, (500, len(INPUTS))).astype(np.float32))
    return learner


@pytest.fixture
def version(learner: Learner) -> Version:
    return Version(learner.arrays(), {"seeds": [2], "data": "a test"}, ("loss_slope", "power"))


@pytest.fixture
def path(version: Version, tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    version.save(path)
    return path


def test_a_version_comes_back_as_it_was(version: Version, path: Path) -> None:
    found = Version.read(path)
    assert found.arrays.keys() == version.arrays.keys()
    assert all((found.arrays[name] == version.arrays[name]).all() for name in found.arrays)
    assert found.card == version.card
    assert set(found.optional) == set(version.optional)
    assert found.name == version.name
    assert path.stat().st_size < 2_000_000
    assert list(path.parent.iterdir()) == [path]


def test_a_learner_goes_on_from_a_version(learner: Learner, path: Path) -> None:
    other = Learner(seed=9)
    other.adopt(Version.read(path).arrays)
    arrays = learner.arrays()
    assert all((value == arrays[name]).all() for name, value in other.arrays().items())
    assert other.reference is not None


def test_numpy_says_what_torch_says(learner: Learner) -> None:
    inputs = np.random.default_rng(1).uniform(-3, 3, (40, len(INPUTS))).astype(np.float32)
    with torch.no_grad():
        said = torch.cat(learner.actor(learner.normaliser(torch.from_numpy(inputs))), 1)
    assert actor_outputs(learner.arrays(), inputs) == pytest.approx(said.numpy(), abs=1e-5)


def test_numpy_judges_as_torch_does(learner: Learner) -> None:
    random = np.random.default_rng(1)
    inputs = random.uniform(-3, 3, (40, len(INPUTS))).astype(np.float32)
    actions = learner.act(inputs)
    with torch.no_grad():
        seen = learner.normaliser(torch.from_numpy(inputs))
        worth = learner.critics(seen, torch.from_numpy(actions)).amin(1)
    found = critic_outputs(learner.arrays(), inputs, actions)
    assert found == pytest.approx(worth.numpy(), abs=1e-5)


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(PolicyFileError, match="cut short"):
        Version.read(path)


@pytest.mark.parametrize("place", [-1, -40_000, -300_000])
def test_a_damaged_file_is_refused(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)
    with pytest.raises(PolicyFileError, match="damaged"):
        Version.read(path)


@pytest.mark.parametrize(
    "content", [b"", b"no policy", b"{}", os.urandom(5000), bytes(8), b"\xff" * 100]
)
def test_what_is_no_policy_is_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    with pytest.raises(PolicyFileError, match=r"policy\.safetensors cannot be read as a policy"):
        Version.read(path)


def test_numbers_that_numpy_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = b'{"weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    with pytest.raises(PolicyFileError, match="cannot be read as a policy"):
        Version.read(path)


def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"weight": np.ones(3)}, {HEADER: "[" * 100_000}))
    with pytest.raises(PolicyFileError, match="holds no policy of rlsched"):
        Version.read(path)


def test_another_models_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"weight": np.ones(3)}))
    with pytest.raises(PolicyFileError, match="holds no policy of rlsched; write ddpg"):
        Version.read(path)


def test_an_absent_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PolicyFileError, match="cannot be read"):
            Version.read(path)


def rewritten(version: Version, path: Path, arrays: dict[str, Any], **changes: Any) -> None:
    """A file whose hash is right, whatever else is not."""
    golden = np.zeros((16, len(INPUTS)), np.float32)
    all_arrays = {
        **version.arrays,
        "golden.inputs": golden,
        "golden.outputs": actor_outputs(version.arrays, golden),
        **arrays,
    }
    all_arrays = {name: array for name, array in all_arrays.items() if array is not None}
    header = version._header() | changes
    header["digest"] = checkpoint._digest(all_arrays, header)
    path.write_bytes(save(all_arrays, {HEADER: json.dumps(header)}))


OTHER = ["colour", *INPUTS[1:]]


@pytest.mark.parametrize(
    ("arrays", "changes", "says"),
    [
        ({}, {"inputs": OTHER}, "gpu_utilisation is missing, colour is unknown"),
        ({}, {"inputs": list(INPUTS[::-1])}, "in another order"),
        ({}, {"inputs": 3}, "other inputs"),
        ({}, {"format": 1}, "has format 1, this version reads 2"),
        (
            {},
            {"heads": ["gpus", "colour"]},
            "does not say which of gpus, batch_size, learning_rate",
        ),
        ({}, {"heads": 3}, "does not say which of"),
        ({}, {"policy": "other"}, "holds no policy of rlsched"),
        ({}, {"card": 1}, "no model card"),
        ({"normaliser.mean": None}, {}, r"nothing for normaliser.mean, must be \(31,\)"),
        ({"actor.body.4.bias": np.zeros(9)}, {}, r"\(9,\) for actor.body.4.bias"),
        ({"normaliser.var": np.full(31, np.nan)}, {}, "not finite"),
        ({"golden.outputs": np.full((16, 7), 0.5)}, {}, "does not act as it did"),
    ],
)
def test_a_foreign_policy_is_refused(
    version: Version, tmp_path: Path, arrays: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "policy.safetensors"
    rewritten(version, path, arrays, **changes)
    with pytest.raises(PolicyFileError, match=says):
        Version.read(path)


def test_what_could_not_be_read_is_never_written(version: Version, path: Path) -> None:
    before = path.read_bytes()
    wild = dict(version.arrays) | {"normaliser.low": np.full(31, np.inf, np.float32)}
    with pytest.raises(PolicyFileError, match="not finite"):
        Version(wild).save(path)
    assert path.read_bytes() == before


def test_a_disk_that_fails_leaves_the_old_version(
    version: Version, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)  # stands for a full disk
    with pytest.raises(OSError, match="No space"):
        Version(version.arrays, {"data": "another"}).save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_same_content_has_the_same_name(version: Version) -> None:
    assert Version(version.arrays, version.card, version.optional).name == version.name
    assert Version(version.arrays, {"data": "another"}, version.optional).name != version.name


def test_a_policy_acts_without_torch() -> None:
    code = "import sys, mlflow_rlsched.policy.learned; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
