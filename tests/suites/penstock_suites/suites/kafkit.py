"""kafkit-client's integration tests: a Rust client of consumer groups of KIP-848, share groups and transactions v2."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock_suites.brokers import Layout
from penstock_suites.lists import FAILED, PASSED, SKIPPED, Outcome
from penstock_suites.security import SCRAM_256, SCRAM_512, Security
from penstock_suites.sources import BUILD_LIMIT_S, CargoCrate, call
from penstock_suites.suite import Run, logged, nothing_else

LIMIT_S = 900
FILES = (
    "admin_integration",
    "api_integration",
    "consumer_integration",
    "edge_cases_integration",
    "producer_integration",
    "sasl_integration",
    "share_integration",
    "transaction_integration",
)
"""The test programs that need a broker, without those that start Kafka in a container."""
USER, PASSWORD = "integration", "integration-secret"
RESULTS = {"ok": PASSED, "FAILED": FAILED, "ignored": SKIPPED}
_PROGRAM = re.compile(r"Running tests/(\w+)\.rs")
_RESULT = re.compile(r"test (\w+) \.\.\. (ok|FAILED|ignored)")
_DETAIL = re.compile(r"---- (\w+) stdout ----")
SHOWN_LINES = 40


class Kafkit:
    """kafkit-client's integration tests."""

    name = "kafkit"
    source = CargoCrate("kafkit-client", "0.1.9", "85afe7217c7ec109b8ed0c89102c88ea45a7882e8e8a390fa6bbd0f444891aa4")
    around = staticmethod(nothing_else)

    def layout(self, brokers: int | None) -> Layout:
        security = Security(
            {"SASL": "SASL_PLAINTEXT"},
            plain={USER: PASSWORD},
            scram=[(SCRAM_256, USER, PASSWORD), (SCRAM_512, USER, PASSWORD)],
        )
        settings = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0"}
        return Layout(brokers=brokers or 1, settings=settings, security=security)

    def build(self) -> Path:
        sources = self.source.fetch()
        call(["cargo", "test", "--locked", "--no-run", *programs()], cwd=sources, limit_s=BUILD_LIMIT_S)
        return sources

    def run(self, run: Run) -> Mapping[str, Outcome]:
        # The client takes one address to start with.
        broker, secured = run.cluster.bootstrap.partition(",")[0], f"127.0.0.1:{run.cluster.port('SASL')}"
        variables = dict.fromkeys(("TEST_KAFKA_BROKER", "TEST_KAFKA_ACL_BROKER"), broker)
        secured_tests = ("TEST_KAFKA_SASL_BROKER", "TEST_KAFKA_SCRAM_BROKER", "TEST_KAFKA_SCRAM_SHA_512_BROKER")
        variables |= dict.fromkeys(secured_tests, secured)
        command = ["cargo", "test", "--locked", "--no-fail-fast", *programs(), "--", "--test-threads=3"]
        skipped = [word for test in run.left_out for word in ("--skip", test.rpartition("/")[2])]
        chosen = ["--exact", *(test.rpartition("/")[2] for test in run.only)] if run.only else []
        printed = logged([*command, *skipped, *chosen], run, LIMIT_S, run.sources, **variables)
        return outcomes(printed.splitlines())


def programs() -> list[str]:
    """Return cargo's options that select the test programs."""
    return [word for name in FILES for word in ("--test", name)]


def outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return outcomes by `program/test`, from the output of `cargo test`."""
    results: dict[str, str] = {}
    details: dict[str, list[str]] = defaultdict(list)
    program, shown = "", ""
    for line in lines:
        if found := _PROGRAM.search(line):
            program, shown = found[1], ""
        elif found := _RESULT.match(line):
            results[f"{program}/{found[1]}"] = RESULTS[found[2]]
        elif found := _DETAIL.match(line):
            shown = f"{program}/{found[1]}"
        elif line == "failures:":
            shown = ""
        elif shown:
            details[shown].append(line)
    return {test: Outcome(result, "\n".join(details[test][:SHOWN_LINES])) for test, result in results.items()}
