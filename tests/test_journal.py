"""The file of studies: Optuna's own format, whoever writes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")
from optuna.storages import JournalStorage  # noqa: E402
from optuna.storages.journal import JournalFileBackend  # noqa: E402

from mlflow_rlsched.journal import Journal  # noqa: E402

WRITE = """
import sys
from pathlib import Path
from mlflow_rlsched.journal import Journal
journal = Journal(Path(sys.argv[1]))
for number in range(300):
    journal.append_logs([{"by": sys.argv[2], "number": number, "more": "x" * number * 20}])
"""


def test_optuna_goes_on_where_we_stopped_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    ours = JournalStorage(Journal(path))
    study = optuna.create_study(storage=ours, study_name="s")
    theirs = JournalStorage(JournalFileBackend(str(path)))
    other = optuna.load_study(study_name="s", storage=theirs)
    for n, each in enumerate([study, other, study, other]):
        trial = each.ask()
        trial.suggest_float("x", 0, 1)
        each.tell(trial, n)
    assert [trial.value for trial in study.trials] == [0, 1, 2, 3]
    assert [trial.params for trial in study.trials] == [trial.params for trial in other.trials]


def test_lines_of_writers_at_once_stay_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    journal = Journal(path)
    names = ("one", "two")
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, path, name]) for name in names]
    seen: list[dict[str, Any]] = []
    while any(writer.poll() is None for writer in writers):
        seen += list(journal.read_logs(len(seen)))
    assert [writer.returncode for writer in writers] == [0, 0]
    seen += list(journal.read_logs(len(seen)))
    for name in names:
        assert [log["number"] for log in seen if log["by"] == name] == list(range(300))
    assert list(Journal(path).read_logs(598)) == seen[598:]


def test_a_line_that_a_killed_writer_began_makes_place_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    for torn in (b'{"a":', b'{"a"' * 30_000):
        path.write_bytes(b'{"a":1}\n' + torn)
        journal = Journal(path)
        assert list(journal.read_logs(0)) == [{"a": 1}]
        journal.append_logs([{"a": 2}, {"a": 3}])
        assert list(journal.read_logs(1)) == [{"a": 2}, {"a": 3}]
        assert path.read_bytes() == b'{"a":1}\n{"a":2}\n{"a":3}\n'


def test_a_full_disk_leaves_the_lines_whole(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    journal = Journal(path)
    journal.append_logs([{"a": 1}])
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    try:
        with pytest.raises(OSError, match=str(path)):
            journal.append_logs([{"a": "x" * 100}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    path.write_bytes(b'{"a":1}\nnot JSON\n')
    with pytest.raises(optuna.exceptions.StorageInternalError, match=f"line 2 of {path}"):
        list(Journal(path).read_logs(0))


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    journal = Journal(path)
    path.write_bytes(b'{"a":1}\n{"a"')
    assert list(journal.read_logs(0)) == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b":2}\n")
    assert list(journal.read_logs(1)) == [{"a": 2}]
