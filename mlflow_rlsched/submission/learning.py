"""The task that learns from real runs, made when a submission finds that enough has come in.

A process of its own makes it, so that no submission waits for it or fails with it: ``python -m
mlflow_rlsched.submission.learning``. What it has to say stands in the agent's log.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import socket
import sys
import time
from contextlib import closing
from importlib.util import find_spec

from mlflow_rlsched import processes
from mlflow_rlsched.config import RunConfig
from mlflow_rlsched.config.keys import Gpus
from mlflow_rlsched.daemon import AgentFiles, home, user_name
from mlflow_rlsched.devices import open_inventory
from mlflow_rlsched.registry import experiment_id
from mlflow_rlsched.sharing import is_shared
from mlflow_rlsched.store import Store, StoreError, TaskSpec, open_store
from mlflow_rlsched.submission import tracking
from mlflow_rlsched.submission.directory import (
    announced,
    prepare,
    run_directory,
    settled,
)
from mlflow_rlsched.submission.errors import reason

_logger = logging.getLogger(__name__)

FEWEST = 500
"""Transitions that can be learned from, since the last learning, that are worth another one."""

NAME = "learning from runs"
"""Name of its runs, for people."""

MODULE = "mlflow_rlsched.learning.online"

_TIMEOUT_S = 2 * 3600.0
_WAITS_S = 24 * 3600.0  # no agent lives on for it for longer


def start_if_due(store: Store, config: RunConfig, uri: str) -> None:
    """Have a learning task made, when it is time for one; whatever happens is not the caller's.

    Args:
        store: The store of the run that was just submitted.
        config: The run's configuration.
        uri: Its tracking URI, absolute.
    """
    nested = "RLSCHED_ATTEMPT_DIR" in os.environ
    if config.policy != "ddpg" or nested or find_spec("torch") is None:
        return
    if is_shared(config.store):  # anybody could have written what there would be to learn
        return
    try:
        if not store.is_time_to_learn(FEWEST):
            return
        env = {**os.environ, "MLFLOW_TRACKING_URI": uri, "RLSCHED_CFG_STORE": config.store}
        argv = [sys.executable, "-m", "mlflow_rlsched.submission.learning"]
        processes.spawn_detached(argv, env, AgentFiles(config.store).log)
    except (OSError, StoreError) as error:
        _logger.debug("no learning task: %s", error)


def make(store_url: str, uri: str) -> str | None:
    """Make the learning task, unless it is not time for it any more; returns its run.

    Raises:
        Exception: What MLflow's stores, the store and the file system raise, of any kind.
    """
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    with closing(open_store(store_url)) as store:
        if not store.is_time_to_learn(FEWEST):
            return None
        experiment = experiment_id(client)
        with announced(uri, experiment) as announcement:
            prepare(announcement.folder, uri, store_url, (), None)
            announcement.begin(store_url)
            tags = {
                "mlflow.user": user_name(),
                "mlflow.source.name": MODULE,
                "mlflow.source.type": "PROJECT",
                "mlflow.project.backend": "rlsched",
                "rlsched.submission": announcement.id,
            }
            run = client.create_run(experiment, None, tags, NAME)
            tracking.begin(client, run.info.run_id, {})
            spec = settled(run, _spec(store_url, experiment, uri), announcement)
            task = store.submit_learning(spec, time.time(), FEWEST)
            if task is None:  # another submission was quicker
                client.delete_run(run.info.run_id)
                shutil.rmtree(run_directory(run.info.run_id), ignore_errors=True)
            announcement.pending = False
    return None if task is None else task.run_id


def _spec(store_url: str, experiment_id: str, uri: str) -> TaskSpec:
    threads = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1"
    return TaskSpec(
        run_id="",
        experiment_id=experiment_id,
        tracking_uri=tracking.without_credentials(uri),
        user=user_name(),
        host=socket.gethostname(),
        run_dir="",
        project_uri=MODULE,
        work_dir=str(home()),
        entry_point="main",
        params={},
        recorded_params={},
        command=f"{threads} exec {shlex.quote(sys.executable)} -m {MODULE}",
        project_env={"ENV_MANAGER": None},
        docker=False,
        executable=sys.executable,
        device_limit=None,
        parent_run_id=None,
        parent_attempt_dir=None,
        config=_config(store_url).model_dump(mode="json"),
        label=NAME,
    )


def _config(store_url: str) -> RunConfig:
    """One CPU slot where slots are leased, else nothing."""
    inventory = open_inventory()
    try:
        slots = int(inventory.kind == "cpu")
    finally:
        inventory.close()
    return RunConfig(
        policy="fixed",
        gpus=Gpus(initial=slots),
        timeout_s=_TIMEOUT_S,
        queue_timeout_s=_WAITS_S,
        store=store_url,
    )


def main() -> int:
    """Make the task that the environment asks for; returns the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    store_url = os.environ["RLSCHED_CFG_STORE"]
    try:
        run_id = make(store_url, os.environ["MLFLOW_TRACKING_URI"])
        if run_id is not None:
            agent = AgentFiles(store_url)
            agent.start()
            agent.wake()
    except Exception as error:  # noqa: BLE001 - MLflow's stores raise all kinds
        _logger.warning("no learning task can be made: %s", reason(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
