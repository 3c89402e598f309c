"""Workers of Kafka Connect in distributed mode, and the REST interface that creates connectors."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from penstock_crash.broker import free_port
from penstock_e2e.process import wait_until

from penstock_java.applications import start

MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
START_LIMIT_S = 120.0
REQUEST_LIMIT_S = 60.0
_WORKER = """bootstrap.servers={bootstrap}
group.id={group}
config.storage.topic={group}-configs
offset.storage.topic={group}-offsets
status.storage.topic={group}-status
offset.storage.partitions=5
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
listeners=http://127.0.0.1:{port}
exactly.once.source.support=enabled
connector.client.config.override.policy=All
offset.flush.interval.ms=500
session.timeout.ms=10000
heartbeat.interval.ms=2000
scheduled.rebalance.max.delay.ms=1000
plugin.discovery=only_scan
"""


class Worker:
    """One worker; `application` is its process."""

    def __init__(self, class_path: str, bootstrap: str, group: str, home: Path) -> None:
        home.mkdir()
        self.port = free_port()
        properties = home / "worker.properties"
        properties.write_text(_WORKER.format(bootstrap=bootstrap, group=group, port=self.port))
        self.application = start(class_path, MAIN, [str(properties)], home / "worker.log")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON answer of the REST interface. Raises `urllib.error.URLError`."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=REQUEST_LIMIT_S) as answer:
            return json.loads(answer.read() or b"null")

    def wait_until_it_answers(self) -> None:
        wait_until("the worker's REST interface", self._answers, START_LIMIT_S, self.application)

    def _answers(self) -> bool:
        try:
            self.request("GET", "/connectors")
        except (urllib.error.URLError, OSError):
            return False
        return True

    def states(self, connector: str) -> list[tuple[str, str]]:
        """Return state and worker of each task of a connector; empty while the worker does not know."""
        try:
            status = self.request("GET", f"/connectors/{connector}/status")
        except (urllib.error.URLError, OSError):
            return []
        return [(task["state"], task["worker_id"]) for task in status["tasks"]]
