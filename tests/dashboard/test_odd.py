"""Odd addresses, names, tags, times and records: no page fails."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Metric, Param
from plotly.utils import PlotlyJSONEncoder

from mlflow_rlsched import decision_log
from rlsched_dashboard import explorer, formats
from rlsched_dashboard.app import context_of, shown
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.comparison import AXES
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.pool import ELSEWHERE, real_pool
from rlsched_dashboard.sources.tracking import Tracking
from tests.dashboard.records import decision
from tests.world import make_tracking_database

NOW = int(time.time()) * 1000
NAN, INF = math.nan, math.inf
LONG = "a-very-long-name-" * 14

ODD: dict[str, tuple[dict[str, str], list[tuple[str, float, int]]]] = {
    '<img src=x onerror=alert(1)> %{x} & "q" \'': (
        {"mlflow.user": "<b>eve</b>"},
        [("loss", 1.0, NOW), ("loss", NAN, NOW + 1), ("rlsched/gpus", 1.0, NOW)],
    ),
    LONG: ({}, [("loss", 1.0, NOW), ("val_loss", INF, NOW)]),
    "no metric": ({}, []),
    " ": ({}, []),
    "tags": ({"rlsched.attempts": "many", "rlsched.state": "<odd>"}, [("loss", 1.0, NOW)]),
    "numbers": (
        {},
        [
            *((f"rlsched/{name}", NAN, NOW) for name in ("gpus", "queue_seconds", "batch_size")),
            ("rlsched/learning_rate", -1.0, NOW),
            ("rlsched/throughput", INF, NOW),
        ],
    ),
    "nanoseconds": ({}, [("loss", 1.0, NOW * 1_000_000), ("rlsched/gpus", 1.0, NOW * 1_000_000)]),
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, Mapping[str, str]]:
    """Runs of odd names, tags, values and times, by their names."""
    folder = tmp_path_factory.mktemp("odd")
    make_tracking_database(folder / "mlflow.db", f"file://{folder}/artifacts")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    runs = {}
    for name, (tags, points) in ODD.items():
        tags = {"rlsched.state": "finished", "mlflow.runName": name, **tags}
        run_id = client.create_run("0", start_time=NOW, tags=tags).info.run_id
        metrics = [Metric(*point, step) for step, point in enumerate(points)]
        client.log_batch(run_id, metrics, [Param("a/b c.d", "<i>1</i>")])
        client.set_terminated(run_id, "FINISHED", NOW - 1000)  # its clock was set back
        runs[name] = run_id
    return context_of(Settings(f"sqlite:///{folder}/rlsched.db", uri)), runs


def text_of(context: Context, path: str, zone: str = "UTC", **query: str) -> str:
    return json.dumps(shown(context, View(path, query, zone)), cls=PlotlyJSONEncoder)


@pytest.mark.parametrize(
    ("path", "axis"),
    [("/", ""), ("/runs", ""), ("/cluster", ""), *(("/compare", axis) for axis in AXES)],
)
def test_pages_show_odd_runs(odd: tuple[Context, Mapping[str, str]], path: str, axis: str) -> None:
    context, runs = odd
    text = text_of(context, path, runs=",".join(runs.values()), axis=axis, window="all")
    assert "This page failed" not in text
    assert "cannot be read" not in text


@pytest.mark.parametrize("name", list(ODD))
def test_the_page_of_an_odd_run(odd: tuple[Context, Mapping[str, str]], name: str) -> None:
    context, runs = odd
    for axis in ("clock", "elapsed"):
        text = text_of(context, f"/runs/{runs[name]}", axis=axis)
        assert "This page failed" not in text
        assert json.dumps(name.strip() or runs[name][:8])[1:-1] in text


SPOILT = ["x", "{}", "[1]", "[null, {}]", "[NaN, 1]", "[1, Infinity]", "[2, 1]", "[1, 1]"]
SPOILT += [f"[{'9' * 400}, 1]", '["0001-01-01", "9999-12-31"]', "[[], {}]", "[" * 100_000]


@pytest.mark.parametrize("text", SPOILT, ids=[text[:20] for text in SPOILT])
def test_a_spoilt_zoom_shows_the_whole(odd: tuple[Context, Mapping[str, str]], text: str) -> None:
    context, runs = odd
    run_id = runs[LONG]
    for path, query in (
        (f"/runs/{run_id}", {"zoom": text}),
        (f"/runs/{run_id}", {"zoom": text, "axis": "elapsed"}),
        ("/compare", {"zoom": text, "runs": f"{run_id},{runs['tags']}"}),
    ):
        assert "This page failed" not in text_of(context, path, **query)


@pytest.mark.parametrize("text", ["x", "[1]", '[["a"], {}]', "{}", '{"a": 3}', "[" * 100_000])
def test_what_is_no_json_of_ours_is_ignored(
    odd: tuple[Context, Mapping[str, str]], text: str
) -> None:
    context, _ = odd
    assert "This page failed" not in text_of(context, "/runs", filter=text, sort=text, columns=text)
    assert explorer.layout(context, context.policies.version("shipped"), text) is not None


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/runs", {"sort": '[{"colId": {}, "sort": []}, 3]'}),
        ("/runs", {"filter": '{"loss": 3}'}),
        ("/compare", {"runs": "no-such-run,,x"}),
        ("/policy", {"state": '{"batch_size": 1e300, "lr_scale": 1e999, "progress": "x"}'}),
        ("/cluster", {"window": "x", "simulation": "../../etc/passwd"}),
        ("/runs/a;b|c", {"decision": "9" * 6000}),
        ("/runs/", {}),
    ],
)
def test_an_address_that_asks_for_what_there_is_not(
    odd: tuple[Context, Mapping[str, str]], path: str, query: dict[str, str]
) -> None:
    context, _ = odd
    text = text_of(context, path, **query)
    assert "This page failed" not in text
    assert "cannot be read" not in text, "it says nothing of MLflow"


def test_a_zoom_that_is_none_does_not_reach_the_browser(
    odd: tuple[Context, Mapping[str, str]],
) -> None:
    context, runs = odd
    text = text_of(context, f"/runs/{runs[LONG]}", zoom="[null, {}]", axis="elapsed")
    assert '"id": "run-zoom"' in text
    assert "[null, {}]" not in text


def test_columns_are_those_that_runs_have(odd: tuple[Context, Mapping[str, str]]) -> None:
    context, _ = odd
    text = text_of(context, "/runs", columns=json.dumps(["metrics.x\\", "metrics.loss"] * 2))
    assert "metrics.x" not in text
    assert text.count("params.data['metrics.loss']") == 1


def test_the_command_for_a_run_that_is_gone_is_no_other_command(
    odd: tuple[Context, Mapping[str, str]],
) -> None:
    context, _ = odd
    assert "--run-id 'x;rm -rf y'" in text_of(context, "/runs/x;rm -rf y")


def test_only_versions_are_read(odd: tuple[Context, Mapping[str, str]], tmp_path: Path) -> None:
    context, _ = odd
    file = tmp_path / "mine"
    file.write_text("not for anybody")
    assert "There is no such version" in text_of(context, "/policy", version=str(file))


@pytest.mark.parametrize("zone", ["Etc/Unknown", "", "../../etc/passwd", "Europe", "Mars/Base"])
def test_a_zone_that_this_host_does_not_know_is_utc(
    odd: tuple[Context, Mapping[str, str]], zone: str
) -> None:
    context, runs = odd
    for path in ("/", "/cluster", f"/runs/{runs[LONG]}"):
        assert "This page failed" not in text_of(context, path, zone)
    assert formats.when(0.0, zone) == "1970-01-01 00:00:00"


@pytest.mark.parametrize("seconds", [1e18, -1e18, INF, NAN])
def test_times_beyond_the_calendar_are_at_its_ends(seconds: float) -> None:
    assert len(formats.zoned([seconds], "Asia/Tokyo")[0]) == 23


def test_infinities_of_the_database_are_infinities_again(
    odd: tuple[Context, Mapping[str, str]],
) -> None:
    context, runs = odd
    assert context.tracking.run(runs[LONG]).metrics["val_loss"] == INF
    assert "1.797" not in text_of(context, "/runs")


def test_a_run_that_says_no_number_of_devices_held_none(
    odd: tuple[Context, Mapping[str, str]],
) -> None:
    context, runs = odd
    pool, _ = real_pool(context, None)
    assert {hold.run_id for hold in pool.holds} == {
        runs[next(iter(ODD))],
        runs["nanoseconds"],
    }


def test_devices_elsewhere_are_none_of_this_pools(
    odd: tuple[Context, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_CPU_SLOTS", "2")
    context, _ = odd
    text = text_of(context_of(context.settings), "/cluster", window="all")
    assert ELSEWHERE in text
    figure = text[text.index('"children": "Devices", ') :]
    assert figure[: figure.index("figure-value")].count('"children": "2"') == 1
    assert '"name": "&lt;b>eve&lt;/b>"' in text, "a name is no markup"


def test_a_point_that_stands_alone_is_drawn(odd: tuple[Context, Mapping[str, str]]) -> None:
    context, runs = odd
    for path, query in ((f"/runs/{runs['tags']}", {}), ("/compare", {"runs": runs["tags"]})):
        text = text_of(context, path, **query, metrics="loss")
        assert '"mode": "lines+markers"' in text


def test_records_that_are_no_decisions_are_counted_and_left_out(tmp_path: Path) -> None:
    good = decision(number=1)
    for record in (
        good,
        {"number": 2},
        good | {"number": 3, "setting": None},
        good | {"number": 4, "state": {"loss": 1.0}},
        good | {"number": 5, "proposal": "x"},
        good | {"number": 6, "alternatives": {"fixed": {"action": 3}}},
    ):
        decision_log.append(tmp_path, record)
    with open(tmp_path / decision_log.NAME, "a") as file:
        file.write(json.dumps(good | {"number": 7, "time": NAN}) + "\n")
    decisions = Decisions(Tracking("sqlite:////nowhere.db"))
    assert [each["number"] for each in decisions.of("run", tmp_path)] == [1]
    assert decisions.spoilt("run") == 6
