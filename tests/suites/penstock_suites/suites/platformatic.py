"""@platformatic/kafka's tests that need a broker: on three brokers, on a single one, and on a single one with SASL."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock_suites.brokers import Cluster, Layout, running
from penstock_suites.lists import FAILED, Outcome
from penstock_suites.security import MODULES, PLAIN, SCRAM_256, SCRAM_512, Security
from penstock_suites.sources import Checkout, node_environment
from penstock_suites.suite import Run, logged

LIMIT_S = 3000
FILES_AT_ONCE = 4
"""Test files that run at the same time: their tests mostly wait for the client's timers."""
SHOWN_CHARACTERS = 3000
SINGLE_PORT, SASL_PORT, USERS_PORT, FIRST_PORT = 9001, 9002, 19002, 9011
PACKAGES = {
    "@node-rs/crc32": "1.10.8",
    "@platformatic/dynamic-buffer": "0.3.1",
    "@platformatic/wasm-utils": "0.2.1",
    "@watchable/unpromise": "1.0.2",
    "ajv": "8.20.0",
    "ajv-draft-04": "1.0.0",
    "avsc": "5.7.9",
    "debug": "4.4.3",
    "fast-jwt": "6.3.6",
    "fastq": "1.20.3",
    "lz4-napi": "2.10.0",
    "mnemonist": "0.40.8",
    "node": "24.21.0",
    "prom-client": "15.1.3",
    "protobufjs": "8.8.1",
    "scule": "1.3.0",
    "snappy": "7.4.3",
}
"""What the client and its tests import; Node runs TypeScript as it is since version 24."""
OTHER_SERVICES = ("sasl-gssapi.test.ts", "confluent-schema-registry.test.ts")
"""Tests that need Kerberos or a schema registry."""
KERBEROS_FIXTURE = Path("test") / "fixtures" / "kerberos-authenticator.ts"
REPORTER = Path(__file__).parent / "platformatic_reporter.mjs"
NO_KERBEROS = Path(__file__).parent / "platformatic_kerberos.txt"
_USES_BROKER = re.compile(r"kafka\w*BootstrapServers|create(Admin|Base|Consumer|Producer|Topic)\b")
COMMON_SETTINGS = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "auto.create.topics.enable": "true",
}
KEYS = (Path(__file__).parent / "platformatic_keys.json").as_uri()
TOKENS = {
    "listener.name.sasl.sasl.enabled.mechanisms": f"{PLAIN},OAUTHBEARER,{SCRAM_256},{SCRAM_512}",
    "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
    "sasl.oauthbearer.expected.issuer": "kafka",
    "sasl.oauthbearer.expected.audience": "users",
    "sasl.oauthbearer.jwks.endpoint.url": KEYS,
    "sasl.oauthbearer.allowed.urls": KEYS,
}
"""OAUTHBEARER with a key that signs nothing: the suite's tokens have no signature, which Apache Kafka accepts by
default."""


class Platformatic:
    """@platformatic/kafka's suite."""

    name = "platformatic"

    def __init__(self, given: Path | None = None) -> None:
        repository = "https://github.com/platformatic/kafka"
        self.source = Checkout("@platformatic/kafka", "2.9.0", repository, given, "test/helpers.ts")

    def layout(self, brokers: int | None) -> Layout:
        del brokers
        ports = {number: FIRST_PORT - 1 + number for number in (1, 2, 3)}
        advertised = {number: f"localhost:{port}" for number, port in ports.items()}
        security = Security(super_users=["ANONYMOUS"])
        return Layout(3, settings=COMMON_SETTINGS, ports=ports, advertised=advertised, security=security)

    @contextmanager
    def around(self, cluster: Cluster, work: Path) -> Iterator[object]:
        """Start the other two brokers."""
        advertised = f"localhost:{SINGLE_PORT}"
        single = Layout(settings=COMMON_SETTINGS, ports={1: SINGLE_PORT}, advertised={1: advertised})
        security = Security(
            {"SASL": "SASL_PLAINTEXT"},
            ports={"SASL": SASL_PORT},
            plain={"admin": "admin"},
            super_users=["admin", "ANONYMOUS"],
        )
        sasl = Layout(
            settings={**COMMON_SETTINGS, **TOKENS, "connections.max.reauth.ms": "5000"},
            ports={1: USERS_PORT},
            advertised={1: f"localhost:{USERS_PORT}"},
            security=security,
        )
        with running(single, work, kafka=cluster.kafka), running(sasl, work, kafka=cluster.kafka):
            yield None

    def build(self) -> Path:
        self._modules = node_environment("platformatic", PACKAGES)
        return self.source.fetch()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        home = run.work / "suite"
        if not home.exists():
            shutil.copytree(run.sources, home, ignore=shutil.ignore_patterns("node_modules", ".git"))
            (home / "node_modules").symlink_to(self._modules, target_is_directory=True)
            shutil.copyfile(NO_KERBEROS, home / KERBEROS_FIXTURE)
        report = run.work / "report.jsonl"
        report.unlink(missing_ok=True)
        options = [
            "--test",
            f"--test-concurrency={FILES_AT_ONCE}",
            f"--test-reporter={REPORTER}",
            f"--test-reporter-destination={report}",
        ]
        files = selected(home, run.only)
        names = [f"--test-name-pattern=^{re.escape(test.rpartition('::')[2])}$" for test in run.only]
        node = str(self._modules / "node" / "bin" / "node")
        logged([node, *options, *names, *files], run, LIMIT_S, home, KAFKA_VERSION="8.1.0")
        return outcomes(report.read_text().splitlines(), home) if report.exists() else {}


def selected(home: Path, only: Sequence[str]) -> list[str]:
    """Return the files of the tests that need a broker, or of the tests `only`."""
    files = [file for file in sorted((home / "test").rglob("*.test.ts")) if file.name not in OTHER_SERVICES]
    if only:
        chosen = {test.rpartition("::")[0] for test in only}
        files = [file for file in files if module_of(file, home) in chosen]
    return [str(file.relative_to(home)) for file in files if _USES_BROKER.search(file.read_text())]


def module_of(file: Path, home: Path) -> str:
    """Return the file's path below `test`, without its suffixes."""
    return str(file.relative_to(home / "test")).removesuffix(".test.ts")


def outcomes(lines: Iterable[str], home: Path) -> dict[str, Outcome]:
    """Return outcomes by `module::test` from the reporter's lines; the worst of the tests of one name counts.

    A file that fails as a whole is reported as a test with the file's path as its name.
    """
    found: dict[str, Outcome] = {}
    for line in lines:
        event = json.loads(line)
        if event["nesting"]:  # a subtest; its failure is its parent's
            continue
        test = f"{module_of(Path(event['file']), home)}::{' '.join(event['name'].split())}"
        if test not in found or event["result"] == FAILED:
            found[test] = Outcome(event["result"], event["detail"][-SHOWN_CHARACTERS:])
    return found
