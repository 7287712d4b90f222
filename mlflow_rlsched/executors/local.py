"""Runs attempts on this host, each under a shim of its own.

A shim is started before there is an attempt for it, so that none waits for an interpreter to start.

Everything is found again from the attempt's files, so that an agent which died may come back,
or another take its place: nothing here depends on having started the attempt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow_rlsched import processes, protocol
from mlflow_rlsched.executors import containers
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
        self._spare: subprocess.Popen[bytes] | None = None
        self._shims: dict[Path, subprocess.Popen[bytes]] = {}
        self._removals: dict[Path, tuple[subprocess.Popen[bytes] | None, float]] = {}

    def launch(self, run_dir: Path, spec: protocol.AttemptSpec) -> Path:
        """Have a shim run an attempt.

        Returns:
            The attempt's directory.

        Raises:
            OSError: The directory cannot be written or the shim not be started.
        """
        folder = protocol.attempt_dir(run_dir, spec.attempt)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.write(folder)
        (folder / "shim.log").touch()
        shim, self._spare = self._spare, None
        if shim is None or not _told(shim, folder):  # somebody may have killed it
            shim = self._new_shim()
            _told(shim, folder)
        self._shims[folder] = shim
        with contextlib.suppress(OSError):  # the next launch tries again, and says why not
            self._spare = self._new_shim()
        return folder

    def _new_shim(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "mlflow_rlsched.executors.shim"],
            bufsize=0,
            env=self._environ,
            cwd="/",
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the shim that has no attempt; the others go on."""
        if self._spare is not None:
            with self._spare as spare:
                spare.kill()  # it may be suspended, and would not see that its input ends

    def stop(self, folder: Path, reason: str, grace_s: float, message: str = "") -> None:
        """Ask the shim to end its attempt; asked again, a shorter grace takes effect.

        Args:
            folder: The attempt's directory.
            reason: Class of its ending.
            grace_s: Seconds between TERM and KILL.
            message: One sentence for people, where the class does not say it all.

        Raises:
            OSError: The request cannot be written (a full disk); ask again later.
        """
        protocol.write_json(
            folder / "stop.json", {"reason": reason, "grace_s": grace_s, "message": message}
        )
        owner = self.shim(folder)
        if owner is not None:
            owner.signal(signal.SIGTERM)

    def alive(self, agent: Path) -> dict[Path, protocol.AttemptSpec]:
        """Attempts of an agent that have processes of this user, by their directories.

        Args:
            agent: The agent's folder.
        """
        found = {}
        for folder in map(Path, set(processes.environments(ATTEMPT_VARIABLE).values())):
            with contextlib.suppress(ValueError):  # whatever that is, it is no attempt
                spec = protocol.AttemptSpec.read(folder)
                if spec.agent_dir == str(agent):
                    found[folder] = spec
        return found

    def age_s(self, folder: Path) -> float:
        """Seconds that an attempt has been running; 0 when its shim does not live."""
        since = (protocol.read_json(folder / "shim.json") or {}).get("since")
        if self.shim(folder) is None or not isinstance(since, float):
            return 0.0
        return max(0.0, processes.uptime_s() - since)

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
        up, and every process of it is killed; when none is left it has ended: as ``lost``; as
        ``not_started`` when no shim had begun before an earlier agent died; as ``start_failed``,
        which is not tried again, when the shim itself failed before it started anything, or the
        run directory is gone.

        Raises:
            OSError: The attempt cannot be declared void (a full disk); ask again later.
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
        spec = protocol.read_json(folder / "attempt.json")
        if spec is not None:
            lock = FileLock(folder / "shim.lock")
            if not lock.acquire():
                return None  # a shim that was late has just begun
            try:
                ending = protocol.Exit.read(folder)
                if ending is not None:
                    return ending
                if not (folder / "void").exists():
                    (folder / "void").touch()
                    # What a dying shim was just starting shows its environment a moment later.
                    return None
            finally:
                lock.release()
        orphans = processes.with_environment(ATTEMPT_VARIABLE, str(folder))
        if orphans:
            processes.send(orphans, signal.SIGKILL)
            return None
        container = spec and spec.get("container")
        if container and not self._removed(folder, str(container)):
            return None
        return protocol.Exit(int(folder.name), None, *self._why_it_died(folder))

    def _why_it_died(self, folder: Path) -> tuple[str, str]:
        """The class, and one sentence, of an attempt whose shim died without a word."""
        run_dir = folder.parent.parent
        if not run_dir.exists():
            return "start_failed", f"its run directory {run_dir} was deleted while it ran"
        log = folder / "shim.log"
        traceback = log.read_text(errors="replace").splitlines() if log.exists() else []
        if traceback:
            kind = "lost" if (folder / "output.log").exists() else "start_failed"
            return kind, f"its supervising process (the shim) failed: {traceback[-1]} (see {log})"
        if folder not in self._shims and not (folder / "shim.json").exists():
            return "not_started", "its agent died first"
        return "lost", "its supervising process (the shim) was killed"

    def _removed(self, folder: Path, container: str) -> bool:
        """Whether the removal of a buried attempt's container, begun here, is over."""
        if folder not in self._removals:
            removal = containers.begin_removal(container, folder.parent.parent)
            self._removals[folder] = (removal, time.monotonic() + containers.REMOVAL_S)
        removal, deadline = self._removals[folder]
        if removal is not None and removal.poll() is None and time.monotonic() < deadline:
            return False
        del self._removals[folder]
        return True


def _told(shim: subprocess.Popen[bytes], folder: Path) -> bool:
    """Tell a shim which attempt is its own; False when it has ended before."""
    assert shim.stdin is not None
    with shim.stdin:
        try:
            shim.stdin.write(os.fsencode(folder))
        except BrokenPipeError:
            shim.wait()
            return False
    return True
