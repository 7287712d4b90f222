"""A tracker with a store, an outbox and a tracking server of its own, for tests."""

from __future__ import annotations

import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mlflow_rlsched import protocol
from mlflow_rlsched.agent.outbox import Outbox
from mlflow_rlsched.agent.tracking import Tracker
from mlflow_rlsched.store import Ending, State
from tests.task_specs import make_spec
from tests.world import World

FINAL = {
    "status": "FINISHED",
    "end_time_ms": 1_700_000_999_000,
    "tags": {"a": "b"},
    "attempt": None,
}


def points(first: int, count: int = 1, key: str = "m") -> list[list[Any]]:
    """Metric points for a message; steps and values count on from ``first``."""
    return [[key, float(n), 1_700_000_000_000 + n, n] for n in range(first, first + count)]


class Desk:
    """A tracker in this process, and the runs that it tells of."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outbox = Outbox(world.root / "outbox.db")
        self.tracker = Tracker(world.store, self.outbox)

    def run(self, uri: str | None = None, experiment: str = "0", **environment: str) -> str:
        """A run that ended; in the world's tracking store unless told otherwise."""
        if uri is None:
            run_id = self.world.client.create_run(experiment).info.run_id
        else:
            run_id = uuid.uuid4().hex
        run_dir = self.world.home / "runs" / run_id
        attempt = protocol.attempt_dir(run_dir, 1)
        attempt.mkdir(parents=True)
        (attempt / "output.log").write_text("hello\n")
        uri = uri or self.world.tracking_uri
        environment["MLFLOW_TRACKING_URI"] = uri
        protocol.write_json(run_dir / "environment.json", environment)
        spec = make_spec(
            run_id,
            experiment_id=experiment,
            tracking_uri="http://127.0.0.1:9",
            run_dir=str(run_dir),
            config={"batch_size": {"param": "batch_size"}, "learning_rate": {"param": "lr"}},
        )
        self.world.store.submit(spec, 0, time.time())
        self.world.store.end_queued(run_id, Ending(State.FINISHED, "finished", ""), time.time())
        return run_id

    def run_without_artifacts(self) -> tuple[str, Path]:
        """A run whose artifacts cannot be stored until the file that is returned is gone."""
        place = self.world.root / "artifacts"
        place.write_text("a file where a folder should be")
        elsewhere = self.world.client.create_experiment("elsewhere", f"file://{place}")
        return self.run(experiment=elsewhere), place

    def history(self, run_id: str, key: str = "m") -> list[int]:
        return [p.step for p in self.world.client.get_metric_history(run_id, key)]

    def tracked(self, run_id: str) -> bool:
        return self.world.task(run_id).tracked


class Front:
    """What stands at a server's address: a proxy that answers by itself, or not at all.

    Attributes:
        reply: Status and body of all answers; None lets the client wait until the end.
        tokens: Authorization headers received.
    """

    def __init__(self, reply: tuple[int, str] | None) -> None:
        self.reply = reply
        self.tokens: list[str | None] = []
        self._end = threading.Event()
        front = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                front.tokens.append(self.headers["Authorization"])
                if front.reply is None:
                    front._end.wait(60)
                    return
                code, body = front.reply
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = do_PUT = do_PATCH = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
