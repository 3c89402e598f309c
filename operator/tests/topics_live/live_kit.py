"""The operator as a process with a broker, and kubectl, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.kubectl_kit import Kubectl

OPERATOR = Path(sys.executable).with_name("penstock-operator")


@dataclass
class Live:
    kubectl: Kubectl
    namespace: str
    bootstrap: str
    home: Path
    operator: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the operator."""
        environment = {
            **os.environ,
            "WATCH_NAMESPACES": self.namespace,
            "POD_NAMESPACE": self.namespace,
            "HEALTH_PORT": "0",
            "PENSTOCK_BOOTSTRAP_OVERRIDE": self.bootstrap,
        }
        with (self.home / "operator.log").open("ab") as log:
            self.operator = subprocess.Popen([str(OPERATOR), "run"], env=environment, stdout=log, stderr=log)

    def stop(self) -> None:
        if self.operator is not None:
            self.operator.terminate()
            self.operator.wait(timeout=30)
            self.operator = None

    def apply(self, *names: str, **spec: Any) -> None:
        self.kubectl.apply({"apiVersion": "v1", "kind": "List", "items": [topic(name, **spec) for name in names]})

    def ready(self, *names: str, within_s: int = 50) -> None:
        self.kubectl.must(
            "wait", "--for=condition=Ready", f"--timeout={within_s}s", *(f"topic.penstock.io/{name}" for name in names)
        )


def topic(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "c"}, **spec},
    }
