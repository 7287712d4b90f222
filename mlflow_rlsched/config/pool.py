"""What an administrator says of a shared store: who administers it, quotas and weights."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from mlflow_rlsched.config.errors import ConfigError, explain
from mlflow_rlsched.config.keys import NotNegative, Section, Text
from mlflow_rlsched.config.layers import read_toml

DEFAULT_FILE = Path("/etc/rlsched/pool.toml")


class PoolRules(Section):
    """Rules of the stores that users of this host share.

    Attributes:
        administrators: Users who may cancel, prioritize and retry what is another's.
        quotas: Most devices at once, by user.
        weights: Fair share, by user.
    """

    administrators: tuple[Text, ...] = Field(
        default=(), strict=False, description='a list of users like ["carol"]'
    )
    quotas: dict[Text, Annotated[int, Field(ge=0)]] = Field(
        default={}, description="a table like {alice = 4}, of numbers not below 0"
    )
    weights: dict[Text, NotNegative] = Field(
        default={}, description="a table like {alice = 2.0}, of numbers not below 0"
    )


def pool_file(environ: Mapping[str, str] = os.environ) -> Path:
    """``$RLSCHED_POOL_FILE``, by default ``/etc/rlsched/pool.toml``."""
    return Path(environ.get("RLSCHED_POOL_FILE") or DEFAULT_FILE)


def pool_rules(environ: Mapping[str, str] = os.environ) -> PoolRules:
    """The rules of this host; none of all where there is no such file.

    Raises:
        ConfigError: The file cannot be read, or not be used, or others than root (or this user,
            who named it by the variable) can write it.
    """
    path = pool_file(environ)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return PoolRules()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{path}: others than root can write it: `sudo chown root {path} && sudo chmod 644"
            f" {path}`"
        )
    layer = read_toml(path, str(path))
    try:
        return PoolRules.model_validate(layer.values)
    except ValidationError as error:
        raise ConfigError.of(explain(error, PoolRules, [layer])) from None
