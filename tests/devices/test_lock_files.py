from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from mlflow_rlsched.devices.locks import DeviceLocks, LockError, LockRequest, free_amount, lock_dir

from .conftest import Hold

GPU, OTHER, MIG_1 = "GPU-a", "GPU-b", "MIG-1"

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
NOBODY = 65534


@pytest.fixture
def common_folder() -> Iterator[Path]:
    """A folder that other users reach too (unlike ``tmp_path``)."""
    folder = Path(tempfile.mkdtemp(prefix="rlsched-test-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    rmtree(folder)


# Files


@pytest.mark.parametrize("device", ["", ".", "..", "../GPU", "GPU/1", "GPU a", "GPU\n", "é"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ValueError, match="device id"):
        DeviceLocks(tmp_path).acquire([LockRequest(device)])
    with pytest.raises(ValueError, match="device id"):
        free_amount(tmp_path, device)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("amount", [0, -1, 101])
def test_an_amount_is_one_to_a_hundred(amount: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 100"):
        LockRequest(GPU, amount)


def test_a_file_is_open_to_all_whatever_the_umask_and_stays(tmp_path: Path) -> None:
    locks = DeviceLocks(tmp_path)
    before = os.umask(0o077)
    try:
        assert locks.acquire([LockRequest(GPU)]) is None
    finally:
        os.umask(before)
    locks.release()
    assert stat.S_IMODE((tmp_path / GPU).stat().st_mode) == 0o666


def test_a_file_never_looks_old_to_what_cleans_tmp(tmp_path: Path) -> None:
    DeviceLocks(tmp_path).acquire([LockRequest(GPU)])
    status = (tmp_path / GPU).stat()
    in_ten_years = time.time() + 10 * 365 * 86400
    assert min(status.st_mtime, status.st_atime) > in_ten_years


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    assert free_amount(tmp_path, MIG_1, GPU) == 100
    assert list(tmp_path.iterdir()) == []


def test_creation_is_exclusive_and_never_tried_on_a_file_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    real = os.open

    def record(path: Path, flag: int, mode: int = 0o777) -> int:
        flags.append(flag)
        return real(path, flag, mode)

    monkeypatch.setattr(os, "open", record)
    DeviceLocks(tmp_path).acquire([LockRequest(GPU)])
    DeviceLocks(tmp_path).acquire([LockRequest(GPU)])
    assert [bool(flag & os.O_CREAT) for flag in flags] == [False, True, False]
    assert flags[1] & os.O_EXCL
    assert all(flag & os.O_NOFOLLOW and flag & os.O_CLOEXEC for flag in flags)


def test_two_that_create_the_same_file_get_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = DeviceLocks(tmp_path)
    real = os.open

    def overtaken(path: Path, flag: int, mode: int = 0o777) -> int:
        if flag & os.O_CREAT:
            monkeypatch.setattr(os, "open", real)
            assert rival.acquire([LockRequest(GPU)]) is None
        return real(path, flag, mode)

    monkeypatch.setattr(os, "open", overtaken)
    assert DeviceLocks(tmp_path).acquire([LockRequest(GPU)]) == GPU


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    (tmp_path / GPU).symlink_to(target)
    with pytest.raises(LockError, match=str(tmp_path / GPU)):
        DeviceLocks(tmp_path).acquire([LockRequest(GPU)])
    with pytest.raises(LockError):
        free_amount(tmp_path, GPU)
    assert not target.exists()


@AS_ROOT
def test_users_exclude_each_other(common_folder: Path, hold: Hold) -> None:
    before = os.umask(0o077)
    try:
        mine = DeviceLocks(common_folder)
        assert mine.acquire([LockRequest(GPU, 50)]) is None
    finally:
        os.umask(before)
    hold(common_folder, GPU, 60, busy=GPU, uid=NOBODY)
    hold(common_folder, GPU, 40, uid=NOBODY)
    hold(common_folder, OTHER, uid=NOBODY)
    assert free_amount(common_folder, GPU) == 10
    assert mine.acquire([LockRequest(OTHER)]) == OTHER


# The folder


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    monkeypatch.setenv("RLSCHED_LOCK_DIR", str(folder))
    return folder


def test_the_folder_is_made_for_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = configured(monkeypatch, tmp_path / "locks")
    before = os.umask(0o077)
    try:
        assert lock_dir() == folder
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert lock_dir() == folder


def test_a_private_folder_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = configured(monkeypatch, tmp_path / "locks")
    folder.mkdir(mode=0o700)
    assert lock_dir() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_linked_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = configured(monkeypatch, tmp_path / "locks")
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockError, match="link"):
        lock_dir()


def test_a_file_in_place_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path / "locks").touch()
    with pytest.raises(LockError, match="remove it"):
        lock_dir()


def test_a_folder_whose_files_others_can_remove_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = configured(monkeypatch, tmp_path / "locks")
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(LockError, match="chmod 1777"):
        lock_dir()
    folder.chmod(0o1777)
    assert lock_dir() == folder


@AS_ROOT
def test_another_users_folder_must_be_sticky(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = configured(monkeypatch, tmp_path / "locks")
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o755)
    with pytest.raises(LockError, match="chmod 1777"):
        lock_dir()
    folder.chmod(0o1777)
    assert lock_dir() == folder


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = configured(monkeypatch, tmp_path / "absent" / "locks")
    with pytest.raises(LockError, match=f"{folder} cannot be made"):
        lock_dir()


def test_a_relative_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, Path("locks"))
    with pytest.raises(LockError, match="absolute"):
        lock_dir()
