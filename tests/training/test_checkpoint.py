from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mlflow_rlsched import attach
from mlflow_rlsched.training.checkpoint import Checkpoints, Position
from tests.training.run_directory import RunDirectory

POSITION = Position(step=7, samples=448, epoch=1.5, batch_size=64, learning_rate=0.05, lr_scale=0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def never() -> bool:
    return False


def save(folder: Path, state: Any, attempt: int = 1) -> None:
    assert Checkpoints(folder, attempt).save(state, POSITION, never)


def load(folder: Path) -> Any:
    found = Checkpoints(folder, 9).load()
    return None if found is None else found[0]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_training_goes_on_where_it_saved(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are counted, and after OOM the old batch size does not come back."""
    run.direct(1, seq=0, batch_size=512)
    session = attach(batch_size=512, learning_rate=0.1)
    assert session.load() is None
    for _ in range(3):
        session.step()
    session.report(epoch=2)
    weights = torch.arange(3.0)
    assert session.save({"weights": weights, "epoch": 2})
    manifest = json.loads((run.checkpoints / "000001-000001" / "manifest.json").read_text())
    assert manifest["position"] == {
        "step": 3,
        "samples": 1536,
        "epoch": 2,
        "batch_size": 512,
        "learning_rate": 0.1,
        "lr_scale": 1.0,
    }

    for name, text in run.start_attempt(2, batch_size=64, lr_scale=0.125).items():
        monkeypatch.setenv(name, text)
    session = attach(batch_size=512, learning_rate=0.1)
    state = session.load()
    assert torch.equal(state["weights"], weights)
    assert (session.steps, session.samples, session.epoch) == (3, 1536, 2)
    assert session.knobs.batch_size == 64
    session.step()
    assert (session.steps, session.samples) == (4, 1600)
    assert run.reports(2)[-1].numbers["samples"] == 1600


def test_the_newest_wins_and_two_are_kept(folder: Path) -> None:
    for number in range(5):
        save(folder, {"n": number})
    assert names(folder) == ["000001-000004", "000001-000005"]
    save(folder, {"n": "later attempt"}, attempt=2)
    assert load(folder) == {"n": "later attempt"}
    assert names(folder) == ["000001-000005", "000002-000001"]


def test_nothing_is_loaded_where_nothing_was_saved(folder: Path) -> None:
    assert load(folder) is None


def test_without_torch_the_state_is_json(folder: Path, without_torch: None) -> None:
    state = {"step": 3, "losses": [0.5, None, True], "name": "ä"}
    save(folder, state)
    assert load(folder) == state
    assert json.loads((folder / "000001-000001" / "state.json").read_text()) == state


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"a": [{"b": (1, 2)}]}, "state['a'][0]['b'] is a tuple"),
        ({"a": object()}, "state['a'] is a object"),
        ({"a": {1: 2}}, "state['a'] has the key 1"),
    ],
)
def test_without_torch_other_states_are_refused(
    folder: Path, without_torch: None, state: Any, sentence: str
) -> None:
    save(folder, {"good": 1})
    with pytest.raises(TypeError) as caught:
        save(folder, state)
    assert sentence in str(caught.value)
    assert names(folder) == ["000001-000001"]


def module_function() -> None:
    """A thing that pickle would name, not hold."""


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (module_function, "it holds tests.training.test_checkpoint.module_function"),
        (POSITION, "it holds mlflow_rlsched.training.checkpoint.Position"),
        (torch.nn.Linear(1, 1), "it holds torch.nn.modules.linear.Linear"),
        (lambda: None, "<lambda>"),
        (sys, "cannot pickle 'module' object"),
    ],
)
def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(
    folder: Path, thing: Any, named: str
) -> None:
    save(folder, {"good": 1})
    with pytest.raises(TypeError) as caught:
        save(folder, {"thing": thing})
    assert "session.save() takes what torch.load(weights_only=True) can read" in str(caught.value)
    assert named in str(caught.value)
    assert names(folder) == ["000001-000001"]


@pytest.mark.parametrize("file", ["state.json", "manifest.json"])
def test_a_file_cut_off_at_any_byte_is_no_checkpoint(
    folder: Path, without_torch: None, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, {"n": 1})
    save(folder, {"n": 2, "more": "x" * 20})
    path = folder / "000001-000002" / file
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert load(folder) == {"n": 1}
    path.unlink()
    assert load(folder) == {"n": 1}
    assert caplog.text.count("000001-000002 is not complete") == len(whole) + 1
    path.write_bytes(whole)
    assert load(folder)["n"] == 2


def test_a_changed_byte_is_no_checkpoint(folder: Path) -> None:
    save(folder, {"n": torch.ones(1)})
    save(folder, {"n": torch.zeros(100)})
    path = folder / "000001-000002" / "state.pt"
    whole = path.read_bytes()
    for position in range(0, len(whole), 97):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert torch.equal(load(folder)["n"], torch.ones(1))
    path.write_bytes(bytes(len(whole)))  # what some file systems leave after a power cut
    assert torch.equal(load(folder)["n"], torch.ones(1))


def test_when_none_is_complete_training_starts_anew(
    folder: Path, without_torch: None, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        save(folder, {"n": number})
    for path in folder.glob("*/state.json"):
        path.write_bytes(b"{")
    assert load(folder) is None
    assert caplog.text.count("is not complete") == 2


KILLED_AT_EVERY_OPERATION = """
import os, signal, sys
from pathlib import Path
from mlflow_rlsched.training.checkpoint import Checkpoints, Position

FILES = ("open", "os.", "shutil.")
left = None

def kill_when_none_is_left(event, _):
    global left
    if left is not None and event.startswith(FILES):
        left -= 1
        if left < 0:
            left = None
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_when_none_is_left)
checkpoints = Checkpoints(Path(sys.argv[1]), 1)
position = Position(1, 1, None, None, None, 1.0)
for allowed in range(1000):
    pid = os.fork()
    if pid == 0:
        left = allowed
        checkpoints.save({"n": allowed}, position, lambda: False)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    found = checkpoints.load()
    print(allowed, killed, -1 if found is None else found[0]["n"], flush=True)
    if not killed:
        break
"""


def test_a_kill_at_any_file_operation_of_a_save_leaves_it_complete_or_absent(folder: Path) -> None:
    """Each save is killed one operation later than the one before it."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_OPERATION, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) > 15
    newest = -1
    for allowed, killed, found in rows:
        assert int(found) in (newest, int(allowed))
        newest = int(found)
        if killed == "False":
            assert found == allowed
    assert any(killed == "True" and found == allowed for allowed, killed, found in rows)
    assert len(names(folder)) == 2


SAVES_FOR_EVER = """
import sys
from pathlib import Path
from mlflow_rlsched.training.checkpoint import Checkpoints, Position

checkpoints = Checkpoints(Path(sys.argv[1]), int(sys.argv[2]))
n = (checkpoints.load() or ({"n": 0}, None))[0]["n"]
print(n, flush=True)
while True:
    n += 1
    checkpoints.save({"n": n, "fill": ["x" * 1000] * 500}, Position(n, n, None, 1, 1.0, 1.0),
                     lambda: False)
    print(n, flush=True)
"""


def test_a_training_killed_while_it_saves_resumes_from_its_last_complete_checkpoint(
    folder: Path,
) -> None:
    saved = 0
    for attempt in range(1, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOR_EVER, folder, str(attempt)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        resumed_from = int(process.stdout.readline())
        assert resumed_from in (saved, saved + 1)  # killed between the save and its line
        for _ in range(3 * attempt):
            saved = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        saved = int(rest[-1]) if rest else saved
        assert load(folder)["n"] in (saved, saved + 1)
        assert len([name for name in names(folder) if not name.startswith(".")]) <= 3


def test_a_checkpoint_that_is_being_loaded_is_not_deleted(
    folder: Path, without_torch: None
) -> None:
    """It is taken away only when it is in nobody's hands."""
    save(folder, {"n": 0})
    with open(folder / "000001-000001" / "manifest.json", "rb") as reading:
        fcntl.flock(reading, fcntl.LOCK_SH)
        for number in range(1, 4):
            save(folder, {"n": number})
        assert names(folder) == ["000001-000001", "000001-000003", "000001-000004"]
    save(folder, {"n": 4})
    assert names(folder) == ["000001-000004", "000001-000005"]


def test_a_checkpoint_is_pinned_while_its_state_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, {"n": 0})
    read = torch.load

    def rotate_meanwhile(path: Path, **options: Any) -> Any:
        monkeypatch.setattr(torch, "load", read)
        for number in range(1, 4):
            save(folder, {"n": number})
        return read(path, **options)

    monkeypatch.setattr(torch, "load", rotate_meanwhile)
    assert load(folder) == {"n": 0}


def test_damaged_checkpoints_do_not_count_among_those_kept(
    folder: Path, without_torch: None
) -> None:
    for number in range(2):
        save(folder, {"n": number})
    (folder / "000001-000002" / "state.json").write_bytes(b"")
    save(folder, {"n": 2})
    shutil.rmtree(folder / "000001-000003")
    assert load(folder) == {"n": 0}


def test_an_attempt_that_is_superseded_while_it_saves_leaves_nothing(folder: Path) -> None:
    save(folder, {"n": 0})
    assert not Checkpoints(folder, 1).save({"n": 1}, POSITION, lambda: True)
    assert names(folder) == ["000001-000001"]


FULL_DISK = """
import resource, sys
if sys.argv[1] == "torch":
    import torch
    big = {"n": torch.zeros(100_000)}
else:
    big = {"n": "x" * 400_000}
from mlflow_rlsched import attach
with attach(batch_size=64) as session:
    session.load()
    print(session.save({"n": 1}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    print(session.save(big), flush=True)
    session.step()
    print(session.save({"n": 2}))
"""


@pytest.mark.parametrize("kind", ["torch", "json"])
def test_a_full_disk_keeps_the_old_checkpoint_and_ends_no_training(
    run: RunDirectory, kind: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, kind], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "True"]
    assert done.stderr.count("the training goes on and the one before it stays") == 1
    assert "Traceback" not in done.stderr
    assert names(run.checkpoints) == ["000001-000001", "000001-000002"]
    assert run.events() == ["hello", "checkpointed", "checkpointed", "done"]


def test_a_folder_that_cannot_be_made_ends_no_training(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    run.checkpoints.write_text("a file is in the way")
    session = attach(batch_size=64)
    assert not session.save({"n": 1})
    assert "no checkpoint could be written" in caplog.text


def test_only_rank_0_saves(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    session = attach(batch_size=64)
    session.step()
    assert not session.save({"n": 1})
    assert not run.checkpoints.exists()
    assert not (run.attempt(1) / "report.jsonl").exists()
