"""Credentials of tracking servers and artifact stores: used where needed, printed nowhere."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PREFIXES = ("MLFLOW_TRACKING_", "MLFLOW_S3_", "AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_")
_USER_INFO = re.compile(r"(?<=://)[^/\s]*@")


def redacted(text: object) -> str:
    """Text without the user names and passwords of the URLs in it."""
    return _USER_INFO.sub("…@", str(text))


@contextlib.contextmanager
def acting_for(environment: Mapping[str, Any]) -> Iterator[None]:
    """Make the credentials of a submitter, and no others, those of this process.

    One thread at a time: clients read credentials from the environment, which a process has once.

    Args:
        environment: Variables of the submitter.
    """
    own = {name: os.environ.pop(name) for name in _credentials(os.environ)}
    theirs = {name: str(environment[name]) for name in _credentials(environment)}
    os.environ.update(theirs)
    try:
        yield
    finally:
        for name in theirs:
            os.environ.pop(name, None)
        os.environ.update(own)


def _credentials(environment: Mapping[str, Any]) -> list[str]:
    return [name for name in environment if name.startswith(_PREFIXES)]
