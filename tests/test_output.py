from __future__ import annotations

from pathlib import Path

from mlflow_rlsched.output import OutputFollower
from mlflow_rlsched.protocol import MAX_READ_BYTES


def write(run_dir: Path, attempt: int, data: bytes) -> None:
    folder = run_dir / "attempts" / str(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.log", "ab") as file:
        file.write(data)


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    follower = OutputFollower(tmp_path / "run")
    assert follower.read() == b""
    (tmp_path / "run" / "attempts").mkdir(parents=True)
    assert follower.read() == b""
    (tmp_path / "run" / "attempts" / "1").mkdir()
    assert follower.read() == b""
    write(tmp_path / "run", 1, b"first\n")
    assert follower.read() == b"first\n"


def test_growing_output_is_read_once(tmp_path: Path) -> None:
    follower = OutputFollower(tmp_path)
    pieces = [b"a\n", b"half a li", b"ne\n", "läuft".encode()]
    read = []
    for piece in pieces:
        write(tmp_path, 1, piece)
        read.append(follower.read())
        assert follower.read() == b""
    assert read == pieces


def test_attempts_follow_one_another_whole_and_in_order(tmp_path: Path) -> None:
    follower = OutputFollower(tmp_path)
    write(tmp_path, 1, b"one ")
    assert follower.read() == b"one "
    write(tmp_path, 1, b"one ends ")
    for number in (2, 3, 10):
        write(tmp_path, number, f"{number} ".encode())
    assert b"".join(iter(follower.read, b"")) == b"one ends 2 3 10 "


def test_an_attempt_that_never_started_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    follower = OutputFollower(tmp_path)
    assert follower.read() == b""
    write(tmp_path, 3, b"three")
    assert follower.read() == b"three"


def test_one_call_is_bounded_and_nothing_is_lost(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096 * 3
    write(tmp_path, 1, data)
    write(tmp_path, 2, b"next")
    pieces = list(iter(OutputFollower(tmp_path).read, b""))
    assert max(map(len, pieces)) == MAX_READ_BYTES
    assert b"".join(pieces) == data + b"next"


def test_attempts_before_a_resumption_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1, b"one")
    write(tmp_path, 2, b"two")
    follower = OutputFollower(tmp_path, after=2)
    assert follower.read() == b""
    write(tmp_path, 3, b"three")
    assert follower.read() == b"three"


def test_other_names_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, 1, b"one")
    (tmp_path / "attempts" / "notes").mkdir()
    (tmp_path / "attempts" / "²").mkdir()
    assert b"".join(iter(OutputFollower(tmp_path).read, b"")) == b"one"
