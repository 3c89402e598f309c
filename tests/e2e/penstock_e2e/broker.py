"""The cluster under test: the one in PENSTOCK_BOOTSTRAP, or brokers started for the session.

With PENSTOCK_BOOTSTRAP=host:port the tests run against any broker that speaks the protocol. Run against Apache Kafka,
they verify themselves: a test that fails there expects behaviour that Kafka does not provide. Otherwise `--brokers N`
sets the number of brokers: one is embedded, several share an etcd. Used by the end-to-end tests, the conformance suites
and the Java client's scenarios.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from etcd_process import EtcdCluster
from kafka import KafkaAdminClient
from kafka.errors import KafkaError
from secrets_kit import search

from penstock_e2e.model import DEADLINE_S, eventually

SEVERAL = 3
GIVEN = os.environ.get("PENSTOCK_BOOTSTRAP")
SETTINGS = {
    "num.partitions": "4",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    # Tests write records with old timestamps.
    "log.retention.check.interval.ms": "2147483647",
}
CLUSTER_SETTINGS = {
    # An embedded broker creates requested topics automatically, a cluster only if configured.
    "auto.create.topics.enable": "true",
}
_PENSTOCK = Path(sys.executable).with_name("penstock")
_READY = re.compile(r"ready kafka=(\S+:\d+) http=\S+")


class BrokerProcess:
    """One `penstock up`, with its data and its log in a separate directory."""

    def __init__(self, home: Path, options: Sequence[str], settings: dict[str, str]) -> None:
        home.mkdir(parents=True)
        self._log = home / "broker.log"
        command = [str(_PENSTOCK), "up", "--data", str(home / "data"), "--port", "0", *options]
        command += [f"--set={name}={value}" for name, value in settings.items()]
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def wait_until_ready(self) -> str:
        """Return the broker's address. A thread reads stdout, which detects a silent broker and empties the pipe."""
        assert self._process.stdout is not None
        stdout, found, address = self._process.stdout, threading.Event(), ""

        def read() -> None:
            nonlocal address
            for line in stdout:
                if not address and (ready := _READY.search(line)):
                    address = ready[1]
                    found.set()
            found.set()

        threading.Thread(target=read, daemon=True).start()
        assert found.wait(DEADLINE_S), f"no `ready` line within {DEADLINE_S} s: {self._tail()}"
        assert address, f"the broker ended without a `ready` line: {self._tail()}"
        return address

    def ask_to_end(self) -> None:
        code = self._process.poll()
        assert code is None, f"the broker ended with {code} during the tests: {self._tail()}"
        self._process.send_signal(signal.SIGTERM)

    def wait_for_end(self) -> None:
        code = self._process.wait(DEADLINE_S)
        assert code == 0, f"the broker ended with {code} after SIGTERM: {self._tail()}"

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        search(str(self._log), self._log.read_bytes())

    def _tail(self) -> str:
        return self._log.read_text()[-4000:]


def sizes(brokers: int | None) -> tuple[int, ...]:
    """Return the cluster sizes that a suite runs against; `brokers` is the option's value."""
    return (brokers,) if brokers else (1,) if GIVEN else (1, SEVERAL)


@contextlib.contextmanager
def cluster(home: Path, brokers: int = 1) -> Iterator[str]:
    """Yield `host:port`. Brokers started here must exit with code 0 after SIGTERM."""
    if GIVEN:
        yield GIVEN
    elif brokers == 1:
        with _running([BrokerProcess(home / "broker", ["--http-port", "0"], SETTINGS)]) as (address,):
            yield address
    else:
        with _on_etcd(home, brokers) as address:
            yield address


@contextlib.contextmanager
def _on_etcd(home: Path, brokers: int) -> Iterator[str]:
    with EtcdCluster(home) as etcd:
        endpoints = [f"--etcd={endpoint}" for endpoint in etcd.endpoints]
        numbers = range(brokers)  # kafka-python's suite requires a broker 0
        options = [[*endpoints, "--id", str(number), "--http-port", "-1"] for number in numbers]
        settings = SETTINGS | CLUSTER_SETTINGS
        processes = [BrokerProcess(home / f"broker-{n}", o, settings) for n, o in zip(numbers, options, strict=True)]
        with _running(processes) as addresses:
            for address in addresses:
                eventually(f"{address} to know {brokers} brokers", lambda a=address: _known(a) == brokers)
            eventually("every group to have a coordinator", lambda: _groups_are_served(addresses[0]))
            yield addresses[0]


@contextlib.contextmanager
def _running(processes: Sequence[BrokerProcess]) -> Iterator[list[str]]:
    """Yield the addresses once all brokers are ready."""
    try:
        yield [process.wait_until_ready() for process in processes]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.wait_for_end()
    finally:
        for process in processes:
            process.clean_up()


def _groups_are_served(address: str) -> bool:
    """Whether every coordinator shard is served, by deleting enough missing groups to reach each shard."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        answers = admin.delete_groups([f"missing-{number}" for number in range(500)])
    except KafkaError:
        return False
    finally:
        admin.close()
    return set(answers.values()) == {"GroupIdNotFoundError"}


def _known(address: str) -> int:
    try:
        return len(AdminClient({"bootstrap.servers": address}).list_topics(timeout=5).brokers)
    except KafkaException:
        return 0
