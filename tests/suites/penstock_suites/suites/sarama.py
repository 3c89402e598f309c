"""IBM/sarama's functional tests: five brokers in separate racks, each behind a proxy of Shopify's toxiproxy.

The tests stop and start brokers with `docker compose`; this module provides a command of that name.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import cast
from urllib.error import URLError
from urllib.request import urlopen

from penstock_e2e.model import eventually

from bench.peers.broker import free_port
from penstock_suites import gotests
from penstock_suites.brokers import Cluster, Layout
from penstock_suites.lists import Outcome
from penstock_suites.sources import BUILD_LIMIT_S, GoModule, call, prepared
from penstock_suites.suite import Run

LIMIT_S = 1500
BROKERS = 5
FIRST_PORT = 29091
"""First port of the proxies, which the suite connects to."""
TOXIPROXY = GoModule("github.com/Shopify/toxiproxy/v2", "v2.12.0", "h1:d1x++lYZg/zijXPPcv7PH0MvHMzEI5aX/YuUi/Sw+yg=")
SOCKET_VARIABLE = "PENSTOCK_SUITES_BROKERS"
_DOCKER = """#!/usr/bin/env python3
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.environ["{variable}"])
    asked.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, text = json.loads(asked.makefile().readline())
print(text)
sys.exit(code)
"""


class _BrokerCommands(ThreadingUnixStreamServer):
    """Executes the tests' `docker compose` commands."""

    daemon_threads = True

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        super().__init__(str(path), _BrokerCommand)

    def carry_out(self, arguments: list[str]) -> str:
        """Execute `compose stop|start|logs ... kafka-N`; return its output."""
        command, service = arguments[1], arguments[-1]
        broker = self.cluster.brokers[int(service.removeprefix("kafka-"))]
        if command == "stop":
            broker.stop()
        elif command == "start":
            if broker.process is None:
                broker.start()
        elif command == "logs":
            return broker.log_path.read_text(errors="replace")
        else:
            raise ValueError(f"`docker {' '.join(arguments)}` is not known here")
        return ""


class _BrokerCommand(StreamRequestHandler):
    def handle(self) -> None:
        arguments = json.loads(self.rfile.readline())
        try:
            answer = (0, cast("_BrokerCommands", self.server).carry_out(arguments))
        except Exception as error:  # any error fails the test that sent the command
            answer = (1, f"{type(error).__name__}: {error}")
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Sarama:
    """IBM/sarama's suite."""

    name = "sarama"
    source = GoModule("github.com/IBM/sarama", "v1.61.1", "h1:I59MWPHQUWqJNdRpsDUcbeCriog8SxjQaPfHNWxidEg=")

    def layout(self, brokers: int | None) -> Layout:
        del brokers
        settings = {
            "default.replication.factor": "2",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
        }
        advertised = {n: f"localhost:{FIRST_PORT - 1 + n}" for n in range(1, BROKERS + 1)}
        return Layout(BROKERS, settings=settings, advertised=advertised, racks=True)

    def build(self) -> Path:
        module = TOXIPROXY.fetch()
        with prepared(f"toxiproxy-{TOXIPROXY.version}") as (home, complete):
            self._toxiproxy = home / "toxiproxy-server"
            if not complete:
                call(["go", "build", "-o", str(self._toxiproxy), "./cmd/server"], cwd=module, limit_s=BUILD_LIMIT_S)
        return self.source.fetch()

    @contextmanager
    def around(self, cluster: Cluster, work: Path) -> Iterator[object]:
        with self._proxies(cluster, work), self._docker(cluster, work):
            yield None

    @contextmanager
    def _proxies(self, cluster: Cluster, work: Path) -> Iterator[None]:
        proxies = [
            {
                "name": f"kafka{number}",
                "listen": f"127.0.0.1:{FIRST_PORT - 1 + number}",
                "upstream": broker.address,
                "enabled": True,
            }
            for number, broker in cluster.brokers.items()
        ]
        (work / "proxies.json").write_text(json.dumps(proxies))
        self._port = free_port()
        command = [str(self._toxiproxy), "-port", str(self._port), "-config", str(work / "proxies.json")]
        with (work / "toxiproxy.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually("toxiproxy to serve all proxies", lambda: _proxies_of(self._port) == BROKERS)
            yield
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def _docker(self, cluster: Cluster, work: Path) -> Iterator[None]:
        self._bin, self._socket = work / "bin", work / "brokers.sock"
        self._bin.mkdir()
        docker = self._bin / "docker"
        docker.write_text(_DOCKER.format(variable=SOCKET_VARIABLE))
        docker.chmod(0o755)
        with _BrokerCommands(self._socket, cluster) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()

    def run(self, run: Run) -> Mapping[str, Outcome]:
        variables = {
            "TOXIPROXY_ADDR": f"http://127.0.0.1:{self._port}",
            "KAFKA_VERSION": "4.3.1",
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            SOCKET_VARIABLE: str(self._socket),
        }
        return gotests.run(run, ["."], ["-tags=functional"], LIMIT_S, **variables)


def _proxies_of(port: int) -> int:
    try:
        with urlopen(f"http://127.0.0.1:{port}/proxies", timeout=5) as answer:
            return sum(bool(proxy["enabled"]) for proxy in json.load(answer).values())
    except URLError:
        return 0
