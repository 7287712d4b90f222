from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent

NEW_MODULES = """
import sys
before = set(sys.modules)
import {module}
print(*{{name.partition(".")[0] for name in set(sys.modules) - before}})
"""


def packages_loaded_by(module: str) -> set[str]:
    """Top-level packages outside the standard library that importing ``module`` loads."""
    done = subprocess.run(
        [sys.executable, "-c", NEW_MODULES.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split()) - sys.stdlib_module_names


def test_arrows_between_packages_point_down() -> None:
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["mlflow_rlsched.training", "mlflow_rlsched.executors.shim"])
def test_what_runs_in_every_attempt_needs_the_standard_library_only(module: str) -> None:
    assert packages_loaded_by(module) == {"mlflow_rlsched"}


def test_the_configuration_is_read_without_mlflow() -> None:
    assert not packages_loaded_by("mlflow_rlsched.config") & {"mlflow", "torch", "sqlalchemy"}


def test_the_wheel_holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    metadata = {top for top in tops if top.endswith(".dist-info")}
    assert tops - metadata == {"mlflow_rlsched", "rlsched_dashboard"}
    assert "mlflow_rlsched/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "[mlflow.project_backend]\nrlsched = mlflow_rlsched.backend:RlschedBackend" in text
    assert "rlsched = mlflow_rlsched.cli:main" in text
