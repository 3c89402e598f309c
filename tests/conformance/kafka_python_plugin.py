"""Loaded by pytest inside kafka-python's suite: writes each test's outcome, bounds the time of excepted ones, and has
consumers ask for metadata again soon.

Environment: KAFKA_PYTHON_OUTCOMES names the file to write, JSON lines of `{"test", "outcome", "detail"}`;
KAFKA_PYTHON_EXCEPTED holds the excepted tests, one a line, which get less time, since some of them fail by waiting;
KAFKA_PYTHON_LEFT_OUT those that are not run.
"""

from __future__ import annotations

import json
import os

import pytest
from kafka import KafkaConsumer

# The client forgets that it wants a topic's metadata when the answer to an older request comes in after it subscribed
# (a TODO in its `ClusterMetadata.set_topics`), as happens on a busy machine. It would ask again only after 5 minutes.
KafkaConsumer.DEFAULT_CONFIG["metadata_max_age_ms"] = 3000

EXCEPTED_TIMEOUT_S = 15


def tell(test: str, outcome: str, detail: str = "") -> None:
    with open(os.environ["KAFKA_PYTHON_OUTCOMES"], "a") as outcomes:
        outcomes.write(json.dumps({"test": test, "outcome": outcome, "detail": detail}) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    excepted = set(os.environ["KAFKA_PYTHON_EXCEPTED"].splitlines())
    left_out = set(os.environ["KAFKA_PYTHON_LEFT_OUT"].splitlines())
    for item in items:
        if item.nodeid in excepted:
            item.add_marker(pytest.mark.timeout(EXCEPTED_TIMEOUT_S))
        if item.nodeid in left_out:
            tell(item.nodeid, "left out")
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test has passed when its call has; other outcomes of its phases are reported."""
    if report.passed and report.when != "call":
        return
    tell(report.nodeid, report.outcome, "" if report.passed else str(report.longrepr)[-3000:])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported must not look like a suite that has no tests."""
    if report.failed:
        tell(report.nodeid, "failed", str(report.longrepr)[-3000:])
