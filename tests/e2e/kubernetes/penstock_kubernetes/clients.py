"""Third-party clients, run in the cluster's network by `E2E_EXEC_IN` or else in a pod of the client image."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock_kubernetes.kubectl import Kubectl, run

SCRIPTS = Path(__file__).resolve().parents[1] / "client"
POD = "e2e-client"
FIRST_ACK_TIMEOUT_S = 120


class Clients:
    """Runner of programs that connect to brokers."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._exec_in = os.environ.get("E2E_EXEC_IN", "")

    def set_up(self) -> None:
        """Create the client pod unless `E2E_EXEC_IN` is set."""
        if self._exec_in:
            return
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {"name": "client", "image": os.environ["E2E_CLIENT_IMAGE"], "securityContext": security}
        profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"securityContext": profile, "terminationGracePeriodSeconds": 1, "containers": [container]}
        self._kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec})
        self._kubectl.wait("pod", POD)

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs `command` in the cluster's network. "python" has the client libraries;
        scripts of the folder `client` are named without it."""
        if not self._exec_in:
            in_pod = [f"/clients/{part}" if part.endswith(".py") else part for part in command]
            return ["kubectl", "--namespace", self._kubectl.namespace, "exec", "-i", POD, "--", *in_pod]
        local = [str(SCRIPTS / part) if part.endswith(".py") else part for part in command]
        programs = {"python": sys.executable, "kcat": shutil.which("kcat") or "kcat"}
        return [self._exec_in, programs.get(local[0], local[0]), *local[1:]]

    def run(self, *command: str, stdin: str = "", timeout_s: float = 240) -> str:
        return run(*self.command(*command), stdin=stdin, timeout_s=timeout_s)

    def load(self, connection: str, topic: str, rate: float = 200) -> Load:
        return Load(self, connection, topic, rate)

    def keyed_load(self, connection: str, topic: str, rate: float = 50) -> KeyedLoad:
        return KeyedLoad(self, connection, topic, rate)

    def phased_load(self, connection: str, topic: str, life_s: float = 0, rate: float = 50) -> PhasedLoad:
        return PhasedLoad(self, connection, topic, rate, life_s)


class Load:
    """A producer that runs during the `with` block, which starts at its first acknowledged message. `summary` then
    contains the acknowledgements, and `verify` compares them with what can be read. `connection`: librdkafka settings,
    as JSON."""

    def __init__(self, clients: Clients, connection: str, topic: str, rate: float) -> None:
        self._clients, self._connection, self._topic, self._rate = clients, connection, topic, rate
        self._run = secrets.token_hex(4)
        self._process: subprocess.Popen[str] | None = None
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Load:
        self._process = subprocess.Popen(
            self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None, "the output is a pipe"
        readable, _, _ = select.select([self._process.stdout], [], [], FIRST_ACK_TIMEOUT_S)
        if not readable or not self._process.stdout.readline():
            self._process.kill()
            raise AssertionError(
                f"no message was acknowledged in {FIRST_ACK_TIMEOUT_S} s: {self._process.communicate()[1]}"
            )
        return self

    def _command(self) -> list[str]:
        arguments = (self._connection, self._topic, str(self._rate), self._run)
        return self._clients.command("python", "load.py", "produce", *arguments)

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        try:
            out, err = self._process.communicate("", timeout=240)
        finally:
            self._process.kill()
        if error[0] is None:
            assert self._process.returncode == 0, err
        if out.strip():
            self.summary = json.loads(out.splitlines()[-1])
            print(f"load: {dict(self.summary, acknowledged='...')}")

    def verify(self, connection: str = "") -> None:
        """Assert that each sent message was acknowledged and that each can be read, once and in order. `connection`:
        the settings of the reader; default: those of the load."""
        assert self.summary["count"] > 0, "no message was acknowledged"
        assert not self.summary["failures"], self.summary["failures"]
        assert self.summary["unanswered"] == 0
        out = self._clients.run(
            "python", "load.py", "verify", connection or self._connection, self._topic, stdin=json.dumps(self.summary)
        )
        print(f"verified: {out.strip()}")


class KeyedLoad(Load):
    """Producers and consumers of two clients; each consumer checks what both producers have sent (`keyed.py`).
    It starts when both consumers receive."""

    def _command(self) -> list[str]:
        return self._clients.command("python", "keyed.py", self._connection, self._topic, str(self._rate))

    def verify(self, connection: str = "") -> None:
        """Assert that each acknowledged value was received once and in the order of its key by both consumers.

        kafka-python reports values as failed that it had not sent yet when their partition vanished."""
        acknowledged = self.summary["acknowledged"]
        print(f"acknowledged: {acknowledged}; failed: {self.summary['failures']}")
        assert acknowledged.keys() == {"confluent-kafka", "kafka-python"}
        assert all(acknowledged.values()), acknowledged
        assert self.summary["findings"] == {client: [] for client in acknowledged}
        assert self.summary["failures"]["confluent-kafka"] == []


class PhasedLoad(Load):
    """A producer and a consumer whose latencies are in `summary` by phase (`phases.py`). They connect and authenticate
    anew after `life_s`; 0: never."""

    def __init__(self, clients: Clients, connection: str, topic: str, rate: float, life_s: float) -> None:
        super().__init__(clients, connection, topic, rate)
        self._life_s = life_s

    def _command(self) -> list[str]:
        arguments = (self._connection, self._topic, str(self._rate), self._run, str(self._life_s))
        return self._clients.command("python", "phases.py", *arguments)

    def begin(self, phase: str) -> None:
        """Begin a phase."""
        assert self._process is not None, "the load runs"
        assert self._process.stdin is not None, "the input is a pipe"
        self._process.stdin.write(f"{phase}\n")
        self._process.stdin.flush()

    def verify(self, connection: str = "") -> None:
        """Assert also that clients reported no error, and consumed each message in order."""
        assert self.summary["errors"] == {}
        assert self.summary["disordered"] == []
        assert self.summary["consumed"] == self.summary["count"]
        super().verify(connection)
