"""librdkafka's own suite in its quick mode, on three brokers. An npm package bundles the sources."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_suites.brokers import Layout
from penstock_suites.lists import FAILED, PASSED, SKIPPED, Outcome
from penstock_suites.security import SCRAM_512, Security
from penstock_suites.sources import BUILD_LIMIT_S, NpmTarball, call, prepared
from penstock_suites.suite import GROUP_PROTOCOL, GroupProtocol, Run, logged, nothing_else

LIMIT_S = 2400
VERSION = "2.15.1"
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
    "CreateAcls",
    "DescribeAcls",
    "DeleteAcls",
    "UserScramCredentials",
)
"""Parts of the admin client's test; the whole test ends at the first part that fails."""
SCRIPTS = Path(__file__).parents[1]
TOOLS = {"kafka-topics.sh": "kafka_topics.py", "kafka-acls.sh": "kafka_acls.py"}
USER, PASSWORD = "testuser", "testpass"
KEY_PASSWORD = "abcdefgh"
REAUTHENTICATION_MS = 5000


@dataclass(frozen=True)
class Listener:
    """A listener with security, the client settings for it, and the tests that run on it as `NAME/TEST`."""

    name: str
    protocol: str
    settings: Mapping[str, str]
    tests: Sequence[str]


LISTENERS = (
    Listener(
        "SASL",
        "SASL_SSL",
        {"sasl.mechanism": SCRAM_512, "sasl.username": USER, "sasl.password": PASSWORD},
        ("0001_multiobj", "0012_produce_consume", "0135_sasl_credentials", "0142_reauthentication"),
    ),
    Listener(
        "SSL",
        "SSL",
        {
            "ssl.key.location": "{certificates}/client.key",
            "ssl.certificate.location": "{certificates}/client.crt",
            "ssl.key.password": KEY_PASSWORD,
        },
        ("0001_multiobj", "0012_produce_consume", "0097_ssl_verify"),
    ),
)


class Librdkafka:
    """librdkafka's suite. `protocol` is the group protocol of its consumers."""

    source = NpmTarball(
        "@confluentinc/kafka-javascript",
        "1.10.1",
        "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66",
        f"librdkafka {VERSION}",
    )
    around = staticmethod(nothing_else)

    def __init__(self, protocol: GroupProtocol = GroupProtocol.CLASSIC) -> None:
        self._protocol, self.name = protocol, f"librdkafka{protocol.suffix}"

    def layout(self, brokers: int | None) -> Layout:
        settings = {"auto.create.topics.enable": "true", "num.partitions": "4", "default.replication.factor": "3"}
        settings["connections.max.reauth.ms"] = str(REAUTHENTICATION_MS)
        security = Security({each.name: each.protocol for each in LISTENERS}, scram=[(SCRAM_512, USER, PASSWORD)])
        return Layout(brokers or 3, settings=settings, security=security)

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
        whole = [test for test in run.only if "/" not in test]
        parts = [test.removeprefix(ADMIN_PART) for test in run.only if test.startswith(ADMIN_PART)]
        found: dict[str, Outcome] = {}
        if whole or not run.only:
            found |= self._run(run, whole, TESTS_SKIP=",".join(run.left_out))
        for part in parts if run.only else ADMIN_PARTS:
            outcome = self._run(run, [ADMIN], SUBTESTS=f"do_test_{part}").get(ADMIN, Outcome(FAILED, "no report"))
            found[f"{ADMIN_PART}{part}"] = outcome
        for listener in LISTENERS:
            own = [test for test in listener.tests if not run.only or f"{listener.name}/{test}" in run.only]
            outcomes_there = self._run_on(run, listener, own) if own else {}
            missing = Outcome(FAILED, "no report")
            found |= {f"{listener.name}/{test}": outcomes_there.get(test, missing) for test in own}
        return found

    def _run_on(self, run: Run, listener: Listener, tests: Sequence[str]) -> dict[str, Outcome]:
        """Run tests on a listener with security."""
        certificates = run.cluster.certificates
        settings = {name: value.format(certificates=certificates) for name, value in listener.settings.items()}
        settings |= {"security.protocol": listener.protocol.lower(), "ssl.ca.location": str(certificates / "ca.crt")}
        address = f"127.0.0.1:{run.cluster.port(listener.name)}"
        return self._run(run, tests, settings, address, **certificate_files(certificates))

    def _run(
        self,
        run: Run,
        tests: Sequence[str],
        client_settings: Mapping[str, str] | None = None,
        bootstrap: str = "",
        **more: str,
    ) -> dict[str, Outcome]:
        """Run the test program with these tests, or all if empty."""
        report, settings = run.work / "report.json", run.work / "test.conf"
        report.unlink(missing_ok=True)
        bootstrap = bootstrap or run.cluster.bootstrap
        own = {"bootstrap.servers": bootstrap, "test.topic.random": "true", **(client_settings or {})}
        settings.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        programs = run.work / "kafka" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name, script in TOOLS.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPTS / script}" "$@"\n')
            (programs / name).chmod(0o755)
        variables = {
            "KAFKA_PATH": str(run.work / "kafka"),
            "BROKERS": bootstrap,
            "TEST_REPORT": str(report),
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": "4.3.1",
            GROUP_PROTOCOL: self._protocol.value,
            "LD_LIBRARY_PATH": f"{run.sources / 'src'}:{run.sources / 'src-cpp'}",
            "TESTS": ",".join(tests),
            **more,
        }
        command = ["./test-runner", "-p2", QUICK, WITHOUT_SLOW_SOCKETS, LOCAL]
        set_variables = {name: value for name, value in variables.items() if value}
        printed = logged(command, run, LIMIT_S, run.sources / "tests", **set_variables)
        return outcomes(json.loads(report.read_text()), printed) if report.exists() else {}


def certificate_files(certificates: Path) -> dict[str, str]:
    """Return the variables that name the client's certificate, its key and the authority in each encoding; create the
    files.
    """
    key, own, authority = (str(certificates / name) for name in ("client.key", "client.crt", "ca.crt"))
    store, own_der, key_der, authority_der = (
        str(certificates / name) for name in ("client.p12", "client.der", "client-key.der", "ca.der")
    )
    if not Path(store).exists():
        chain = ["-inkey", key, "-in", own, "-certfile", authority, "-passout", f"pass:{KEY_PASSWORD}"]
        call(["openssl", "pkcs12", "-export", "-out", store, *chain])
        call(["openssl", "x509", "-outform", "DER", "-in", own, "-out", own_der])
        call(["openssl", "x509", "-outform", "DER", "-in", authority, "-out", authority_der])
        call(["openssl", "pkey", "-outform", "DER", "-in", key, "-out", key_der])
    return {
        "SSL_password": KEY_PASSWORD,
        "SSL_pkcs": store,
        "SSL_pub_pem": own,
        "SSL_pub_der": own_der,
        "SSL_priv_pem": key,
        "SSL_priv_der": key_der,
        "SSL_all_cas_pem": authority,
        "SSL_ca_pem": authority,
        "SSL_ca_der": authority_der,
    }


def outcomes(report: dict[str, dict[str, dict[str, str]]], printed: str) -> dict[str, Outcome]:
    """Return outcomes by test, from the runner's report; the details are the lines that name the test."""
    lines, found = printed.splitlines(), {}
    for test, entry in report["tests"].items():
        if test != "<MAIN>":
            result = STATES.get(entry["state"], FAILED)
            named = [line for line in lines if f"[{test}" in line] if result == FAILED else []
            found[test] = Outcome(result, "\n".join(named[-SHOWN_LINES:]))
    return found
