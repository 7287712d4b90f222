"""Optuna's studies: where they are kept, and the best that one of them found."""

from __future__ import annotations

import hashlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_rlsched.credentials import redacted
from mlflow_rlsched.daemon import home, locks_dir
from mlflow_rlsched.sharing import SQLITE

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study

JOURNAL = "journal:///"
POSTGRES = "postgresql://"
REFERENCE = "study:"
"""How a configuration names the best of a study: ``study:NAME`` or ``study:NAME@STORAGE``."""

_STORAGES = (
    f"{JOURNAL}FILE, sqlite:///FILE, postgresql://HOST/DATABASE, mysql://HOST/DATABASE or"
    " redis://HOST"
)


class StudyError(Exception):
    """A study that cannot be used, and why, in a sentence."""


def default_storage() -> str:
    """URL of this user's own studies: a journal file in the home folder."""
    return f"{JOURNAL}{home() / 'studies.journal'}"


def import_optuna() -> Any:
    """The package ``optuna``.

    Raises:
        StudyError: It is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise StudyError(
            "studies need Optuna: `pip install 'mlflow-rlsched[search]'`, or `pip install optuna`"
        ) from None
    return optuna


def quiet_optuna() -> Any:
    """The package ``optuna`` for a program of ours: it says nothing but warnings.

    Raises:
        StudyError: It is not installed.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def open_storage(url: str) -> BaseStorage:
    """The storage at a URL: any of Optuna's databases, or a journal in a file or in Redis.

    Raises:
        StudyError: It cannot be opened.
    """
    optuna = import_optuna()
    from optuna.storages.journal import JournalRedisBackend

    from mlflow_rlsched.journal import Journal

    try:
        if url.startswith(JOURNAL):
            path = Path(url.removeprefix(JOURNAL))
            path.parent.mkdir(parents=True, exist_ok=True)
            return optuna.storages.JournalStorage(Journal(path))
        if url.startswith(("redis://", "rediss://")):
            return optuna.storages.JournalStorage(JournalRedisBackend(url))
        if url.startswith(POSTGRES):  # which driver that is depends on SQLAlchemy's version
            return optuna.storages.get_storage(f"postgresql+psycopg://{url.removeprefix(POSTGRES)}")
        return optuna.storages.get_storage(url)
    except ImportError as error:
        raise StudyError(
            f"the storage {redacted(url)} needs its driver: `pip install"
            " 'mlflow-rlsched[postgres]'` or `'mlflow-rlsched[redis]'` have those of PostgreSQL"
            " and Redis"
        ) from error
    except Exception as error:  # databases and their drivers raise all kinds
        raise StudyError(
            f"the storage {redacted(url)} cannot be used ({first_line(error)}): write {_STORAGES}"
        ) from error


def first_line(error: BaseException) -> str:
    """What a storage says is wrong, shortly and without credentials."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redacted((lines or [type(error).__name__])[0])[:200]


def storage_errors() -> tuple[type[Exception], ...]:
    """What storages raise when they cannot be used any more."""
    from sqlalchemy.exc import SQLAlchemyError

    found = [import_optuna().exceptions.OptunaError, SQLAlchemyError]
    redis = sys.modules.get("redis")
    return (*found, redis.RedisError) if redis is not None else tuple(found)


def storage_exists(url: str) -> bool:
    """False where looking would make a file."""
    for scheme in (JOURNAL, SQLITE):
        if url.startswith(scheme):
            return Path(url.removeprefix(scheme)).exists()
    return True


def existing_study(name: str, url: str) -> Study:
    """A study that is there.

    Raises:
        StudyError: There is none of this name.
    """
    optuna = import_optuna()
    names: list[str] = []
    if storage_exists(url):
        storage = open_storage(url)
        names = optuna.get_all_study_names(storage)
        if name in names:
            return optuna.load_study(study_name=name, storage=storage)
    known = f"it has {', '.join(sorted(names)[:10])}" if names else "it has none"
    raise StudyError(f"there is no study {name!r} in {redacted(url)}: {known}")


def best_parameters(reference: str) -> dict[str, str]:
    """Parameters of the best trial of a study, as texts by name.

    Args:
        reference: ``study:NAME`` or ``study:NAME@STORAGE``.

    Raises:
        StudyError: There is no such study, or none of its trials is complete.
    """
    name, _, url = reference.removeprefix(REFERENCE).partition("@")
    study = existing_study(name, url or default_storage())
    try:
        best = study.best_trial
    except (ValueError, RuntimeError) as error:
        raise StudyError(f"the study {name!r} has no best trial yet: {error}") from error
    return {key: as_text(value) for key, value in best.params.items()}


def as_text(value: Any) -> str:
    """A parameter's value as a command line takes it."""
    return repr(value) if isinstance(value, float) else str(value)


def lock_path(study_name: str, url: str) -> Path:
    """File to lock for what one process at a time may do with a study.

    However a file that holds it is written: ``sqlite:///a.db`` in another folder is another one.
    """
    for scheme in (JOURNAL, SQLITE):
        if url.startswith(scheme):
            url = scheme + str(Path(url.removeprefix(scheme)).resolve())
    digest = hashlib.sha256(f"{url} {study_name}".encode()).hexdigest()[:16]
    return locks_dir() / f"study-{digest}"
