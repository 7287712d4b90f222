from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.skip(reason="no GPU: nothing to lease")
def test_hardware():
    pass

def test_forgotten():
    pytest.skip("no browser")

@pytest.mark.xfail
def test_known():
    assert False
"""


def output(folder: Path, ci: str) -> str:
    """What pytest says of TESTS and of a module that skips itself."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_module.py").write_text("import pytest; pytest.importorskip('no_such_module')")
    (folder / "pytest.ini").touch()
    root = Path(__file__).parent.parent
    options = ["-p", "tests.skips", "-p", "no:cacheprovider", "-p", "no:dash"]
    options.append("--continue-on-collection-errors")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_in_ci_only_absent_hardware_may_skip_a_test(tmp_path: Path) -> None:
    text = output(tmp_path, ci="true")
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in text
    assert "test_it.py::test_forgotten must not be skipped in CI: no browser" in text
    assert "test_module.py must not be skipped in CI: could not import 'no_such_module'" in text


def test_elsewhere_skips_are_skips(tmp_path: Path) -> None:
    assert "3 skipped, 1 xfailed" in output(tmp_path, ci="")
