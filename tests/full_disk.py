"""Submits again and again onto a disk with less and less room (run in a mount namespace).

Arguments: the folder to mount a small disk on, the smallest and largest room in KiB, and ``anew``
to begin with an empty disk, or ``ro`` to make it read-only instead. What is there else comes from
one earlier submission. Prints a JSON object for each submission.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow

from mlflow_rlsched import daemon
from mlflow_rlsched.config import store_url
from mlflow_rlsched.store import Ending, State, open_store
from tests.world import FAULTY

DISK_KIB = 4096


def fill(disk, room_kib):
    """Fill the disk but for some room; returns the file that does it."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() - 1024 * room_kib))
    return filler


def submit():
    try:
        run = mlflow.projects.run(
            str(FAULTY), "script", backend="rlsched", synchronous=False, experiment_id="0"
        )
    except mlflow.exceptions.ExecutionException as error:
        return str(error)
    return run


def look(outcome):
    """What there is of the submission, now that there is room again."""
    store = open_store(store_url(None))
    runs = mlflow.MlflowClient().search_runs(["0"])
    open_runs = [r.info.run_id for r in runs if r.info.status in ("RUNNING", "SCHEDULED")]
    home = daemon.home()
    seen = {
        "says": outcome if isinstance(outcome, str) else None,
        "tasks": [task.run_id for task in store.tasks([State.QUEUED])],
        "open_runs": open_runs,
        "directories": [path.name for path in home.glob("runs/*")],
        "records": [path.name for path in home.glob("submissions/*")],
    }
    for run_id in seen["tasks"]:
        store.end_queued(run_id, Ending(State.KILLED, "test", ""), 0.0)
    store.close()
    for run_id in open_runs:
        mlflow.MlflowClient().set_terminated(run_id, "KILLED")
    subprocess.run(["rm", "-rf", home / "runs"], check=True)
    return seen


def submit_apart():
    """Submit in a process of its own, which leaves no file open here."""
    child = os.fork()
    if child == 0:
        submit()
        os._exit(0)
    os.waitpid(child, 0)


def main(disk, smallest, largest, *options):
    daemon.AgentFiles.start = lambda self: None
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", disk]
    subprocess.run(mount, check=True)
    submit_apart()
    if "ro" in options:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        print(json.dumps({"says": submit()}))
        return
    look(None)
    if "anew" in options:
        subprocess.run(f"rm -rf {disk}/*", shell=True, check=True)
    for room in range(int(smallest), int(largest), 8):
        filler = fill(Path(disk), room)
        outcome = submit()
        filler.unlink()
        print(json.dumps(look(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
