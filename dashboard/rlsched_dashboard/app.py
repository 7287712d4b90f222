"""The app: the shell, the pages, and which page an address means."""

from __future__ import annotations

import logging
from typing import Any

from dash import Dash, Input, Output
from dash.development.base_component import Component

from mlflow_rlsched.store import StoreError
from rlsched_dashboard import actions, live, shell
from rlsched_dashboard.components import notice
from rlsched_dashboard.context import Context, View
from rlsched_dashboard.pages import cluster, compare, now, policy, run, runs, search
from rlsched_dashboard.settings import Settings
from rlsched_dashboard.sources.changes import Changes
from rlsched_dashboard.sources.decisions import Decisions
from rlsched_dashboard.sources.policies import Policies
from rlsched_dashboard.sources.replay import ReplayView
from rlsched_dashboard.sources.scheduler import Scheduler
from rlsched_dashboard.sources.studies import Studies
from rlsched_dashboard.sources.tracking import Tracking, TrackingError
from rlsched_dashboard.sources.usage import Meter

_logger = logging.getLogger(__name__)

PAGES = {
    "/": now,
    "/runs": runs,
    "/runs/<run_id>": run,
    "/compare": compare,
    "/policy": policy,
    "/search": search,
    "/cluster": cluster,
}
"""Page modules by path: each has ``layout(context, view)`` and ``register(app, context)``."""

_INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
  <body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""


def create_app(settings: Settings) -> Dash:
    """The dashboard as a Dash app; ``app.server`` is its WSGI application."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Dash(
        "rlsched_dashboard",
        title="rlsched",
        update_title="",
        url_base_pathname=settings.url_prefix,
        index_string=_INDEX,
        suppress_callback_exceptions=True,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        enable_mcp=False,
    )
    context = context_of(settings)
    context.tracking.read_ahead()
    app.layout = shell.layout(context)
    shell.register(app)
    actions.register(app, context)
    for page in PAGES.values():
        page.register(app, context)

    @app.callback(Output("page", "children"), Input("view", "data"), prevent_initial_call=True)
    def _show(data: dict[str, Any]) -> Component:
        path = app.strip_relative_path(data["path"]) or ""
        view = View("/" + path.strip("/"), data["query"], data["zone"])
        return shown(context, view)

    return app


def context_of(settings: Settings) -> Context:
    """What the pages read, for these settings."""
    scheduler, tracking = Scheduler(settings.store), Tracking(settings.tracking_uri)
    decisions = Decisions(tracking)
    meter, rows = Meter(scheduler, decisions), Changes("run_id")
    policies, replay = Policies(), ReplayView(scheduler)
    studies = Studies(settings.studies)
    return Context(settings, scheduler, tracking, decisions, meter, rows, policies, replay, studies)


def shown(context: Context, view: View) -> Component:
    """The page of an address, or why there is none."""
    parts = view.path.split("/")
    page = PAGES.get(view.path)
    if page is None and len(parts) == 3 and parts[1] == "runs":
        page = run
    if page is None:
        text = f"There is no page {view.path}: choose one from the navigation."
        return notice("No such page", text, kind="gone")
    try:
        return page.layout(context, view)
    except StoreError as error:
        return live.again(notice("The store cannot be read", str(error), kind="error"))
    except TrackingError as error:
        return live.again(notice("MLflow cannot be read", str(error), kind="error"))
    except Exception as error:
        _logger.exception("the page %s failed", view.path)
        text = f"{type(error).__name__}: {error}. The dashboard's own output says more."
        return notice("This page failed", text, kind="error")
