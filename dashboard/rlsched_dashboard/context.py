"""What every page gets: the settings, the sources, and the view that its address asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.changes import Changes
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.policies import Policies
from rlsched_dashboard.sources.replay import ReplayView
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.studies import Studies
from rlsched_dashboard.sources.tracking import Tracking
from rlsched_dashboard.sources.usage import Meter


@dataclass(frozen=True)
class View:
    """What the address bar asks for.

    Attributes:
        path: Path below the prefix, ``/runs`` for example.
        query: Parameters of the address, the last of each name.
        zone: Time zone to show times in, an IANA name.
    """

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    zone: str = "UTC"


@dataclass(frozen=True)
class Context:
    """What does not change while the dashboard runs.

    Attributes:
        settings: What it was started with.
        scheduler: The store, the queue, devices.
        tracking: Runs and metric histories in MLflow.
        decisions: Decisions of runs.
        meter: What runs took and saved.
        run_rows: Rows of the page Runs, which all browsers share.
        policies: Policy versions.
        replay: What there is to learn from.
        studies: Studies of hyper-parameters.
    """

    settings: Settings
    scheduler: Scheduler
    tracking: Tracking
    decisions: Decisions
    meter: Meter
    run_rows: Changes
    policies: Policies
    replay: ReplayView
    studies: Studies

    def href(self, path: str, **query: str) -> str:
        """Address of a page of the dashboard, prefix included."""
        text = self.settings.url_prefix.rstrip("/") + quote(path)
        return f"{text}?{urlencode(query)}" if query else text

    def mlflow_href(self, experiment_id: str, run_id: str) -> str | None:
        """Address of a run in the MLflow UI, or None where there is none."""
        base = self.settings.mlflow_ui_url
        return base and f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"
