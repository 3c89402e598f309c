"""librdkafka's own suite in its quick mode, on three brokers. An npm package bundles the sources."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock_suites.brokers import Layout
from penstock_suites.lists import FAILED, PASSED, SKIPPED, Outcome
from penstock_suites.sources import BUILD_LIMIT_S, NpmTarball, call, prepared
from penstock_suites.suite import Run, logged, nothing_else

LIMIT_S = 2400
VERSION = "2.14.2"
# `configure` requires its module "log", which may be empty; npm excludes files with names that end in .log.
MISSING_MODULE = Path("mklove") / "modules" / "configure.log"
WITHOUT = ("sasl", "gssapi", "curl", "zstd")
"""Parts of librdkafka whose libraries the selected tests do not need."""
LOCAL = "-L"
"""Option that excludes the tests that need no broker."""
QUICK, WITHOUT_SLOW_SOCKETS = "-Q", "-E"
STATES = {"PASSED": PASSED, "SKIPPED": SKIPPED, "NOT STARTED": SKIPPED}
SHOWN_LINES = 60
ADMIN, ADMIN_PART = "0081_admin", "0081_admin/"
ADMIN_PARTS = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DescribeConfigs",
    "DeleteRecords",
    "ListConsumerGroups",
    "DescribeConsumerGroups",
    "DescribeTopics",
    "DescribeCluster",
    "DeleteGroups",
    "DeleteConsumerGroupOffsets",
    "ListOffsets",
    "AlterConsumerGroupOffsets",
    "ListConsumerGroupOffsets",
)
"""Parts of the admin client's test that need no security; the whole test ends at the first part that does."""
KAFKA_TOPICS = Path(__file__).parents[1] / "kafka_topics.py"


class Librdkafka:
    """librdkafka's suite."""

    name = "librdkafka"
    source = NpmTarball(
        "@confluentinc/kafka-javascript",
        "1.9.1",
        "c7d484bb4424a2a5682a02702bf2882db659f91c28cb29008a400eb96b192586",
        f"librdkafka {VERSION}",
    )
    around = staticmethod(nothing_else)

    def layout(self, brokers: int | None) -> Layout:
        settings = {"auto.create.topics.enable": "true", "num.partitions": "4", "default.replication.factor": "3"}
        return Layout(brokers or 3, settings=settings)

    def build(self) -> Path:
        bundled = self.source.fetch() / "deps" / "librdkafka"
        with prepared(f"librdkafka-{VERSION}") as (home, complete):
            sources = home / "sources"
            if not complete:
                shutil.rmtree(sources, ignore_errors=True)
                shutil.copytree(bundled, sources)
                (sources / MISSING_MODULE).touch()
                call(["./configure", *(f"--disable-{part}" for part in WITHOUT)], cwd=sources, limit_s=BUILD_LIMIT_S)
                jobs = f"-j{os.cpu_count() or 1}"
                call(["make", jobs, "libs"], cwd=sources, limit_s=BUILD_LIMIT_S)
                call(["make", jobs, "-C", "tests", "test-runner"], cwd=sources, limit_s=BUILD_LIMIT_S)
        return sources

    def run(self, run: Run) -> Mapping[str, Outcome]:
        whole = [test for test in run.only if not test.startswith(ADMIN_PART)]
        parts = [test.removeprefix(ADMIN_PART) for test in run.only if test.startswith(ADMIN_PART)]
        found: dict[str, Outcome] = {}
        if whole or not run.only:
            found |= self._run(run, whole, TESTS_SKIP=",".join(run.left_out))
        for part in parts if run.only else ADMIN_PARTS:
            outcome = self._run(run, [ADMIN], SUBTESTS=f"do_test_{part}").get(ADMIN, Outcome(FAILED, "no report"))
            found[f"{ADMIN_PART}{part}"] = outcome
        return found

    def _run(self, run: Run, tests: Sequence[str], **more: str) -> dict[str, Outcome]:
        """Run the test program with these tests, or all if empty."""
        report, settings = run.work / "report.json", run.work / "test.conf"
        report.unlink(missing_ok=True)
        settings.write_text(f"bootstrap.servers={run.cluster.bootstrap}\ntest.topic.random=true\n")
        topics = run.work / "kafka" / "bin" / "kafka-topics.sh"
        topics.parent.mkdir(parents=True, exist_ok=True)
        topics.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{KAFKA_TOPICS}" "$@"\n')
        topics.chmod(0o755)
        variables = {
            "KAFKA_PATH": str(run.work / "kafka"),
            "BROKERS": run.cluster.bootstrap,
            "TEST_REPORT": str(report),
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": "4.3.1",
            "LD_LIBRARY_PATH": f"{run.sources / 'src'}:{run.sources / 'src-cpp'}",
            "TESTS": ",".join(tests),
            **more,
        }
        command = ["./test-runner", "-p2", QUICK, WITHOUT_SLOW_SOCKETS, LOCAL]
        set_variables = {name: value for name, value in variables.items() if value}
        printed = logged(command, run, LIMIT_S, run.sources / "tests", **set_variables)
        return outcomes(json.loads(report.read_text()), printed) if report.exists() else {}


def outcomes(report: dict[str, dict[str, dict[str, str]]], printed: str) -> dict[str, Outcome]:
    """Return outcomes by test, from the runner's report; the details are the lines that name the test."""
    lines, found = printed.splitlines(), {}
    for test, entry in report["tests"].items():
        if test != "<MAIN>":
            result = STATES.get(entry["state"], FAILED)
            named = [line for line in lines if f"[{test}" in line] if result == FAILED else []
            found[test] = Outcome(result, "\n".join(named[-SHOWN_LINES:]))
    return found
