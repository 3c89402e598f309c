"""Helm releases of the chart, each in its own namespace."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, Protocol

from penstock_kubernetes.clients import Clients
from penstock_kubernetes.kubectl import CommandFailed, Kubectl, Object, eventually, run

CHART = Path(__file__).resolve().parents[4] / "charts" / "penstock"
NAME = "penstock"
CLUSTERS, TOPICS, GROUPS = "clusters.penstock.io", "topics.penstock.io", "consumergroups.penstock.io"
USERS = "users.penstock.io"
CLIENT = "e2e-client"
"""User of the third-party clients, with all rights."""
ALL_RIGHTS = [
    {"topic": "*", "operations": ["All"]},
    {"group": "*", "operations": ["All"]},
    {"transactionalId": "*", "operations": ["All"]},
    {"cluster": True, "operations": ["All"]},
]
API = "penstock.io/v1beta1"
SETTLED = {"Progressing": "False", "Rolled": "True", "Ready": "True", "Healthy": "True"}
"""Conditions of a Cluster without an operation in progress, and without a fault."""


def images() -> list[str]:
    """Return the chart values with the images under test (`E2E_*`, set by run.sh)."""
    tag = os.environ["E2E_IMAGE_TAG"]
    prefix = os.environ.get("E2E_IMAGE_PREFIX", "localhost/")
    values = [
        f"operator.image.repository={prefix}penstock-operator",
        f"operator.image.tag={tag}",
        f"broker.image.repository={prefix}penstock-broker",
        f"broker.image.tag={tag}",
    ]
    if etcd := os.environ.get("E2E_ETCD_IMAGE"):
        repository, _, etcd_tag = etcd.rpartition(":")
        values += [f"etcd.image.repository={repository}", f"etcd.image.tag={etcd_tag}"]
    return values


def small(brokers: int, etcd: int) -> list[str]:
    """Return chart values for a machine with two cores that also runs the clients."""
    return [
        f"cluster.brokers.replicas={brokers}",
        f"etcd.companion.replicas={etcd}",
        "cluster.brokers.storage.size=1Gi",
        "cluster.brokers.resources.requests.cpu=20m",
        "etcd.companion.resources.requests.cpu=20m",
        "operator.resources.requests.cpu=20m",
        # All releases share the CRDs, and test_lifecycle tests their update while other modules run.
        "crds.upgrade=false",
    ]


class Release:
    """A release, installed by `install`. `brokers` and `etcd` are numbers of pods."""

    def __init__(self, purpose: str, *, brokers: int = 1, etcd: int = 1, values: tuple[str, ...] = ()) -> None:
        self.namespace = f"e2e-{purpose}-{secrets.token_hex(2)}"
        self.kubectl = Kubectl(self.namespace)
        self.clients = Clients(self.kubectl)
        self.cluster = NAME
        self.bootstrap = f"{NAME}.{self.namespace}.svc:9093"
        self.connection = ""
        """librdkafka's settings of `CLIENT`, as JSON."""
        self.notes = ""
        self._values = [*small(brokers, etcd), *images(), *values]
        self._brokers = brokers

    def set_up(self) -> None:
        """Create the namespace, which rejects pods that violate the `restricted` profile."""
        run("kubectl", "create", "namespace", self.namespace)
        run("kubectl", "label", "namespace", self.namespace, "pod-security.kubernetes.io/enforce=restricted")
        self.clients.set_up()

    def install(self, *, wait: bool = True) -> None:
        self.notes = self.helm("upgrade", "--install", NAME, str(CHART), *self._options(), "--timeout", "5m")
        if wait:
            self.kubectl.wait(CLUSTERS, self.cluster, timeout_s=300)
            self.create_client()

    def create_client(self) -> None:
        """Apply the User of the clients, and wait until they can connect as it."""
        self.kubectl.apply(self.user(CLIENT, acls=ALL_RIGHTS))
        self.kubectl.wait(USERS, CLIENT)
        self.connection = self.connection_of(CLIENT)

    def connection_of(self, user: str) -> str:
        """Return the settings in a User's Secret as JSON, with the certificates instead of the paths of files."""
        secret = self.kubectl.get("secret", user) or {}
        text = lambda key: base64.b64decode(secret["data"][key]).decode()  # noqa: E731
        settings = dict(line.split("=", 1) for line in text("client.properties").splitlines())
        for name in ("ca", "certificate", "key"):
            if path := settings.pop(f"ssl.{name}.location", ""):
                settings[f"ssl.{name}.pem"] = text(path.rpartition("/")[2])
        return json.dumps(settings)

    def set(self, *values: str) -> None:
        """Add chart values for the next installation or upgrade."""
        self._values += values

    def upgrade(self, *values: str, chart: Path = CHART) -> None:
        self._values += values
        self.helm("upgrade", NAME, str(chart), *self._options(), "--timeout", "5m")

    def uninstall(self) -> None:
        self.helm("uninstall", NAME, "--wait", "--timeout", "3m")

    def helm(self, *arguments: str) -> str:
        return run("helm", "--namespace", self.namespace, *arguments, timeout_s=400)

    def tear_down(self) -> None:
        """Delete the namespace with everything in it, including the operator."""
        run("kubectl", "delete", "namespace", self.namespace, "--wait=false")

    def wait_until_deleted(self) -> None:
        """Wait until the namespace is deleted: no finalizer may block it. Then delete its volumes."""
        gone = lambda: not run("kubectl", "get", "namespace", self.namespace, "--ignore-not-found").strip()  # noqa: E731
        eventually(f"namespace {self.namespace} is gone", gone, 180)
        volumes = [line for line in run("kubectl", "get", "pv", "--no-headers").splitlines() if self.namespace in line]
        for line in volumes:
            run("kubectl", "delete", "pv", line.split()[0], "--ignore-not-found", "--wait=false")

    def _options(self) -> list[str]:
        options = []
        for value in self._values:
            options += ["--set", value]
        return options

    def topic(self, name: str, **spec: Any) -> Object:
        """Return a manifest with the fields of `spec`."""
        fields = {"clusterRef": {"name": self.cluster}, **spec}
        return {"apiVersion": API, "kind": "Topic", "metadata": {"name": name}, "spec": fields}

    def group(self, name: str, **spec: Any) -> Object:
        fields = {"clusterRef": {"name": self.cluster}, **spec}
        return {"apiVersion": API, "kind": "ConsumerGroup", "metadata": {"name": name}, "spec": fields}

    def user(self, name: str, **spec: Any) -> Object:
        fields = {"clusterRef": {"name": self.cluster}, **spec}
        return {"apiVersion": API, "kind": "User", "metadata": {"name": name}, "spec": fields}

    def penstock(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run the `penstock` command in the first broker's pod."""
        return self.penstock_of(0, *arguments, stdin=stdin, timeout_s=timeout_s)

    def penstock_of(self, broker: int, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        pod = f"{self.cluster}-broker-{broker}"
        return self.kubectl(
            "exec", "-i", pod, "-c", "broker", "--", "penstock", *arguments, stdin=stdin, timeout_s=timeout_s
        )

    def operator_metrics(self) -> str:
        """Return the metrics of the operator that is the leader."""
        code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8081/metrics').read().decode())"
        return self.kubectl("exec", self.leader(), "-c", "operator", "--", "python3", "-c", code)

    def operators(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.kubectl.list("pods", "app.kubernetes.io/component=operator")]

    def leader(self) -> str:
        """Return the pod of the leading operator, or ""."""
        for lease in self.kubectl.list("leases"):
            holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
            for pod in self.operators():
                if holder and holder.startswith(pod):
                    return pod
        return ""

    def brokers(self) -> dict[str, Object]:
        """Return the broker pods by name."""
        pods = self.kubectl.list("pods", f"penstock.io/cluster={self.cluster},app.kubernetes.io/component=broker")
        return {pod["metadata"]["name"]: pod for pod in pods}

    def scale(self, brokers: int, *, timeout_s: float = 300) -> None:
        """Scale by `kubectl scale`, then wait as `until_scaled` does."""
        self.kubectl("scale", f"{CLUSTERS}/{self.cluster}", f"--replicas={brokers}")
        self.until_scaled(brokers, timeout_s=timeout_s)

    def until_scaled(self, brokers: int, *, timeout_s: float = 300) -> None:
        """Wait until all brokers are ready, all other pods are deleted, and no replica move is in progress."""

        def query() -> bool:
            status = self.kubectl.status(CLUSTERS, self.cluster)
            is_settled = self.kubectl.condition(CLUSTERS, self.cluster, "Progressing").get("status") == "False"
            return is_settled and status.get("readyReplicas") == brokers == len(self.brokers())

        eventually(f"{self.cluster} has {brokers} brokers and no moves", query, timeout_s, 1)
        self.kubectl.until(CLUSTERS, self.cluster, "Ready", "True")

    def conditions(self) -> dict[str, Object]:
        """Return the Cluster's conditions by type."""
        found = self.kubectl.status(CLUSTERS, self.cluster).get("conditions") or ()
        return {condition["type"]: condition for condition in found}

    def is_settled(self) -> bool:
        found = self.conditions()
        return all(found.get(kind, {}).get("status") == status for kind, status in SETTLED.items())

    def settle(self, timeout_s: float = 300) -> None:
        """Wait until the Cluster has the conditions `SETTLED`."""
        eventually("all conditions are true", self.is_settled, timeout_s)

    def diagnostics(self) -> str:
        """Return objects, Events and logs for the report of a failure."""
        parts = []
        for title, arguments in {
            "objects": ("get", f"pods,pvc,statefulsets,{CLUSTERS},{TOPICS},{GROUPS},{USERS}", "--output", "wide"),
            "cluster": ("get", CLUSTERS, "--output", "yaml"),
            "events": ("get", "events", "--sort-by", ".lastTimestamp"),
            "operators": ("logs", "--selector", "app.kubernetes.io/component=operator", "--tail", "60", "--prefix"),
            "etcd": ("logs", "--selector", "app.kubernetes.io/component=etcd", "--tail", "15", "--prefix"),
            "brokers": ("logs", "--selector", "penstock.io/cluster", "--tail", "30", "--prefix", "--all-containers"),
            "drivers": ("logs", "--selector", "app.kubernetes.io/component=driver", "--tail", "60", "--prefix"),
            "executors": ("logs", "--selector", "spark-role=executor", "--tail", "20", "--prefix"),
        }.items():
            try:
                text = self.kubectl(*arguments)
            except (CommandFailed, OSError) as error:
                text = str(error)
            parts.append(f"----- {title}\n{text[-12_000:]}")
        return "\n".join(parts)


class Make(Protocol):
    """Create a release named after its purpose, with the options of `Release`."""

    def __call__(self, purpose: str, *, brokers: int = 1, etcd: int = 1, values: tuple[str, ...] = ()) -> Release: ...


def commands(notes: str) -> list[str]:
    """Return the commands of the chart's notes, as printed."""
    body = notes.partition("NOTES:")[2]
    return [line.strip() for line in re.findall(r"^  (\S.*)$", body, flags=re.MULTILINE)]
