"""A pytest plugin: in CI, no test is skipped that could run there."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MAY_BE_ABSENT = ("no GPU", "no docker engine", "no conda", "no root")
"""Beginnings of the reasons for which a test may be skipped in CI."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    where = report.longrepr
    reason = str(where[-1] if isinstance(where, tuple) else where).removeprefix("Skipped: ")
    if not reason.startswith(MAY_BE_ABSENT):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} must not be skipped in CI: {reason}"
