"""Who asked for what: keys, signatures, and what the kernel vouches for."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from mlflow_rlsched import trust
from mlflow_rlsched.daemon import agent_folder, user_name
from mlflow_rlsched.sharing import requests_dir
from mlflow_rlsched.store import Task, open_store
from tests.task_specs import make_spec

SAID = trust.statement(trust.CANCEL, "a", 5.0, "carol")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


def key_of(url: str) -> Path:
    return agent_folder(url) / "key"


def test_one_key_is_made_whoever_comes_first(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        signatures = set(pool.map(partial(trust.sign, url), ["text"] * 32))
    assert len(signatures) == 1
    assert list(key_of(url).parent.iterdir()) == [key_of(url)]
    status = key_of(url).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, trust.KEY_BYTES)


def test_a_signature_is_of_a_text_and_a_key(url: str) -> None:
    signature = trust.sign(url, "text")
    assert trust.is_signed(url, "text", signature)
    assert not trust.is_signed(url, "another", signature)
    for wrong in ("", None, 5, "ä", signature.upper()):
        assert not trust.is_signed(url, "text", wrong)
    key_of(url).unlink()
    assert not trust.is_signed(url, "text", signature)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda key: key.chmod(0o640), "others can read it"),
        (lambda key: key.write_bytes(b"short"), "is no key"),
    ],
)
def test_a_key_that_is_none_is_refused_in_a_sentence(url: str, spoil: object, words: str) -> None:
    trust.sign(url, "text")
    spoil(key_of(url))  # type: ignore[operator]
    with pytest.raises(trust.TrustError, match=words):
        trust.sign(url, "text")


def test_in_a_store_of_ones_own_nothing_is_proven_and_no_key_needed(url: str) -> None:
    task = submitted(url)
    key_of(url).chmod(0o640)
    assert trust.prove(url, task, SAID) == ""
    assert set(trust.proofs_of_retry(url, task, 6.0).values()) == {""}


def submitted(url: str, now: float = 5.0) -> Task:
    spec = make_spec("a", user=user_name(), device_limit=("0", "1"))
    with closing(open_store(url)) as store:
        store.submit(spec, 3, now, trust.proofs_of_submission(url, spec, 3, now))
    with closing(open_store(url)) as store:
        task = store.get("a")
    assert task is not None
    return task


def test_a_submission_is_signed_as_the_store_gives_it_back(url: str) -> None:
    task = submitted(url)
    assert trust.is_signed_submission(url, task)
    signature = task.proofs[trust.SPEC]
    queued = trust.statement(trust.QUEUE, "a", task.submitted_at, signature)
    assert trust.is_signed(url, queued, task.proofs[trust.QUEUE])
    priority = trust.statement(trust.PRIORITY, "a", task.submitted_at, task.priority)
    assert trust.is_signed(url, priority, task.proofs[trust.PRIORITY])
    another = trust.statement(trust.PRIORITY, "a", 6.0, 3)
    assert not trust.is_signed(url, another, task.proofs[trust.PRIORITY])


def test_a_task_is_queued_later_than_before_whatever_the_clock_says(url: str) -> None:
    assert trust.queue_time(submitted(url)) > 1e9
    far = submitted(f"{url}-2", now=1e11)
    assert trust.queue_time(far) > 1e11


def vouched_file(url: str) -> Path:
    (file,) = requests_dir(url).iterdir()
    return file


def test_an_administrator_is_known_by_the_owner_of_a_file(shared_url: str, tmp_path: Path) -> None:
    task = Task(make_spec("a", user="somebody"), None, 0, 5.0, 1)  # type: ignore[arg-type]
    me = trust.pwd.getpwuid(os.geteuid()).pw_name
    assert not trust.is_vouched(shared_url, SAID, [me])
    assert trust.prove(shared_url, task, SAID) == ""
    assert trust.is_vouched(shared_url, SAID, [me])
    assert stat.S_IMODE(vouched_file(shared_url).stat().st_mode) == 0o644
    other = next(u.pw_name for u in trust.pwd.getpwall() if u.pw_uid != os.geteuid())
    for users in ([], [other], ["no such user"]):
        assert not trust.is_vouched(shared_url, SAID, users)
    assert not trust.is_vouched(shared_url, SAID.replace("carol", "dave"), [me])


def write_more(file: Path) -> None:
    file.write_text(file.read_text() + "more")


def let_others_write(file: Path) -> None:
    file.chmod(0o664)


def link(file: Path) -> None:
    real = file.rename(file.parent.parent / "real")
    file.symlink_to(real)


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o644)


@pytest.mark.parametrize("spoil", [write_more, let_others_write, link, make_fifo])
def test_a_file_that_others_could_have_put_there_proves_nothing(
    shared_url: str, spoil: object
) -> None:
    task = Task(make_spec("a", user="somebody"), None, 0, 5.0, 1)  # type: ignore[arg-type]
    trust.prove(shared_url, task, SAID)
    spoil(vouched_file(shared_url))  # type: ignore[operator]
    me = trust.pwd.getpwuid(os.geteuid()).pw_name
    assert not trust.is_vouched(shared_url, SAID, [me])


def test_an_administrator_without_a_folder_for_requests_is_told_what_to_do(shared_url: str) -> None:
    requests_dir(shared_url).rmdir()
    task = Task(make_spec("a", user="somebody"), None, 0, 5.0, 1)  # type: ignore[arg-type]
    with pytest.raises(trust.TrustError, match="sudo install -d -m 0770 -g GROUP"):
        trust.prove(shared_url, task, SAID)
