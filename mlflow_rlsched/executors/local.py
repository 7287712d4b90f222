"""Runs attempts on this host, each under a shim of its own.

Everything is found again from the attempt's files, so that an agent which died may come back,
or another take its place: nothing here depends on having started the attempt.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.filelock import FileLock

ATTEMPT_VARIABLE = "RLSCHED_ATTEMPT_DIR"


class LocalExecutor:
    """Starts, stops and adopts attempts on this host.

    Args:
        environ: Environment of the shims (the agent's own, which holds nothing of any user's
            submission).
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._shims: dict[Path, subprocess.Popen[bytes]] = {}

    def launch(self, run_dir: Path, spec: protocol.AttemptSpec) -> Path:
        """Start the shim of an attempt.

        Returns:
            The attempt's directory.

        Raises:
            OSError: The directory cannot be written or the shim not be started.
        """
        folder = protocol.attempt_dir(run_dir, spec.attempt)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.write(folder)
        with open(folder / "shim.log", "ab") as log:
            self._shims[folder] = subprocess.Popen(
                [sys.executable, "-m", "mlflow_rlsched.executors.shim", str(folder)],
                env=self._environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return folder

    def stop(self, folder: Path, reason: str, grace_s: float) -> None:
        """Ask the shim to end its attempt; asked again, a shorter grace takes effect."""
        protocol.write_json(folder / "stop.json", {"reason": reason, "grace_s": grace_s})
        owner = self.shim(folder)
        if owner is not None:
            owner.signal(signal.SIGTERM)

    def shim(self, folder: Path) -> processes.Identity | None:
        """The living shim of an attempt, or None."""
        spawned = self._shims.get(folder)
        if spawned is not None and spawned.poll() is None:
            return processes.Identity.of(spawned.pid)
        value = protocol.read_json(folder / "shim.json")
        identity = processes.Identity.from_json(value)
        return identity if identity is not None and identity.alive() else None

    def ended(self, folder: Path) -> protocol.Exit | None:
        """How the attempt ended, or None while its shim lives or its remains are being cleaned.

        An attempt whose shim died without a word is declared void, so that a late shim gives
        up, and every process of it is killed; when none is left it has ended as ``lost``.
        """
        ending = protocol.Exit.read(folder)
        if ending is None and not self._alive(folder):
            ending = self._bury(folder)
        if ending is not None:
            self._shims.pop(folder, None)
        return ending

    def _alive(self, folder: Path) -> bool:
        spawned = self._shims.get(folder)
        if spawned is not None:
            return spawned.poll() is None
        return FileLock(folder / "shim.lock").held()

    def _bury(self, folder: Path) -> protocol.Exit | None:
        if not (folder / "attempt.json").exists():
            return protocol.Exit(int(folder.name), None, "not_started", "its agent died first")
        lock = FileLock(folder / "shim.lock")
        if not lock.acquire():
            return None  # a shim that was late has just begun
        try:
            ending = protocol.Exit.read(folder)
            if ending is not None:
                return ending
            (folder / "void").touch()
        finally:
            lock.release()
        orphans = processes.with_environment(ATTEMPT_VARIABLE, str(folder))
        processes.send(orphans, signal.SIGKILL)
        if orphans:
            return None
        spec = protocol.read_json(folder / "attempt.json") or {}
        if spec.get("container"):
            subprocess.Popen(
                ["docker", "rm", "--force", spec["container"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return protocol.Exit(
            int(folder.name), None, "lost", "its supervising process (the shim) was killed"
        )
