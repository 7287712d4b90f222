"""``rlsched doctor``: checks what runs depend on, and says how to mend what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_rlsched.asking import ask_server, tracking_store_is_there
from mlflow_rlsched.cli.common import json_option, my_tasks, open_existing, print_json
from mlflow_rlsched.daemon import AgentFiles, home
from mlflow_rlsched.sharing import HOW_TO, is_shared, requests_dir
from mlflow_rlsched.words import duration, short

if TYPE_CHECKING:
    from mlflow_rlsched.store import Quarantine, Store, Task

FRESH_S = 900.0
MIN_FREE_BYTES = 2 * 2**30
LOG_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Attributes:
        check: What was looked at.
        ok: Whether runs can rely on it.
        text: What was found.
        remedy: What to do when it is not well.
    """

    check: str
    ok: bool
    text: str
    remedy: str = ""


@click.command()
@click.option("--store", metavar="URL", help="Store to check; by default as runs are configured.")
@json_option
def doctor(store: str | None, as_json: bool) -> None:
    """Check everything that runs depend on; exit code 1 when something is wrong."""
    findings = []
    for finding in _findings(store):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'✓' if finding.ok else '✗'} {finding.check}: {finding.text}")
            if not finding.ok and finding.remedy:
                click.echo(f"    → {finding.remedy}")
    well = all(finding.ok for finding in findings)
    if as_json:
        print_json({"ok": well, "checks": [asdict(finding) for finding in findings]})
    raise SystemExit(0 if well else 1)


def _findings(store: str | None) -> Iterator[Finding]:
    yield check_home(home())
    yield check_space(home())
    configuration, url = check_configuration(store)
    yield configuration
    if url is not None:
        yield from check_store(url)
        yield from check_policy()
    yield check_devices()
    yield check_locks()
    yield check_tracking()


def check_home(folder: Path) -> Finding:
    """State must be written, on a disk where SQLite is safe."""
    from mlflow_rlsched.store import StoreError
    from mlflow_rlsched.store.sqlite import MOUNTS, file_system, refuse_network

    remedy = "set RLSCHED_HOME to a folder on a local disk that you may write to"
    try:
        refuse_network(folder, MOUNTS)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except StoreError as error:
        return Finding("home", False, str(error), remedy)
    except OSError as error:
        return Finding("home", False, f"{folder}: {error.strerror}", remedy)
    kind = file_system(folder, MOUNTS)
    return Finding("home", True, f"{folder} can be written, on a local disk ({kind})")


def check_space(folder: Path) -> Finding:
    """Outputs and checkpoints need room."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    return Finding(
        "disk space",
        free >= MIN_FREE_BYTES,
        f"{free / 2**30:.1f} GiB free for run directories",
        f"remove old folders from {folder / 'runs'}, or set RLSCHED_HOME to a larger disk",
    )


def check_configuration(store: str | None) -> tuple[Finding, str | None]:
    """The layers below a run's own must be readable; they say where the store is."""
    from mlflow_rlsched.config import ConfigError, resolve, store_url

    try:
        url = store_url(store, os.environ)
        config = resolve({}, None)
    except ConfigError as error:
        return Finding("configuration", False, str(error), "correct what it names"), None
    text = f"policy {config.policy}" + (
        ": tuning is off" if config.policy == "fixed" else ": tunes what runs allow"
    )
    return Finding("configuration", True, text), url


def check_store(url: str) -> Iterator[Finding]:
    """The store must open; it tells what the agent has to do and which devices are out of order."""
    from mlflow_rlsched.store import StoreError

    try:
        store = open_existing(url)
        if store is None:
            yield Finding("store", True, f"{url} is made by the first submission")
            yield check_agent(AgentFiles(url), unfinished=0)
            yield check_forgotten(url, known=set())
            return
        with closing(store):
            mine = my_tasks(store)
            quarantined = store.quarantined(socket.gethostname())
            notes = why_not_offered(store) if quarantined else {}
            known = {task.run_id for task in store.tasks()}
    except StoreError as error:
        yield Finding("store", False, str(error), 'correct "store", or set RLSCHED_HOME')
        return
    yield Finding("store", True, f"{url} opens; {len(mine)} of your runs wait or run here")
    if is_shared(url):
        yield check_sharing(url)
    yield check_agent(AgentFiles(url), len(mine))
    yield check_forgotten(url, known)
    yield check_quarantine(quarantined, notes)
    yield check_memory(mine)


def check_sharing(url: str) -> Finding:
    """A shared store has an administrator's rules, and one's requests are signed by one's key."""
    from mlflow_rlsched import trust
    from mlflow_rlsched.config import ConfigError, pool_rules, resolve
    from mlflow_rlsched.config.pool import pool_file

    try:
        rules = pool_rules()
        trust.sign(url, "")
    except (ConfigError, OSError) as error:
        return Finding("sharing", False, str(error), "do what it says")
    if not requests_dir(url).is_dir():
        text = f"{requests_dir(url)} is missing, where administrators leave what they ask for"
        return Finding("sharing", False, text, HOW_TO)
    own = resolve({}, None)
    ignored = [key for key in ("quotas", "weights") if getattr(own, key)]
    said = "; ".join(
        f"{name} {', '.join(map(str, value)) if name == 'administrators' else value}"
        for name, value in rules
        if value
    )
    text = f"users share the store; {pool_file()} says: {said or 'nothing'}"
    if ignored:
        text += f"; your own {' and '.join(ignored)} do not count"
    return Finding("sharing", True, text)


def check_agent(files: AgentFiles, unfinished: int) -> Finding:
    """The agent may sleep, but what waits needs one, and its log should tell of no fresh error."""
    error = last_error(files.log)
    said = f"; the last error in its log: {error}" if error else ""
    if files.alive():
        fresh = error is not None and _age_s(error) < FRESH_S
        return Finding("agent", not fresh, "lives" + said, f"see {files.log}")
    if unfinished:
        remedy = f"`rlsched agent start`; its log is {files.log}"
        return Finding("agent", False, f"none lives, and {unfinished} runs need one{said}", remedy)
    if untold := untold_runs(files):
        remedy = "`rlsched agent start`, once their tracking servers answer"
        text = f"none lives, and {untold} runs are not told of completely to tracking servers"
        return Finding("agent", False, text + said, remedy)
    return Finding("agent", True, "none lives, nothing to do: a submission starts it")


def untold_runs(files: AgentFiles) -> int:
    """Of how many runs something waits in the agent's outbox."""
    from mlflow_rlsched.agent.outbox import OUTBOX, Outbox

    path = files.folder / OUTBOX
    if not path.exists():
        return 0
    with closing(Outbox(path)) as outbox:
        return len(outbox.runs())


def check_forgotten(url: str, known: Set[str]) -> Finding:
    """A store that was deleted leaves runs behind which MLflow takes for running or waiting."""
    left = []

    def ask() -> None:
        for environment in (home() / "runs").glob("*/environment.json"):
            if environment.parent.name not in known:
                status = forgotten_status(environment, url)
                left.extend([f"{short(environment.parent.name)} is {status}"] if status else [])

    trouble = ask_server(ask)
    if left:
        text = f"not in the store, which was deleted or replaced: {', '.join(left)} in MLflow"
        remedy = (
            f"remove their folders from {home() / 'runs'}, which ends what still goes on of them, "
            'then end them: `mlflow.MlflowClient().set_terminated(RUN_ID, "FAILED")`'
        )
        return Finding("forgotten runs", False, text, remedy)
    if trouble is not None:
        text = f"cannot be told: {without_credentials(trouble)}"
        return Finding("forgotten runs", False, text, "see `tracking` below")
    return Finding("forgotten runs", True, "none: what MLflow takes for running is in the store")


def forgotten_status(environment: Path, url: str) -> str | None:
    """RUNNING or SCHEDULED, when MLflow says so of a run directory of this store, else None."""
    from mlflow_rlsched import protocol
    from mlflow_rlsched.credentials import acting_for

    variables = protocol.read_json(environment) or {}
    if variables.get("RLSCHED_CFG_STORE") != url:
        return None
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with acting_for(variables):
        client = MlflowClient(tracking_uri=variables["MLFLOW_TRACKING_URI"])
        try:
            info = client.get_run(environment.parent.name).info
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
    open_ended = info.lifecycle_stage == "active" and info.status in ("RUNNING", "SCHEDULED")
    return str(info.status) if open_ended else None


def last_error(log: Path) -> str | None:
    """The last line of an agent's log that tells of an error."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    errors = [line for line in lines if " ERROR " in line or " CRITICAL " in line]
    return errors[-1] if errors else None


def _age_s(line: str) -> float:
    """Seconds since a line was logged; 0 when it does not say when."""
    try:
        return time.time() - time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return 0.0


def why_not_offered(store: Store) -> dict[str, str]:
    """Why devices of this host are not offered, by their ids."""
    from mlflow_rlsched.devices import open_inventory
    from mlflow_rlsched.devices.cpu import CpuSlotsError
    from mlflow_rlsched.overview.devices import device_rows

    try:
        with closing(open_inventory()) as inventory:
            rows = device_rows(inventory, store)
    except CpuSlotsError:  # the check of the devices says so
        return {}
    return {row["id"]: row["not_offered"] for row in rows if row["not_offered"]}


def check_quarantine(quarantined: Sequence[Quarantine], notes: Mapping[str, str]) -> Finding:
    """Devices out of order are said, with the time when they are tried again.

    Args:
        quarantined: All on record.
        notes: Why devices are not offered: one whose time is over may still not be empty.
    """
    from mlflow_rlsched.overview.devices import failures

    now = time.time()
    found = []
    for item in quarantined:
        if item.until > now:
            left = duration(item.until - now)
            found.append(f"{item.device} for {left} after {failures(item)} ({item.reason})")
        elif item.device in notes:
            note = notes[item.device]
            found.append(f"{item.device} is over it, after {failures(item)}, but {note}")
    remedy = (
        "see `nvidia-smi` and the system's log for the cause, and end processes that should be"
        " gone; it is offered again by itself"
    )
    return Finding("quarantine", not found, "; ".join(found) or "no device", remedy)


def check_memory(tasks: Sequence[Task]) -> Finding:
    """Runs whose memory grows without bound are named while they run."""
    from mlflow_rlsched import run_warnings

    found = [
        f"{short(task.run_id)}: {warning['text']}"
        for task in tasks
        for warning in run_warnings.read(Path(task.spec.run_dir))
        if warning["attempt"] == task.attempt
    ]
    remedy = "mend the project, or save checkpoints: it goes on from the last when memory is full"
    text = "; ".join(found) or "no run's grows without bound"
    return Finding("memory", not found, text, remedy)


def check_policy() -> Iterator[Finding]:
    """A policy that was trained needs a file that can be used."""
    from mlflow_rlsched.config import resolve
    from mlflow_rlsched.config.keys import ADDRESS
    from mlflow_rlsched.policy.checkpoint import PolicyFileError, Version
    from mlflow_rlsched.policy_names import POLICIES
    from mlflow_rlsched.versions import Versions

    name = resolve({}, None).policy
    if ADDRESS.fullmatch(name) or (name in POLICIES and name != "ddpg"):
        return  # nothing to look at, or only the registry knows
    remedy = "promote a version that can be used: `rlsched policy list`, `rlsched policy promote`"
    try:
        if name != "ddpg":
            yield Finding("policy", True, f"version {Version.read(Path(name)).name} is in {name}")
            return
        champion = Versions().champion()
    except PolicyFileError as error:
        yield Finding("policy", False, str(error), remedy)
        return
    text = f"version {champion.version.name} decides"
    if champion.trouble:
        yield Finding("policy", False, f"{text}, as {champion.trouble}", remedy)
    else:
        yield Finding("policy", True, text)


def check_devices() -> Finding:
    """There must be something to lease; without NVML it is CPU slots."""
    from mlflow_rlsched.devices import open_inventory
    from mlflow_rlsched.devices.cpu import CpuSlotsError
    from mlflow_rlsched.devices.nvidia import NvidiaInventory, NvmlUnavailable

    try:
        with closing(open_inventory()) as inventory:
            found = inventory.devices()
    except CpuSlotsError as error:
        return Finding("devices", False, str(error), "correct or unset RLSCHED_CPU_SLOTS")
    if inventory.kind != "cpu":
        names = ", ".join(sorted({device.name for device in found}))
        return Finding("devices", True, f"{len(found)} GPUs or slices ({names})")
    try:
        NvidiaInventory().close()
        why = "NVML lists no GPU"
    except NvmlUnavailable as error:
        why = str(error)
    return Finding("devices", True, f"{len(found)} CPU slots, no GPU: {why}")


def check_locks() -> Finding:
    """All stores and users of the host keep their devices apart by one folder."""
    from mlflow_rlsched.devices.locks import LockError, lock_dir

    try:
        folder = lock_dir()
    except LockError as error:
        return Finding("device locks", False, str(error))
    return Finding("device locks", True, f"{folder} can be used")


def check_tracking() -> Finding:
    """The tracking server must answer, within a bounded time."""
    import mlflow

    uri = mlflow.get_tracking_uri()
    shown = without_credentials(uri)
    if not tracking_store_is_there(uri):
        return Finding("tracking", True, f"{shown} is made by the first run")
    remedy = "start the tracking server, or set MLFLOW_TRACKING_URI to one that answers"

    def ask() -> object:
        return mlflow.MlflowClient(tracking_uri=uri).search_experiments(max_results=1)

    outcome = ask_server(ask)
    if outcome is None:
        return Finding("tracking", True, f"{shown} answers")
    return Finding("tracking", False, f"{shown}: {without_credentials(outcome)}", remedy)


def without_credentials(text: str) -> str:
    """Text whose URIs hold no user name and password any more."""
    return re.sub(r"://[^/@\s]+@", "://", text)
