"""Stands for the Docker engine and its command line, where there is none.

The engine, threads of the test on a unix socket, answers what MLflow asks of it (which images
there are) and runs containers: processes that, like real ones, are no descendants of the client,
see only the variables that they are given, and live on when the client is killed. The command
hands its arguments over, and forwards SIGTERM as the real one does.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

IMAGE = "training:1"
_IMAGE = {"Id": "sha256:0", "RepoTags": [IMAGE]}
_ANSWERS: dict[str, Any] = {
    "/version": {"ApiVersion": "1.43"},
    "/v1.43/images/json": [_IMAGE],
    "/v1.43/images/sha256:0/json": _IMAGE,
    f"/v1.43/images/{IMAGE}/json": _IMAGE,
}
_FLAGS = ("--rm", "--init")  # options without a value

_COMMAND = """#!{python}
import http.client, json, os, signal, socket, sys

def ask(*argv):
    connection = http.client.HTTPConnection("docker")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(os.environ["DOCKER_HOST"].removeprefix("unix://"))
    connection.request("POST", "/", json.dumps({{"argv": argv, "cwd": os.getcwd()}}))
    return json.loads(connection.getresponse().read())

signal.signal(signal.SIGTERM, lambda *_: ask("forward", *sys.argv[2:]))
answer = ask(*sys.argv[1:])
print(answer["output"])
sys.exit(answer["code"])
"""


class Docker:
    """An engine with one image.

    Args:
        root: A new folder, with a short path: that of a socket is limited.

    Attributes:
        host: Value for ``DOCKER_HOST``.
        bin_dir: Folder of the command, for ``PATH``.
        calls: Command and container's name of all calls, in order.
        runs: Options (pairs of name and value), image and command line, by container's name.
        complaint: What ``docker info`` finds wrong, if anything.
    """

    def __init__(self, root: Path) -> None:
        self.host = f"unix://{root}/engine"
        self.bin_dir = root / "bin"
        self.calls: list[str] = []
        self.runs: dict[str, tuple[list[tuple[str, str | None]], str, list[str]]] = {}
        self.complaint: str | None = None
        self._containers: dict[str, subprocess.Popen[bytes]] = {}
        self.bin_dir.mkdir()
        command = self.bin_dir / "docker"
        command.write_text(_COMMAND.format(python=sys.executable))
        command.chmod(0o755)

    def containers(self) -> list[str]:
        """Names of the containers that run."""
        return [name for name, process in self._containers.items() if process.poll() is None]

    def end(self) -> None:
        """Kill all containers."""
        for process in self._containers.values():
            process.kill()
            process.wait()

    def call(self, argv: list[str], cwd: str) -> tuple[int, str]:
        """Exit code and output of ``docker ARGV``."""
        command, *rest = argv
        if command == "info":
            return (1, f"Client:\n Version: 1\n{self.complaint}") if self.complaint else (0, "")
        if command == "rm":
            self.calls.append(f"rm {rest[-1]}")
            return self._remove(rest[-1])
        options, image, container_argv = _parse(rest)
        name = dict(options)["--name"]
        assert name is not None
        if command == "forward":
            self._containers[name].terminate()
            return 0, ""
        self.calls.append(f"run {name}")
        self.runs[name] = options, image, container_argv
        container = subprocess.Popen(container_argv, env=_environment(options), cwd=cwd)
        self._containers[name] = container
        code = container.wait()
        return (code if code >= 0 else 128 - code), ""

    def _remove(self, name: str) -> tuple[int, str]:
        if name not in self._containers:
            return 1, f"no such container: {name}"
        self._containers[name].kill()
        self._containers[name].wait()
        return 0, name


def _parse(argv: list[str]) -> tuple[list[tuple[str, str | None]], str, list[str]]:
    options, rest = [], list(argv)
    while rest[0].startswith("-"):
        name = rest.pop(0)
        options.append((name, None if name in _FLAGS else rest.pop(0)))
    return options, rest[0], rest[1:]


def _environment(options: list[tuple[str, str | None]]) -> dict[str, str]:
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    lines: list[str] = []
    for name, value in options:
        assert value is not None or name in _FLAGS
        if name == "--env-file":
            lines += Path(str(value)).read_text().splitlines()
    lines += [str(value) for name, value in options if name == "-e"]
    for line in lines:
        key, _, text = line.partition("=")
        env[key] = text
    # A container's processes are not the user's, who could else find and kill them by this.
    env.pop("RLSCHED_ATTEMPT_DIR", None)
    return env


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    docker: Docker

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed do not wait for their answers."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        answer = _ANSWERS.get(self.path.partition("?")[0])
        self._answer(404 if answer is None else 200, answer or {"message": self.path})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code, output = self.server.docker.call(asked["argv"], asked["cwd"])
        self._answer(200, {"code": code, "output": output})

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def running() -> Iterator[Docker]:
    """An engine that answers until the end of the block."""
    root = Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp"))
    docker = Docker(root)
    server = _Server(docker.host.removeprefix("unix://"), _Handler)
    server.docker = docker
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
    try:
        yield docker
    finally:
        docker.end()
        server.shutdown()
        server.server_close()
        shutil.rmtree(root)
