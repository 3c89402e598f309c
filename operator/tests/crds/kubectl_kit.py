"""kubectl wrapper and manifests for the tests of this folder."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

Object = dict[str, Any]


@dataclass(frozen=True)
class Kubectl:
    namespace: str

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        program = shutil.which("kubectl")
        assert program, "these tests need kubectl on the PATH"
        return subprocess.run(
            [program, "-n", self.namespace, *arguments], input=given, capture_output=True, text=True, timeout=60
        )

    def must(self, *arguments: str, given: str = "") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def apply(self, object_: Object) -> Object:
        stored: Object = json.loads(self.must("apply", "-o", "json", "-f", "-", given=json.dumps(object_)))
        return stored

    def refusal(self, object_: Object) -> str:
        """Return the API server's error. Fails if it accepts the object."""
        done = self.run("apply", "-f", "-", given=json.dumps(object_))
        assert done.returncode != 0, f"was not refused: {json.dumps(object_)}"
        return done.stderr


BASES: dict[str, Object] = {
    "Cluster": {"etcd": {"endpoints": ["http://etcd:2379"]}},
    "Topic": {"clusterRef": {"name": "main"}},
    "ConsumerGroup": {"clusterRef": {"name": "main"}},
    "User": {"clusterRef": {"name": "main"}},
}


def manifest(kind: str, name: str, changes: Mapping[str, Any]) -> Object:
    """Return the smallest object of its kind with `changes` by path, such as `brokers.replicas`; None removes."""
    spec = copy.deepcopy(BASES[kind])
    for path, value in changes.items():
        *outer, last = path.split(".") if not path.startswith("config/") else ["config", path.removeprefix("config/")]
        part = spec
        for step in outer:
            part = part.setdefault(step, {})
        if value is None:
            part.pop(last, None)
        else:
            part[last] = value
    return {"apiVersion": "penstock.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}
