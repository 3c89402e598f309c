"""Suites of Python clients, run by pytest in separate environments: aiokafka and confluent-kafka-python."""

from __future__ import annotations

import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from penstock_suites.brokers import Cluster, Layout
from penstock_suites.lists import FAILED, PASSED, SKIPPED, Outcome
from penstock_suites.security import SCRAM_256, SCRAM_512, Security
from penstock_suites.sources import Checkout, python_environment
from penstock_suites.suite import GROUP_PROTOCOL, GroupProtocol, Run, logged, nothing_else

LIMIT_S = 2400
TEST_LIMIT_S = 180
SHOWN_CHARACTERS = 3000
COMMON_REQUIREMENTS = ("pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1", "pytest-timeout==2.4.0")
KAFKA_ACLS = Path(__file__).parents[1] / "kafka_acls.py"
AIOKAFKA_CONFTEST = Path(__file__).parent / "aiokafka_conftest.txt"
KAFKA_PYTHON_CONFTEST = Path(__file__).parent / "kafka_python_conftest.txt"
CONFLUENT_CONFTEST = Path(__file__).parent / "confluent_conftest.txt"
CONFLUENT_FOLDERS = ("admin", "consumer", "producer")
CONFLUENT_SHARE_FOLDERS = ("share_consumer", "share_consumer_sasl")


def outcomes(report: Path) -> dict[str, Outcome]:
    """Return outcomes by `module::Class::test`, from pytest's JUnit report; the worst of a test's phases counts."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        failures = [*case.iter("failure"), *case.iter("error")]
        result = FAILED if failures else SKIPPED if case.find("skipped") is not None else PASSED
        detail = "".join(f"{failure.get('message')}\n{failure.text}" for failure in failures)
        if test not in found or result == FAILED:
            found[test] = Outcome(result, detail[-SHOWN_CHARACTERS:])
    return found


def run_pytest(run: Run, python: Path, arguments: Sequence[str], **variables: str) -> dict[str, Outcome]:
    """Run tests of `run.work / "suite"` and read the report."""
    home, report = run.work / "suite", run.work / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += [f"--timeout={TEST_LIMIT_S}"]
    if run.only:
        names = {test.rpartition("::")[2].partition("[")[0] for test in run.only}
        command += ["-k", " or ".join(sorted(names))]
    logged(command, run, LIMIT_S, home, PYTHONPATH=str(home), **variables)
    return outcomes(report) if report.exists() else {}


def copy_tests(run: Run, folders: Sequence[str]) -> None:
    """Copy the tests to `run.work / "suite"`, away from the client's sources, so that the released client is tested."""
    home = run.work / "suite"
    if home.exists():
        return
    home.mkdir()
    for folder in folders:
        shutil.copytree(run.sources / folder, home / folder)
    (home / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")


class Aiokafka:
    """aiokafka's tests that need a broker; its fixtures for a broker in Docker are replaced."""

    name = "aiokafka"

    def __init__(self, given: Path | None = None) -> None:
        repository = "https://github.com/aio-libs/aiokafka"
        self.source = Checkout("aiokafka", "0.14.0", repository, given, "tests/_testutil.py")

    def around(self, cluster: Cluster, work: Path) -> AbstractContextManager[object]:
        return nothing_else(cluster, work)

    def layout(self, brokers: int | None) -> Layout:
        settings = {
            "num.partitions": "2",
            "auto.create.topics.enable": "true",
            "default.replication.factor": "1",  # tests read at once what the leader acknowledged with acks=1
            "min.insync.replicas": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        security = Security(
            {protocol: protocol for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")},
            plain={"admin": "admin", "test": "test", "test2": "test2"},
            scram=[(mechanism, "test", "test") for mechanism in (SCRAM_256, SCRAM_512)],
            super_users=["admin"],
        )
        return Layout(brokers or 1, first_id=0, settings=settings, security=security)

    def build(self) -> Path:
        self._python = python_environment(
            "aiokafka",
            [*COMMON_REQUIREMENTS, "aiokafka[snappy,lz4,zstd]==0.14.0", "docker==7.1.0", "async-timeout==5.0.1"],
        )
        return self.source.fetch()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        copy_tests(run, ["tests"])
        conftest = run.sources / "tests" / "conftest.py"
        target = run.work / "suite" / "tests" / "conftest.py"
        target.write_text(conftest.read_text() + "\n\n" + AIOKAFKA_CONFTEST.read_text())
        image = "--docker-image=none:2.13_4.3.1"
        files = sorted(f.relative_to(run.sources) for f in (run.sources / "tests").glob("test_*.py") if _uses_broker(f))
        cluster = run.cluster
        ports = {protocol: cluster.port(protocol) for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")}
        administrator = run.work / "administrator.properties"
        administrator.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=admin\n"
        )
        acls = [sys.executable, str(KAFKA_ACLS), "--bootstrap-server", f"127.0.0.1:{ports['SASL_PLAINTEXT']}"]
        variables = {
            "SUITE_BROKER": cluster.bootstrap.partition(",")[0],
            "SUITE_PORTS": json.dumps(ports),
            "SUITE_CERTIFICATES": str(cluster.certificates),
            "SUITE_ACLS": json.dumps([*acls, "--command-config", str(administrator)]),
        }
        return run_pytest(run, self._python, [*map(str, files), image], **variables)


def _uses_broker(test: Path) -> bool:
    return "KafkaIntegrationTestCase" in test.read_text()


class ConfluentKafka:
    """confluent-kafka-python's integration tests, without a schema registry.

    `protocol` is the group protocol of its consumers. Share consumers, which have none, run with the classic one.
    """

    def __init__(self, given: Path | None = None, protocol: GroupProtocol = GroupProtocol.CLASSIC) -> None:
        self._protocol, self.name = protocol, f"confluent{protocol.suffix}"
        repository = "https://github.com/confluentinc/confluent-kafka-python"
        self.source = Checkout("confluent-kafka", "2.15.0", repository, given, "tests/integration/cluster_fixture.py")

    def around(self, cluster: Cluster, work: Path) -> AbstractContextManager[object]:
        return nothing_else(cluster, work)

    def layout(self, brokers: int | None) -> Layout:
        settings = {"auto.create.topics.enable": "true"}
        if self._protocol is GroupProtocol.CLASSIC:
            # Not with the other: one of its tests lists the settings of a group that are not Kafka's defaults.
            settings |= {f"group.share.{least}record.lock.duration.ms": "1000" for least in ("", "min.")}
        security = Security({"SASL": "SASL_PLAINTEXT"}, plain={"sasl_user": "sasl_user"})
        return Layout(brokers or 1, settings=settings, security=security)

    def build(self) -> Path:
        needed = [
            "confluent-kafka[avro,json,protobuf,rules,schemaregistry]==2.15.0",
            "trivup==0.12.2",
            "setuptools<81",
            "fastavro",
            "requests",
        ]
        self._python = python_environment("confluent", [*COMMON_REQUIREMENTS, *needed])
        return self.source.fetch()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        copy_tests(run, ["tests"])
        conftest = Path("tests") / "integration" / "conftest.py"
        own = (run.sources / conftest).read_text() + CONFLUENT_CONFTEST.read_text()
        (run.work / "suite" / conftest).write_text(own)
        share = CONFLUENT_SHARE_FOLDERS if self._protocol is GroupProtocol.CLASSIC else ()
        folders = [f"tests/integration/{folder}" for folder in (*CONFLUENT_FOLDERS, *share)]
        variables = {
            "BROKERS": run.cluster.bootstrap,
            "SUITE_SASL_BROKER": f"127.0.0.1:{run.cluster.port('SASL')}",
            GROUP_PROTOCOL: self._protocol.value,
        }
        return run_pytest(run, self._python, folders, **variables)


class KafkaPython:
    """kafka-python's integration tests, also those with TLS, SASL and ACLs, which `tests/conformance` leaves out."""

    name = "kafka-python"

    def __init__(self, given: Path | None = None) -> None:
        repository = "https://github.com/dpkp/kafka-python"
        self.source = Checkout("kafka-python", "3.0.11", repository, given, "test/integration/conftest.py")

    def around(self, cluster: Cluster, work: Path) -> AbstractContextManager[object]:
        return nothing_else(cluster, work)

    def layout(self, brokers: int | None) -> Layout:
        settings = {
            "num.partitions": "4",
            "auto.create.topics.enable": "true",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "500",
        }
        security = Security(
            {protocol: protocol for protocol in ("SSL", "SASL_PLAINTEXT")},
            plain={"alice": "alice-secret"},
            scram=[(mechanism, "alice", "alice-secret") for mechanism in (SCRAM_256, SCRAM_512)],
            client_certificates="none",
        )
        return Layout(brokers or 1, first_id=0, settings=settings, security=security)

    def build(self) -> Path:
        needed = ["kafka-python[crc32c,lz4,snappy,zstd]==3.0.11", "py==1.11.0"]
        self._python = python_environment("kafka-python", [*COMMON_REQUIREMENTS, *needed])
        return self.source.fetch()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        copy_tests(run, ["test"])
        integration = Path("test") / "integration"
        own = (run.sources / integration / "conftest.py").read_text() + KAFKA_PYTHON_CONFTEST.read_text()
        (run.work / "suite" / integration / "conftest.py").write_text(own)
        ports = {protocol: run.cluster.port(protocol) for protocol in ("SSL", "SASL_PLAINTEXT")}
        ports["PLAINTEXT"] = int(run.cluster.bootstrap.partition(",")[0].rpartition(":")[2])
        variables = {
            "SUITE_PORTS": json.dumps(ports),
            "SUITE_CERTIFICATES": str(run.cluster.certificates),
            "KAFKA_VERSION": "4.3",
            "KAFKA_ROOT": str(run.work),
        }
        return run_pytest(run, self._python, [str(integration)], **variables)
