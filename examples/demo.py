"""A novice's training as ever, and with a scheduler that tunes it and survives a kill.

It is trained three times: by MLflow's own backend, and by ours under simple rules and under the
learned policy.

Everything that it makes is in ``.demo`` in the repository's root, and is made anew each time.
What it shows comes from the store and from MLflow, as `rlsched show` and the MLflow UI show it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlflow_rlsched import processes
from mlflow_rlsched.filelock import FileLock
from mlflow_rlsched.overview.decisions import change, changed

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
KEPT = ("RLSCHED_LOCK_DIR", "RLSCHED_CPU_SLOTS")
"""Variables about the host: its devices are shared with whatever else runs on it."""

KILL_AFTER = 0.7
DECISIONS_SHOWN = 12
EPOCH = re.compile(r"epoch (\d+): val_loss ([\d.]+), val_accuracy ([\d.]+)")
LINES_OF_A_FAILURE = 15
END_WITHIN_S = 60.0

console = Console(width=min(100, Console().width), highlight=False, record=True)


@dataclass(frozen=True)
class Size:
    """How much is trained, chosen for a minute on one core (a GPU is bound by launches)."""

    epochs: int
    width: int
    lr: str

    @property
    def parameters(self) -> list[str]:
        """A novice's: a tiny batch, and a learning rate that is far too small."""
        values = {"batch_size": 8, "lr": self.lr, "epochs": self.epochs, "width": self.width}
        return [word for name, value in values.items() for word in ("-P", f"{name}={value}")]


FULL = Size(epochs=45, width=64, lr="1e-5")
ON_A_GPU = Size(epochs=300, width=64, lr="1e-5")
QUICK = Size(epochs=32, width=16, lr="1e-4")
RUNS = {
    "fixed": ["local", "--env-manager", "local"],
    "rules": ["rlsched", "--backend-config", '{"policy": "rules"}'],
    "ddpg": ["rlsched", "--backend-config", '{"policy": "ddpg", "retry_delays_s": [1]}'],
}
"""Who decides on the training, and with what options of ``mlflow run --backend``."""

KILLED = "ddpg"


class Demo:
    """One training and what became of it.

    Args:
        folder: Where everything is put.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.log = folder / "run.log"
        self.uri = f"sqlite:///{folder}/mlflow.db"
        others = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT or not name.startswith(("RLSCHED_", "MLFLOW_"))
        }
        ours = {
            "RLSCHED_HOME": str(self.home),
            "MLFLOW_TRACKING_URI": self.uri,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
        }
        self.env = {**others, **ours}
        self.epochs_at_the_kill = 0
        self.earlier: set[Path] = set()

    def rlsched(self, *args: str) -> str:
        """Output of an ``rlsched`` command."""
        command = [str(BIN / "rlsched"), *args]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise click.ClickException(f"`rlsched {' '.join(args)}`: {done.stderr.strip()}")
        return done.stdout

    def client(self) -> Any:
        """An ``MlflowClient``; loaded late, since that takes seconds."""
        from mlflow import MlflowClient

        return MlflowClient(self.uri)

    def clean(self) -> None:
        """Start from nothing: end what an earlier demo left behind, and remove it."""
        self.end_all()
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def end_all(self) -> None:
        """Leave no process alive: no training, no agent."""
        deadline = time.monotonic() + END_WITHIN_S
        processes.end(
            lambda: processes.with_environment("RLSCHED_HOME", str(self.home)),
            patient=lambda: time.monotonic() < deadline,
        )

    @property
    def dashboard(self) -> list[str]:
        """The command that opens the dashboard on what was trained."""
        store = f"sqlite:///{self.home}/rlsched.db"
        return [str(BIN / "rlsched"), "dashboard", "--store", store, "--tracking-uri", self.uri]

    def devices(self) -> list[dict[str, Any]]:
        """The host's devices."""
        rows: list[dict[str, Any]] = json.loads(self.rlsched("devices", "--json"))["devices"]
        return rows

    def train(self, name: str, size: Size) -> Any:
        """Run the project to its end, and return the MLflow run; one is killed on the way."""
        backend, *options = RUNS[name]
        command = ["mlflow", "run", "projects/digits", "--backend", backend, *options]
        shown = escape(shlex.join([*command, *size.parameters]))
        console.print(f"[bold]$ {shown}[/]\n")
        self.earlier = set((self.home / "runs").glob("*"))
        process = subprocess.Popen(
            [
                *(str(BIN / "mlflow"), "run", str(ROOT / "projects" / "digits")),
                *("--backend", backend, *options),
                *(*size.parameters, "--run-name", name),
            ],
            # One CPU slot is one thread: the same for both.
            env={**self.env, "OMP_NUM_THREADS": "1"},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # an interrupt is passed on by us
        )
        try:
            self._follow(process, size.epochs, kill=name == KILLED)
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()
            raise
        if process.wait() != 0:
            last = self.log.read_text().splitlines()[-LINES_OF_A_FAILURE:]
            raise click.ClickException("\n".join(["the run failed:", *last]))
        (run,) = self.client().search_runs(["0"], f"attributes.run_name = '{name}'")
        return run

    def _follow(self, process: subprocess.Popen[str], epochs: int, kill: bool) -> None:
        """Show how far the training is, and kill it once."""
        assert process.stdout is not None
        columns = (TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress, open(self.log, "w") as log:
            bar = progress.add_task("starting", total=epochs)
            for line in process.stdout:
                log.write(line)
                log.flush()
                match = EPOCH.match(line)
                if match is None:
                    continue
                epoch, _, accuracy = match.groups()
                text = f"epoch {epoch} of {epochs}, accuracy {accuracy}"
                progress.update(bar, completed=int(epoch), description=text)
                if kill and not self.epochs_at_the_kill and int(epoch) > KILL_AFTER * epochs:
                    pids = self._kill()
                    if pids:
                        self.epochs_at_the_kill = int(epoch)
                        what = f"[bold red]kill -9 {' '.join(map(str, pids))}[/]"
                        progress.print(f"  {what}  [dim]# the training, after epoch {epoch}[/]")
                        progress.update(bar, description="killed")
        console.print()

    def _kill(self) -> list[int]:
        """kill -9 the training if it has a checkpoint; its processes."""
        (run_dir,) = set((self.home / "runs").iterdir()) - self.earlier
        if not list(run_dir.glob("checkpoints/*/manifest.json")):
            return []
        attempt = str(run_dir / "attempts" / "1")
        pids = processes.with_environment("RLSCHED_ATTEMPT_DIR", attempt)
        processes.send(pids, signal.SIGKILL)
        return pids

    def tell(self, runs: dict[str, Any], epochs: int) -> None:
        """The story of all runs; an error when it is not the one that it should be."""
        ours = runs[KILLED]
        story = json.loads(self.rlsched("show", ours.info.run_id, "--json"))
        trained = [point.step for point in self.history(ours)]
        system = sorted(name for name in ours.data.metrics if name.startswith("system/"))
        if (
            not self.epochs_at_the_kill
            or ours.info.status != "FINISHED"
            or [attempt["reason"] for attempt in story["attempts"]] != ["killed", "finished"]
            or trained != list(range(1, epochs + 1))
            or not system
        ):
            raise click.ClickException(f"this is not how it should have ended: see {self.folder}")
        console.print(_attempts(story["attempts"]))
        twice = sum(1 for line in self.log.read_text().splitlines() if EPOCH.match(line)) - epochs
        kept = self.epochs_at_the_kill - max(0, twice)
        console.print(
            f"  {kept} of the {self.epochs_at_the_kill} epochs before the kill were kept; MLflow "
            f"has each of the {epochs} epochs once,\n  and {len(system)} system metrics\n"
        )
        changes = [r for r in story["decisions"] if changed(r)]
        console.print(_decisions(changes))
        console.print(self._comparison(runs))
        ui, _, page = str(story["mlflow"]).partition(", then ")
        home = f"RLSCHED_HOME={shlex.quote(str(self.home))} {BIN}/rlsched"
        lines = (
            f"{BIN}/{ui}",
            f"  {page}",
            f"{home} show {ours.info.run_id[:8]}",
            f"{home} explain {ours.info.run_id[:8]}",
            shlex.join(self.dashboard),
        )
        click.echo("Look at it")  # paths of this machine are no part of the picture
        for line in lines:
            click.echo(f"  {line}")

    def history(self, run: Any) -> list[Any]:
        """Validation accuracy after each epoch of a run, in order."""
        points = self.client().get_metric_history(run.info.run_id, "val_accuracy")
        return sorted(points, key=lambda point: point.step)

    def _comparison(self, runs: dict[str, Any]) -> Table:
        target = max(point.value for point in self.history(runs["fixed"]))
        headings = (
            "policy",
            "backend",
            f"time to {target:.1%}",
            "final accuracy",
            "whole run",
            "changes",
        )
        table = Table(*headings, title="The same start, three ways to decide", expand=True)
        for name, run in runs.items():
            began = run.info.start_time
            reached = [p.timestamp for p in self.history(run) if p.value >= target]
            table.add_row(
                name,
                RUNS[name][0],
                f"{(min(reached) - began) / 1000:.0f} s" if reached else "not reached",
                f"{run.data.metrics['val_accuracy']:.1%}",
                f"{(run.info.end_time - began) / 1000:.0f} s",
                str(self._changes(run)) if RUNS[name][0] == "rlsched" else "0",
            )
        return table

    def _changes(self, run: Any) -> int:
        story = json.loads(self.rlsched("show", run.info.run_id, "--json"))
        return sum(map(changed, story["decisions"]))


def _attempts(attempts: list[dict[str, Any]]) -> Table:
    table = Table("attempt", "devices", "started", "seconds", "how it ended", expand=True)
    for attempt in attempts:
        table.add_row(
            str(attempt["number"]),
            ", ".join(device["device"] for device in attempt["devices"]),
            time.strftime("%H:%M:%S", time.localtime(attempt["started_at"])),
            f"{attempt['ended_at'] - attempt['started_at']:.0f}",
            attempt["message"] or attempt["reason"],
        )
    return table


def _decisions(changes: list[dict[str, Any]]) -> Table:
    left_out = len(changes) - DECISIONS_SHOWN
    more = f" (the first {DECISIONS_SHOWN}; {left_out} more followed)" if left_out > 0 else ""
    table = Table("at", "change", "why", title=f"What was decided{more}", expand=True)
    for record in changes[:DECISIONS_SHOWN]:
        table.add_row(f"{record['elapsed_s']:.0f} s", change(record), escape(record["reason"]))
    return table


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Train a smaller network.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / ".demo",
    help="Where to put everything, instead of .demo.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save what it printed as an SVG, too.",
)
def main(quick: bool, folder: Path, picture: Path | None) -> None:
    """Run the demo."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    demo = Demo(folder.absolute())
    demo.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(demo.folder / "lock")
    if not lock.acquire():
        raise click.ClickException(f"another demo runs in {demo.folder}")
    demo.clean()
    try:
        devices = demo.devices()
        kind = "CPU slot" if devices[0]["kind"] == "cpu" else "GPU"
        console.print(f"This host has {len(devices)} {kind}{'s' * (len(devices) != 1)}.")
        size = QUICK if quick else FULL if kind == "CPU slot" else ON_A_GPU
        demo.tell({name: demo.train(name, size) for name in RUNS}, size.epochs)
        if picture is not None:
            console.save_svg(str(picture), title="make demo")
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        demo.end_all()


if __name__ == "__main__":
    main()
