"""Processes by identity, their trees, and how to end them for good (stdlib only, Linux).

The shim runs from here in every attempt, so nothing outside the standard library is imported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def boot_id() -> str:
    """Identifier of this boot of the kernel: PIDs mean nothing across it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime_s() -> float:
    """Seconds since that boot: a clock for all processes, whatever the wall clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Identity:
    """A process, told apart from a later one with the same PID.

    Attributes:
        pid: Process id.
        start_ticks: Start time in clock ticks since boot (``/proc/<pid>/stat``, field 22).
        boot: The boot the two belong to.
    """

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of the living process ``pid``; None when there is none (or a zombie)."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat[1], boot_id())

    @classmethod
    def from_json(cls, value: Any) -> Identity | None:
        """Read back ``to_json``; None when it is not one."""
        try:
            return cls(int(value["pid"]), int(value["start_ticks"]), str(value["boot"]))
        except (TypeError, KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that ``from_json`` reads back."""
        return asdict(self)

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Identity.of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False when it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start ticks of a living process; None for a dead one or a zombie."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[1]), int(fields[19])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> list[int]:
    """Living descendants of ``root``, parents before children, without ``root`` itself."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat[0], []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(0), []):
            found.append(pid)
            queue.append(pid)
    return found


def environments(name: str) -> dict[int, str]:
    """What a variable is in the initial environments of other living processes of this user."""
    start = f"{name}=".encode()
    found = {}
    for pid in _pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.getuid() or pid == os.getpid():
                continue
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        values = [entry.removeprefix(start) for entry in entries if entry.startswith(start)]
        if values and _stat(pid) is not None:
            found[pid] = os.fsdecode(values[0])
    return found


def with_environment(name: str, value: str) -> list[int]:
    """Other living processes of this user whose initial environment holds ``name=value``."""
    return [pid for pid, found in environments(name).items() if found == value]


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists and may be signalled."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end(
    find: Callable[[], Sequence[int]],
    patient: Callable[[], bool],
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """End every process that ``find`` returns: TERM, and KILL once patience has run out.

    Args:
        find: Returns the living processes; called again and again, so that processes which
            fork while they are being ended are found too.
        patient: Whether processes may still end by themselves; asked between looks.
        wait: Called with a number of seconds while there is something to wait for.

    Returns:
        How many processes had to be killed.
    """
    told: set[int] = set()
    pause = 0.01
    while (pids := find()) and patient():
        new = [pid for pid in pids if pid not in told]
        send(new, signal.SIGTERM)
        send(new, signal.SIGCONT)
        told.update(new)
        wait(pause)
        pause = min(2 * pause, 0.25)
    killed: set[int] = set()
    pause = 0.01
    while pids := find():
        send(pids, signal.SIGKILL)
        killed.update(pids)
        wait(pause)
        pause = min(2 * pause, 0.25)  # one that hangs in the kernel may take long
    return len(killed)


def spawn_detached(argv: Sequence[str], env: dict[str, str], log: Path) -> None:
    """Start a process that outlives this one: own session, no descriptors but a log file."""
    with open(log, "ab") as output:
        subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=True,
        )
