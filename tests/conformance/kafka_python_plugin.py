"""A pytest plugin for kafka-python's suite: writes each test's outcome, limits the time of excepted tests, and makes
consumers refresh metadata early.

Environment: KAFKA_PYTHON_OUTCOMES names the output file, JSON lines of `{"test", "outcome", "detail"}`;
KAFKA_PYTHON_EXCEPTED lists the excepted tests, one per line, which get a shorter time limit because some of them fail
by waiting; KAFKA_PYTHON_LEFT_OUT lists the tests that are not run.
"""

from __future__ import annotations

import json
import os

import pytest
from kafka import KafkaConsumer

# The client loses its request for a topic's metadata if the answer to an older request arrives after it subscribed (a
# TODO in its `ClusterMetadata.set_topics`), as happens on a busy machine. By default it would retry only after 5
# minutes.
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
    """Report a test as passed after its call phase; report other outcomes of any phase."""
    if report.passed and report.when != "call":
        return
    tell(report.nodeid, report.outcome, "" if report.passed else str(report.longrepr)[-3000:])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a module that cannot be imported, which would otherwise look like a suite without tests."""
    if report.failed:
        tell(report.nodeid, "failed", str(report.longrepr)[-3000:])
