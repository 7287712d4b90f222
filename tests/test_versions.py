"""The folder of policy versions: promotions, rollbacks, damage, and death at any moment."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from mlflow_rlsched import versions as module
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
from mlflow_rlsched.versions import Change, VersionNotFoundError, Versions, champions
from tests.policy.trained import trained

LOW, HIGH, HIGHEST = trained(0.9), trained(1.1), trained(1.15)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Version:
    """A version that comes with the package."""
    version = trained(0.85, {"seeds": [0]})
    version.save(tmp_path / "shipped.safetensors")
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped.safetensors")
    return version


@pytest.fixture
def none_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "absent.safetensors")


def champion(folder: Path | None = None) -> str:
    """Name of the champion as another process sees it."""
    return Versions(folder).champion().version.name


def test_until_one_is_promoted_the_shipped_version_is_the_champion(shipped: Version) -> None:
    found = Versions().champion()
    assert found.version.name == shipped.name
    assert found.trouble == ""
    assert Versions().names() == []


@pytest.mark.usefixtures("none_shipped")
def test_without_a_trained_policy_it_is_said_what_to_do() -> None:
    with pytest.raises(PolicyFileError, match=r"no trained policy yet: write the policy rules or"):
        Versions().champion()


def test_promotions_and_rollbacks(shipped: Version) -> None:
    versions = Versions()
    for version in (LOW, HIGH):
        assert versions.promote(version, "better", {"gain": 0.1})
        assert versions.champion().version.name == champion() == version.name
    assert not versions.promote(HIGH)
    assert versions.rollback("worse")
    assert versions.champion().version.name == champion() == LOW.name
    assert versions.rollback()
    assert champion() == shipped.name
    with pytest.raises(VersionNotFoundError, match="there is none before it"):
        versions.rollback()
    told = [(c.champion, c.rollback, c.reason, c.figures) for c in versions.changes()]
    assert told == [
        (LOW.name, False, "better", {"gain": 0.1}),
        (HIGH.name, False, "better", {"gain": 0.1}),
        (LOW.name, True, "worse", {}),
        (None, True, "", {}),
    ]
    assert sorted(versions.names()) == sorted([LOW.name, HIGH.name])


@pytest.mark.usefixtures("shipped")
def test_a_rollback_of_a_champion_that_is_none_any_more_changes_nothing() -> None:
    versions = Versions()
    versions.promote(LOW)
    versions.promote(HIGH)
    assert not versions.rollback(of=LOW.name)
    assert champion() == HIGH.name
    assert versions.rollback(of=HIGH.name)
    assert not Versions().rollback(of=HIGH.name)


def test_a_promoted_version_that_was_before_is_gone_back_through() -> None:
    names = [Change(0, "a"), Change(1, "b"), Change(2, "a"), Change(3, "b", rollback=True)]
    assert champions(names) == ["a", "b"]
    assert champions([Change(0, None, rollback=True)]) == []


@pytest.mark.usefixtures("shipped")
def test_versions_are_found_by_name_beginning_and_file(tmp_path: Path) -> None:
    versions = Versions()
    versions.add(LOW)
    HIGH.save(tmp_path / "mine.safetensors")
    assert versions.find(LOW.name[:4]).name == LOW.name
    assert versions.find(str(tmp_path / "mine.safetensors")).name == HIGH.name
    assert versions.find("shipped").card == {"seeds": [0]}
    for text in ("0", "not-there", LOW.name[:3]):
        with pytest.raises(VersionNotFoundError, match="`rlsched policy list` shows"):
            versions.find(text)
    with pytest.raises(VersionNotFoundError, match="there is no file /no/such"):
        versions.find("/no/such")


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "another", "gone"])
def test_a_damaged_champion_makes_place_for_the_one_before(damage: str, shipped: Version) -> None:
    versions = Versions()
    versions.promote(LOW)
    versions.promote(HIGH)
    assert versions.champion().version.name == HIGH.name
    path = versions.path(HIGH.name)
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif damage == "foreign":
        path.write_text("not a policy")
    elif damage == "another":
        LOW.save(path)
    found = Versions().champion()
    assert found.version.name == LOW.name
    assert found.trouble.startswith(str(path))
    versions.path(LOW.name).write_bytes(b"")
    found = Versions().champion()
    assert found.version.name == shipped.name
    assert found.trouble.count("; ") >= 1
    # What was loaded before goes on, and promoting it again mends its file.
    assert versions.champion().version.name == HIGH.name
    assert versions.promote(HIGH)
    assert champion() == HIGH.name


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 9, "changes": []}'])
def test_a_damaged_record_is_refused_and_the_shipped_version_decides(
    text: str, shipped: Version
) -> None:
    versions = Versions()
    versions.promote(LOW)
    versions.pointer.write_text(text)
    found = versions.champion()
    assert found.version.name == shipped.name
    assert str(versions.pointer) in found.trouble
    for change in (lambda: versions.promote(HIGH), versions.rollback):
        with pytest.raises(PolicyFileError, match=r"champion\.json"):
            change()
    assert versions.pointer.read_text() == text


@pytest.mark.usefixtures("shipped")
def test_a_record_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    versions = Versions()
    HIGH.save(tmp_path / "elsewhere.safetensors")
    versions.promote(LOW)
    told = json.loads(versions.pointer.read_text())
    told["changes"][0]["champion"] = str(tmp_path / "elsewhere")
    versions.pointer.write_text(json.dumps(told))
    assert "the name of no version" in versions.champion().trouble


@pytest.mark.parametrize("content", [b"", b"text", LOW.name.encode() * 9])
def test_a_file_that_is_no_policy_is_refused_and_the_champion_stays(
    tmp_path: Path, content: bytes
) -> None:
    versions = Versions()
    versions.promote(LOW)
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(PolicyFileError, match="cannot be read as a policy"):
        versions.promote(versions.find(str(tmp_path / "foreign")))
    assert champion() == LOW.name


def test_a_version_that_cannot_be_saved_leaves_the_champion(tmp_path: Path) -> None:
    versions = Versions()
    versions.promote(LOW)
    spoilt = trained(1.1)
    spoilt.arrays["actor.body.4.bias"][0] = float("nan")
    with pytest.raises(PolicyFileError, match="not finite"):
        versions.promote(spoilt)
    assert champion() == LOW.name


def test_who_holds_the_lock_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.0)
    versions = Versions()
    versions.promote(LOW)
    lock = FileLock(versions.folder / "lock")
    assert lock.acquire()
    with pytest.raises(TimeoutError, match="try again"):
        versions.promote(HIGH)
    lock.release()
    assert champion() == LOW.name


def test_two_promoters_at_once_lose_no_promotion() -> None:
    def promote(version: Version) -> None:
        versions = Versions()
        for _ in range(10):
            assert versions.promote(version) or versions.changes()[-1].champion == version.name

    threads = [threading.Thread(target=promote, args=(v,)) for v in (LOW, HIGH, HIGHEST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    names = champions(Versions().changes())
    assert {LOW.name, HIGH.name, HIGHEST.name} == set(names)
    assert all(a != b for a, b in pairwise(names))
    assert champion() == names[-1]


PROMOTER = """
import sys
from pathlib import Path
from mlflow_rlsched.policy.checkpoint import Version
from mlflow_rlsched.versions import Versions
versions = Versions(Path(sys.argv[1]))
both = [Version.read(Path(path)) for path in sys.argv[2:]]
while True:
    for version in both:
        versions.path(version.name).unlink(missing_ok=True)  # so that its file is written too
        versions.promote(version)
        print(version.name, flush=True)
"""


def test_whoever_is_killed_while_promoting_leaves_the_old_or_the_new_champion(
    tmp_path: Path, shipped: Version
) -> None:
    chance = random.Random(0)
    folder, files = tmp_path / "policies", []
    for version in (LOW, HIGH):
        files.append(str(tmp_path / f"{version.name}.mine"))
        version.save(Path(files[-1]))
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", PROMOTER, str(folder), *files],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(chance.randint(1, 6))]
        for _ in range(chance.randrange(20_000)):
            pass  # anywhere in the next promotion
        process.kill()
        process.wait(60)
        told += process.stdout.read().split()
        process.stdout.close()
        versions = Versions(folder)
        names = champions(versions.changes())
        # The last one that was told of, or the next one, which died before it could tell.
        assert told[-1] in names[-2:]
        # The promoter itself may have removed a file; whatever is there is whole.
        for name in versions.names():
            versions.read(name)
        assert versions.champion().version.name in {LOW.name, HIGH.name, shipped.name}
        assert versions.promote(HIGHEST)
        assert champion(folder) == HIGHEST.name
        assert list(folder.glob(".*.tmp")) == []
        assert versions.rollback()
