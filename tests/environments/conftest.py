from __future__ import annotations

import json
import platform
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.world import World

WHEEL = "tiny-1.0-py3-none-any.whl"
TRAIN = """
import json, os, sys
try:
    import tiny
except ImportError:
    tiny = None
seen = {"prefix": sys.prefix, "tiny": tiny and tiny.VALUE, "argv": sys.argv[1:]}
with open(os.path.join(os.environ["RLSCHED_RUN_DIR"], "seen.json"), "w") as file:
    json.dump(seen, file)
"""
PYENV = """#!/bin/sh
[ "$1" = root ] && echo {root}
exit 0
"""


class Place:
    """Where MLflow keeps the environments of a test, and a project to run in one.

    Attributes:
        env_root: Folder of the environments.
        project: The project; ``wants`` writes its environment file.
    """

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.env_root = root / "envs"
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text(TRAIN)
        _write_wheel(self.project / WHEEL)

    def wants(self, python: str | None = None, dependencies: tuple[str, ...] = ()) -> None:
        """Ask for an environment, by default with the Python that runs the tests."""
        lines = [f"python: '{python or platform.python_version()}'", "dependencies:"]
        lines += [f"  - {name}" for name in dependencies]
        (self.project / "python_env.yaml").write_text("\n".join(lines) + "\n")

    def submit(self, entry_point: str = "train.py", **more: Any) -> str:
        """Queue a run of the project; its id."""
        return self.world.submit(self.project, entry_point, **more).run_id

    def seen(self, run_id: str) -> dict[str, Any]:
        """What the training saw."""
        path = Path(self.world.task(run_id).spec.run_dir, "seen.json")
        value: dict[str, Any] = json.loads(path.read_text())
        return value

    def made(self) -> list[Path]:
        """The environments that were made."""
        found = self.env_root.glob("*") if self.env_root.exists() else ()
        return [path for path in found if path.is_dir()]


def _write_wheel(path: Path) -> None:
    """A wheel by hand: installing it needs no network and no build."""
    about = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "VALUE = 42\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tags)
        names = ("tiny.py", f"{about}/METADATA", f"{about}/WHEEL", f"{about}/RECORD")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in names))


@pytest.fixture
def place(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(world, tmp_path)
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(place.env_root))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return place


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for pyenv on a host without it: the Python that runs the tests is installed."""
    root = tmp_path / "pyenv"
    python = root / "versions" / platform.python_version() / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    command = root / "bin" / "pyenv"
    command.parent.mkdir()
    command.write_text(PYENV.format(root=root))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
