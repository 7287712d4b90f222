"""The first run, told: a real training, killed in the middle, and how it recovers.

Everything it makes is in ``.demo`` in the repository's root and made anew each time. What it
shows comes from the store and from MLflow, as `rlsched show` and the MLflow UI show it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import mlflow
from rich.console import Console
from rich.table import Table

from mlflow_rlsched import processes

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".demo"
BIN = Path(sys.executable).parent
console = Console(width=min(100, Console().width), highlight=False)


class Demo:
    """One training and what became of it.

    Args:
        epochs: Epochs to train.
        width: Channels of the network's first layer.
    """

    def __init__(self, epochs: int, width: int) -> None:
        self.epochs = epochs
        self.width = width
        self.uri = f"sqlite:///{FOLDER}/mlflow.db"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RLSCHED_", "MLFLOW_"))},
            "RLSCHED_HOME": str(FOLDER / "home"),
            "MLFLOW_TRACKING_URI": self.uri,
        }

    def rlsched(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run an ``rlsched`` command."""
        return subprocess.run(
            [BIN / "rlsched", *args], env=self.env, capture_output=True, text=True, check=False
        )

    def show(self, run_id: str) -> dict[str, Any]:
        """What ``rlsched show`` says of a run."""
        value: dict[str, Any] = json.loads(self.rlsched("show", run_id, "--json").stdout)
        return value

    def clean(self) -> None:
        """Start from nothing."""
        if FOLDER.exists():
            self.rlsched("agent", "stop")
            shutil.rmtree(FOLDER)
        FOLDER.mkdir()

    def train(self) -> str:
        """Run the project, kill it half way, see it through; returns the run's id."""
        config = json.dumps({"retry_delays_s": [1]})
        args = ["-P", f"epochs={self.epochs}", "-P", f"width={self.width}", "--run-name", "demo"]
        command = ["mlflow", "run", str(ROOT / "projects" / "digits"), "--backend", "rlsched"]
        console.print(f"[bold]$ {' '.join([*command, *args])}[/]")
        process = subprocess.Popen(
            [BIN / "mlflow", *command[1:], *args, "--backend-config", config],
            env=self.env,
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self._follow(process)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if process.wait() != 0:
            raise click.ClickException(f"the run failed; see {FOLDER}/home")
        (run,) = mlflow.MlflowClient(self.uri).search_runs(["0"])
        return str(run.info.run_id)

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        killed = False
        for line in process.stdout:
            if "sqlite" not in line and "mlflow.store" not in line:
                console.print(f"  [dim]{line.rstrip()}[/]", markup=True)
            if not killed and line.startswith(f"epoch {self.epochs // 2}:") and self._kill():
                killed = True
        if not killed and process.wait() == 0:
            raise click.ClickException("the training was over before it could be killed")

    def _kill(self) -> bool:
        """kill -9 the training, as soon as it has a checkpoint."""
        (run_dir,) = (FOLDER / "home" / "runs").iterdir()
        deadline = time.monotonic() + 30
        while not any((run_dir / "checkpoints").iterdir()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        pids = processes.with_environment("RLSCHED_ATTEMPT_DIR", str(run_dir / "attempts" / "1"))
        processes.send(pids, signal.SIGKILL)
        console.print(
            f"\n[bold red]  kill -9 {' '.join(map(str, pids))}[/]  [dim]# the training[/]\n"
        )
        return True

    def tell(self, run_id: str) -> None:
        """The story of the run."""
        story = self.show(run_id)
        run = mlflow.MlflowClient(self.uri).get_run(run_id)
        table = Table("attempt", "devices", "seconds", "ended", title="What happened", expand=True)
        for attempt in story["attempts"]:
            table.add_row(
                str(attempt["number"]),
                ", ".join(device["device"] for device in attempt["devices"]),
                f"{attempt['ended_at'] - attempt['started_at']:.0f}",
                attempt["message"] or attempt["reason"],
            )
        console.print(table)
        client = mlflow.MlflowClient(self.uri)
        epochs = [point.step for point in client.get_metric_history(run_id, "val_accuracy")]
        system = sorted(name for name in run.data.metrics if name.startswith("system/"))
        samples = client.get_metric_history(run_id, system[0])
        again = sum(line.startswith("epoch ") for line in self._output(run_id)) - self.epochs
        times = "once" if sorted(set(epochs)) == epochs else "NOT once"
        console.print(
            f"MLflow says [bold]{run.info.status}[/]: validation accuracy "
            f"[bold]{run.data.metrics['val_accuracy']:.4f}[/] after {self.epochs} epochs.\n"
            f"Epochs trained again after the kill: [bold]{max(0, again)}[/]; "
            f"the history has each of the {len(epochs)} epochs {times}.\n"
            f"{len(system)} system metrics, {len(samples)} samples each, over both attempts."
        )
        console.print("\n[bold]Look at it[/]")
        for line in (
            f"RLSCHED_HOME={FOLDER}/home {BIN}/rlsched show {run_id[:8]}",
            f"cd {FOLDER} && {BIN}/mlflow ui --backend-store-uri {self.uri}",
            f"then open http://127.0.0.1:5000/#/experiments/0/runs/{run_id}",
        ):
            console.print(f"  {line}", soft_wrap=True)
        if sorted(set(epochs)) != list(range(1, self.epochs + 1)) or len(story["attempts"]) < 2:
            raise click.ClickException("the history is not what it should be")

    def _output(self, run_id: str) -> list[str]:
        return self.rlsched("logs", run_id).stdout.splitlines()


@click.command(help=__doc__)
@click.option("--epochs", default=100, show_default=True, help="Epochs to train.")
@click.option("--width", default=32, show_default=True, help="Channels of the first layer.")
def main(epochs: int, width: int) -> None:
    """Run the demo."""
    demo = Demo(epochs, width)
    demo.clean()
    try:
        run_id = demo.train()
        demo.tell(run_id)
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        demo.rlsched("agent", "stop")


if __name__ == "__main__":
    main()
