"""A search path for programs on which some are missing, whatever this host has."""

from __future__ import annotations

import shutil
from pathlib import Path


def only(folder: Path, *names: str) -> str:
    """A new folder with links to these programs and no others."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None, f"{name} is not installed"
        (folder / name).symlink_to(found)
    return str(folder)
