"""The dashboard over a long history: pages, clicks, zoom, refreshes, and the memory they take."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
from playwright.sync_api import Page

from benchmarks.browser import Served, dashboard, page
from benchmarks.figures import Figure, command
from benchmarks.host import Host, host

RUNS = 1000
METRICS = (
    *("loss", "val_loss", "val_accuracy", "rlsched/loss", "rlsched/throughput", "rlsched/goodput"),
    *("system/gpu_0_utilization_percentage", "system/gpu_0_memory_usage_percentage"),
    *("system/gpu_0_power_usage_watts", "system/cpu_utilization_percentage"),
)
POINTS = 20_000
"""Of each metric of the long run."""

ONCE = tuple(
    f"rlsched/{name}"
    for name in (
        *("gpus", "batch_size", "learning_rate", "queue_seconds"),
        *("action/gpu_delta", "action/batch_scale", "action/lr_scale"),
        *("reward/throughput", "reward/cost", "reward/progress", "reward/smoothness"),
    )
)
BATCH = 1000
"""Most metrics that MLflow takes at once."""

DAY_S = 86_400
FRESH_S = 1.5
"""After this long the dashboard asks MLflow again."""

EMPTY = "document.querySelector('.notice.gone')"
GRID = "document.querySelector('#runs-grid .ag-center-cols-container .ag-row')"
NOW = "document.querySelector('#now-figures .figure')"
PLOTS = "[...document.querySelectorAll('.run-charts .js-plotly-plot')]"
CHARTS = (
    f"{PLOTS}.length && {PLOTS}.length === document.querySelectorAll('.run-charts .chart').length"
    f" && {PLOTS}.every(plot => plot.querySelector('.scatterlayer path'))"
)
PAINTED = """
  const painted = async (seen) => {
    while (!seen()) await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    await new Promise((go) => setTimeout(go));
    return performance.now();
  };
"""
ZOOM = """
  const plots = %s;
  const axis = plots[0]._fullLayout.xaxis;
  const [low, high] = axis.range.map(axis.r2l);
  const range = [0.1, 0.9].map((part) => axis.l2r(low + part * (high - low)));
  let drawn = 0;
  for (const plot of plots) plot.once("plotly_afterplot", () => drawn++);
  const began = performance.now();
  Plotly.relayout(plots[0], { "xaxis.range[0]": range[0], "xaxis.range[1]": range[1] });
  return await painted(() => drawn === plots.length) - began;
"""
REFRESH = """async (times) => {
  let open = 0, asked = 0, bytes = 0;
  const real = window.fetch;
  window.fetch = async (...args) => {
    open++; asked++;
    try {
      const reply = await real(...args);
      bytes += args[1].body.length + (await reply.clone().text()).length;
      return reply;
    } finally { open--; }
  };
  for (let i = 0; i < times; i++) {
    const before = asked;
    dash_clientside.set_props("refresh", { data: `${i} ${Math.random()}` });
    do await new Promise((go) => setTimeout(go, 5)); while (asked === before || open);
  }
  window.fetch = real;
  return bytes;
}"""


def measure(quick: bool) -> list[Figure]:
    """All figures, on one store, in one browser."""
    times, part = (3, 10) if quick else (7, 1)
    runs, points = RUNS // part, POINTS // part
    with host(slots=2) as place:
        run_id = _fill(place, runs, points)
        with dashboard(place.env, place.root) as server, page() as browser:
            look = Look(browser, server, run_id, runs, points * len(METRICS))
            figures = [*look.loads(times), *look.clicks(times), look.zoom(times)]
            figures += [*look.refreshes(place), look.growth(50, 50 if quick else 500)]
            memory = server.process.memory_info().rss / 1e6
    note = "the server, resident, after all of the above"
    return [*figures, Figure("server's memory", memory, "MB", 300.0, None, note)]


def _fill(place: Host, runs: int, points: int) -> str:
    """Runs in MLflow as ours are there; the newest goes on and has so many points of each metric.

    Returns:
        The newest.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(place.env["MLFLOW_TRACKING_URI"])
    start = round(1000 * (time.time() - DAY_S))
    pattern = _run(client, "finished", start - 60_000)
    values = [Metric(name, 0.1234567, start, 0) for name in (*METRICS, *ONCE)]
    client.log_batch(pattern, metrics=values)
    client.set_terminated(pattern, "FINISHED", start)
    _copy(client, pattern, runs - 2)
    run_id = _run(client, "running", start)
    client.log_batch(run_id, metrics=[Metric(name, 1.0, start, 0) for name in ONCE])
    for name in METRICS:
        for first in range(0, points, BATCH):
            steps = range(first, min(points, first + BATCH))
            client.log_batch(run_id, metrics=[_point(name, start, n, points) for n in steps])
    return run_id


def _point(name: str, start: int, step: int, points: int) -> Any:
    from mlflow.entities import Metric

    value = 2.0 - step / points + 0.1 * ((step * 7919) % 101) / 101
    return Metric(name, value, start + step * 1000 * DAY_S // points, step)


def _run(client: Any, state: str, start: int) -> str:
    tags = {
        "mlflow.runName": f"a run that is {state}",
        "mlflow.user": "ada",
        "mlflow.source.name": "file:///home/ada/projects#digits",
        "rlsched.state": state,
        "rlsched.policy": "ddpg",
        "rlsched.policy_version": "c4ae393c693a",
        "rlsched.tuned": "true",
        "rlsched.attempts": "1",
        "rlsched.devices": "cpu-0",
        "rlsched.exit_reason": state,
    }
    run_id = str(client.create_run("0", start_time=start, tags=tags).info.run_id)
    for name, value in {"batch_size": "8", "lr": "1e-05", "epochs": "60", "seed": "0"}.items():
        client.log_param(run_id, name, value)
    return run_id


def _copy(client: Any, run_id: str, count: int) -> None:
    """Put more runs like one into MLflow's database at once: one by one it would take minutes."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert, select

    tables = (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlLatestMetric)
    with client._tracking_client.store.ManagedSessionMaker() as session:
        for table in (each.__table__ for each in tables):
            rows = session.execute(select(table).where(table.c.run_uuid == run_id)).mappings().all()
            copies = []
            for number in range(1, count + 1):
                for row in rows:
                    copy = {**row, "run_uuid": f"{number:032x}"}
                    if "start_time" in row:
                        copy["start_time"] -= 60_000 * number
                    copies.append(copy)
            session.execute(insert(table), copies)


@dataclass(frozen=True)
class Look:
    """A browser that looks at a dashboard.

    Attributes:
        page: The browser's page.
        server: The dashboard.
        run_id: The run with the long history.
        runs: Runs that there are.
        points: Points of the long history, of all metrics.
    """

    page: Page
    server: Served
    run_id: str
    runs: int
    points: int

    def loads(self, times: int) -> list[Figure]:
        """Seconds from an address to its page being painted, beside a page that has nothing."""
        pages = {"/nothing": EMPTY, "/": NOW, "/runs": GRID, f"/runs/{self.run_id}": CHARTS}
        for path, seen in pages.items():
            self._load(path, seen)
        took = _side_by_side(
            times,
            self.server.process,
            [partial(self._load, path, seen) for path, seen in pages.items()],
        )
        empty, *others = took
        names = ("Now", f"Runs, {self.runs:,} of them", f"a run, {self.points:,} points")
        return [
            Figure(f"page {name}: ready", each.seconds, "s", 2.0, empty.seconds, each.note)
            for name, each in zip(names, others, strict=True)
        ]

    def clicks(self, times: int) -> list[Figure]:
        """Seconds from a click to the page that it leads to being painted."""
        self._load("/", NOW)
        steps = [
            ("Runs", "a.nav[href$='/runs']", GRID),
            ("a run", f"a.grid-link[href$='{self.run_id}']", CHARTS),
            ("Now", "a.nav[href$='/']", NOW),
        ]
        took = _side_by_side(
            times,
            self.server.process,
            [partial(self._click, link, seen) for _, link, seen in steps],
        )
        return [
            Figure(f"click on {name}: painted", each.seconds, "s", 0.3, None, each.note)
            for (name, _, _), each in zip(steps, took, strict=True)
        ]

    def zoom(self, times: int) -> Figure:
        """Seconds from a zoom in one chart of a run to all of them showing it."""

        def zoom() -> float:
            with self.page.expect_response(re.compile("/_dash-update-component")):
                seconds = self._timed(ZOOM % PLOTS)
            self.page.evaluate("() => new Promise(requestIdleCallback)")  # finer lines are drawn
            return seconds

        self._still()
        (took,) = _side_by_side(times, self.server.process, [zoom])
        note = f"all charts; {took.note}, finer lines included"
        return Figure("linked zoom", took.seconds, "s", 0.3, None, note)

    def refreshes(self, place: Host) -> list[Figure]:
        """Bytes of all that a refresh of a run sends and gets, without news and with one point."""
        from mlflow import MlflowClient

        client = MlflowClient(place.env["MLFLOW_TRACKING_URI"])
        self._still()
        self.page.evaluate(REFRESH, 2)
        nothing = self._moved()
        before = self._drawn()
        client.log_metric(self.run_id, "loss", 1.0, step=POINTS)
        time.sleep(FRESH_S)
        point = self._moved()
        if self._drawn() != before + 1:
            raise RuntimeError("the point that was logged was not drawn")
        note = "requests and answers, without headers"
        return [
            Figure("refresh of a run without news", nothing / 1000, "kB", 10.0, None, note),
            Figure("refresh of a run with a point", point / 1000, "kB", 10.0, None, note),
        ]

    def growth(self, first: int, more: int) -> Figure:
        """The browser's heap after many refreshes over that after some."""
        self._still()
        session = self.page.context.new_cdp_session(self.page)

        def heap() -> float:
            session.send("HeapProfiler.collectGarbage")
            return float(session.send("Runtime.getHeapUsage")["usedSize"])

        self.page.evaluate(REFRESH, first)
        before = heap()
        self.page.evaluate(REFRESH, more)
        after = heap()
        note = f"{more} refreshes after the first {first}; {after / 1e6:.1f} MB then"
        return Figure("browser's heap after refreshes", after / before, "", 1.05, None, note)

    def _load(self, path: str, seen: str) -> float:
        self.page.goto(self.server.url + path, wait_until="commit")
        return self._timed(f"return await painted(() => {seen});")

    def _click(self, link: str, seen: str) -> float:
        self.page.wait_for_selector(link)
        return self._timed(
            f"""const began = performance.now();
            document.querySelector("{link}").click();
            return await painted(() => {seen}) - began;"""
        )

    def _timed(self, script: str) -> float:
        """Seconds that a script says it took."""
        return float(self.page.evaluate(f"async () => {{ {PAINTED} {script} }}")) / 1000

    def _still(self) -> None:
        """The run's page, which refreshes only when it is told to."""
        self._load(f"/runs/{self.run_id}", CHARTS)
        self.page.get_by_role("switch", name="Live").set_checked(False)

    def _moved(self) -> int:
        """Bytes of one refresh."""
        return int(self.page.evaluate(REFRESH, 1))

    def _drawn(self) -> int:
        return int(self.page.evaluate(f"{PLOTS}[0].data[0].x.length"))


@dataclass(frozen=True)
class Took:
    """What something took: wall time, processor time of server and browser; medians, seconds."""

    seconds: float
    server_s: float
    browser_s: float
    times: int

    @property
    def note(self) -> str:
        """How it was measured."""
        return (
            f"median of {self.times}; processor time: {self.server_s:.2f} s of the server,"
            f" {self.browser_s:.2f} s of the browser"
        )


def _side_by_side(
    times: int, server: psutil.Process, actions: Sequence[Callable[[], float]]
) -> list[Took]:
    """What each action took, in turns, so that all meet the same load."""
    children = psutil.Process().children(recursive=True)
    browser = [each for each in children if each.pid != server.pid]
    took: list[list[tuple[float, ...]]] = [[] for _ in actions]
    for _ in range(times):
        for action, values in zip(actions, took, strict=True):
            before = _used([server]), _used(browser)
            seconds = action()
            after = _used([server]), _used(browser)
            values.append((seconds, after[0] - before[0], after[1] - before[1]))
    medians = [[statistics.median(each) for each in zip(*values, strict=True)] for values in took]
    return [Took(seconds, server_s, browser_s, times) for seconds, server_s, browser_s in medians]


def _used(processes: Iterable[psutil.Process]) -> float:
    """Processor time of processes so far, seconds."""
    times = [each.cpu_times() for each in processes if each.is_running()]
    return sum(each.user + each.system for each in times)


main = command(measure)

if __name__ == "__main__":
    main()
