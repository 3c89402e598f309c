"""Loaded by pytest inside kafka-python's suite: writes each test's outcome, bounds the time of excepted ones.

Environment: KAFKA_PYTHON_OUTCOMES names the file to write, JSON lines of `{"test", "outcome", "detail"}`;
KAFKA_PYTHON_EXCEPTED holds the excepted tests, one a line, which get less time, since some of them fail by waiting.
"""

from __future__ import annotations

import json
import os

import pytest

EXCEPTED_TIMEOUT_S = 15


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    excepted = set(os.environ["KAFKA_PYTHON_EXCEPTED"].splitlines())
    for item in items:
        if item.nodeid in excepted:
            item.add_marker(pytest.mark.timeout(EXCEPTED_TIMEOUT_S))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test has passed when its call has; whatever else happens in any of its phases is told."""
    if report.passed and report.when != "call":
        return
    detail = "" if report.passed else str(report.longrepr)[-3000:]
    event = {"test": report.nodeid, "outcome": report.outcome, "detail": detail}
    with open(os.environ["KAFKA_PYTHON_OUTCOMES"], "a") as outcomes:
        outcomes.write(json.dumps(event) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported must not look like a suite that has no tests."""
    if report.failed:
        event = {"test": report.nodeid, "outcome": "failed", "detail": str(report.longrepr)[-3000:]}
        with open(os.environ["KAFKA_PYTHON_OUTCOMES"], "a") as outcomes:
            outcomes.write(json.dumps(event) + "\n")
