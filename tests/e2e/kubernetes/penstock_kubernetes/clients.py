"""Where clients run: in the cluster's network from here (`E2E_EXEC_IN`), or in a pod of the clients' image."""

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
BEGIN_S = 120


class Clients:
    """Runs programs that speak to brokers."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._exec_in = os.environ.get("E2E_EXEC_IN", "")

    def set_up(self) -> None:
        """Makes the pod, where one is needed."""
        if self._exec_in:
            return
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {"name": "client", "image": os.environ["E2E_CLIENT_IMAGE"], "securityContext": security}
        profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"securityContext": profile, "terminationGracePeriodSeconds": 1, "containers": [container]}
        self._kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec})
        self._kubectl.wait("pod", POD)

    def command(self, *command: str) -> list[str]:
        """How `command` is run there. "python" is one with the clients, and scripts are named without their folder."""
        if not self._exec_in:
            there = [f"/clients/{part}" if part.endswith(".py") else part for part in command]
            return ["kubectl", "--namespace", self._kubectl.namespace, "exec", "-i", POD, "--", *there]
        here = [str(SCRIPTS / part) if part.endswith(".py") else part for part in command]
        programs = {"python": sys.executable, "kcat": shutil.which("kcat") or "kcat"}
        return [self._exec_in, programs.get(here[0], here[0]), *here[1:]]

    def run(self, *command: str, stdin: str = "", timeout_s: float = 240) -> str:
        return run(*self.command(*command), stdin=stdin, timeout_s=timeout_s)

    def load(self, bootstrap: str, topic: str, rate: float = 200) -> Load:
        return Load(self, bootstrap, topic, rate)


class Load:
    """A producer that goes on while the block runs, which begins when its first message is acknowledged. Then `summary`
    has the answers, and `verify` reads it."""

    def __init__(self, clients: Clients, bootstrap: str, topic: str, rate: float) -> None:
        self._clients, self._bootstrap, self._topic, self._rate = clients, bootstrap, topic, rate
        self._run = secrets.token_hex(4)
        self._process: subprocess.Popen[str] | None = None
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Load:
        where = (self._bootstrap, self._topic, str(self._rate), self._run)
        command = self._clients.command("python", "load.py", "produce", *where)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None, "the output is a pipe"
        came, _, _ = select.select([self._process.stdout], [], [], BEGIN_S)
        if not came or not self._process.stdout.readline():
            self._process.kill()
            raise AssertionError(f"nothing was acknowledged in {BEGIN_S} s: {self._process.communicate()[1]}")
        return self

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

    def verify(self) -> None:
        """Each message that was acknowledged is there, once, and in order; each one that was sent was acknowledged."""
        assert self.summary["count"] > 0, "nothing was acknowledged: the load was none"
        assert not self.summary["failures"], self.summary["failures"]
        assert self.summary["unanswered"] == 0
        out = self._clients.run(
            "python", "load.py", "verify", self._bootstrap, self._topic, stdin=json.dumps(self.summary)
        )
        print(f"verified: {out.strip()}")
