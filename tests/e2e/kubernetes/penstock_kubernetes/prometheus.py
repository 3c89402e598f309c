"""Debian's Prometheus with the rules of the chart, scraping what the chart's ServiceMonitors select.

Debian builds it without the discovery of targets in Kubernetes. A thread writes the same targets, with the same labels,
to a file that Prometheus watches.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock_kubernetes.kubectl import CommandFailed, Kubectl, Object, eventually, run

ROOT = Path(__file__).resolve().parents[4]
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"
"""Where tools/install_prometheus.sh unpacks Debian's package."""
ADDRESS = "127.0.0.1:19090"
TARGETS = "targets.json"
DISCOVERY_INTERVAL_S = 2.0
IMMEDIATE = "Immediate"
"""Suffix of the copies of the alerts that fire at once, without their `for`."""


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`."""
    return shutil.which(name) or str(UNPACKED / name)


def render(values: Iterable[str], namespace: str, chart: Path) -> list[Object]:
    """Return the ServiceMonitors and the PrometheusRule of a release."""
    options = [option for value in values for option in ("--set", value)]
    parts = ["monitoring.serviceMonitor.enabled=true", "monitoring.prometheusRule.enabled=true"]
    options += [option for value in parts for option in ("--set", value)]
    options += [option for part in ("monitors", "rules") for option in ("-s", f"templates/monitoring/{part}.yaml")]
    # The default Kubernetes version is older in a helm that was built from source.
    command = ("helm", "template", "penstock", str(chart), "--kube-version", "1.33.0", "--namespace", namespace)
    text = run(*command, *options)
    found = [msgspec.yaml.decode(part) for part in re.split(r"^---\n", text, flags=re.MULTILINE)]
    return [body for body in found if body]


def scrape_config(monitor: Mapping[str, Any], namespace: str) -> Object:
    """Return the scrape configuration that the Prometheus operator makes of a ServiceMonitor with one endpoint."""
    spec = monitor["spec"]
    (endpoint,) = spec["endpoints"]
    meta = "__meta_kubernetes_"

    def kept(source: str, value: str) -> Object:
        return {"source_labels": [source], "action": "keep", "regex": re.escape(value).replace("\\-", "-")}

    def copied(source: str, target: str) -> Object:
        return {"source_labels": [source], "target_label": target}

    labels = spec["selector"]["matchLabels"]
    relabelings = [kept(f"{meta}service_label_{label_name(key)}", value) for key, value in labels.items()]
    relabelings += [
        kept(f"{meta}endpoint_port_name", endpoint["port"]),
        copied(f"{meta}namespace", "namespace"),
        copied(f"{meta}service_name", "service"),
        copied(f"{meta}service_name", "job"),
        copied(f"{meta}pod_name", "pod"),
        *(copied(f"{meta}service_label_{label_name(key)}", label_name(key)) for key in spec.get("targetLabels") or ()),
    ]
    assert (spec.get("namespaceSelector") or {}).get("matchNames") in (None, [namespace]), "one namespace is discovered"
    return {
        "job_name": monitor["metadata"]["name"],
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint["path"],
        "file_sd_configs": [{"files": [TARGETS]}],
        "relabel_configs": relabelings,
    }


def discover(kubectl: Kubectl) -> list[Object]:
    """Return the addresses of all ports of all Services, with the labels of Prometheus' own discovery."""
    services = {body["metadata"]["name"]: body for body in kubectl.list("services")}
    found = []
    for body in kubectl.list("endpoints"):
        name = body["metadata"]["name"]
        labels = services.get(name, body)["metadata"].get("labels") or {}
        named = {f"__meta_kubernetes_service_label_{label_name(key)}": value for key, value in labels.items()}
        for subset in body.get("subsets") or ():
            for address in [*(subset.get("addresses") or ()), *(subset.get("notReadyAddresses") or ())]:
                for port in subset.get("ports") or ():
                    about = {
                        "__meta_kubernetes_namespace": kubectl.namespace,
                        "__meta_kubernetes_service_name": name,
                        "__meta_kubernetes_endpoint_port_name": port.get("name", ""),
                        "__meta_kubernetes_pod_name": (address.get("targetRef") or {}).get("name", ""),
                    }
                    found.append({"targets": [f"{address['ip']}:{port['port']}"], "labels": {**about, **named}})
    return found


def label_name(key: str) -> str:
    """Return the name of a Prometheus label for a label of Kubernetes."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def immediate(rules: Sequence[Mapping[str, Any]]) -> list[Object]:
    """Return copies of alerts that fire at once."""
    return [{**rule, "alert": rule["alert"] + IMMEDIATE, "for": "0s"} for rule in rules]


class Prometheus:
    """A Prometheus in the cluster's network, with a scrape and an evaluation each second. Its files are in `folder`."""

    def __init__(self, exec_in: str, folder: Path, documents: Sequence[Object], kubectl: Kubectl) -> None:
        self._exec_in, self._folder = exec_in, folder
        self._documents, self._kubectl = documents, kubectl
        self._ended = threading.Event()
        self._discovery = threading.Thread(target=self._discover, name="targets of Prometheus", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.rules: list[Mapping[str, Any]] = [
            rule
            for body in documents
            if body["kind"] == "PrometheusRule"
            for group in body["spec"]["groups"]
            for rule in group["rules"]
        ]

    def __enter__(self) -> Prometheus:
        monitors = [body for body in self._documents if body["kind"] == "ServiceMonitor"]
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [scrape_config(monitor, self._kubectl.namespace) for monitor in monitors],
        }
        groups = [
            {"name": "penstock", "rules": self.rules},
            {"name": "immediate", "rules": immediate(self.rules)},
        ]
        (self._folder / "rules.yaml").write_bytes(msgspec.yaml.encode({"groups": groups}))
        (self._folder / "prometheus.yaml").write_bytes(msgspec.yaml.encode(configuration))
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._exec_in,
                    program("prometheus"),
                    f"--config.file={self._folder}/prometheus.yaml",
                    f"--storage.tsdb.path={self._folder}/data",
                    f"--web.listen-address={ADDRESS}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "GOMAXPROCS": "1"},
            )
        self._discovery.start()
        try:
            eventually("Prometheus answers", lambda: self.query("vector(1)"), 60)
        except AssertionError as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None, "it was started"
        self._ended.set()
        self._discovery.join(60)
        self._process.terminate()
        self._process.wait(60)
        if error[0] is not None:
            print((self._folder / "prometheus.log").read_text(errors="replace")[-4000:])

    def _discover(self) -> None:
        while not self._ended.wait(DISCOVERY_INTERVAL_S):
            try:
                found = discover(self._kubectl)
            except CommandFailed as error:
                print(f"the targets of Prometheus stay as they are: {error}")
                continue
            made = self._folder / f"{TARGETS}.new"
            made.write_text(json.dumps(found), encoding="utf-8")
            made.replace(self._folder / TARGETS)

    def query(self, expression: str) -> list[Mapping[str, str]]:
        """Return the labels of the series of an instant query."""
        command = (program("promtool"), "query", "instant", "--format", "json", f"http://{ADDRESS}", expression)
        found: list[Object] = json.loads(run(self._exec_in, *command))
        return [{**series["metric"], "value": series["value"][1]} for series in found]

    def targets(self) -> dict[str, list[str]]:
        """Return the pods that were scraped without an error, by job, which is the name of their Service."""
        pods: dict[str, list[str]] = {}
        for series in self.query("up == 1"):
            pods.setdefault(series["job"], []).append(series["pod"])
        return pods

    def firing(self, pattern: str = ".*") -> list[Mapping[str, str]]:
        """Return the labels of the alerts that fire."""
        return self.query(f'ALERTS{{alertstate="firing",alertname=~"{pattern}"}}')

    def fires(self, alert: str, timeout_s: float = 120) -> Mapping[str, str]:
        """Wait until the immediate copy of an alert fires; return its labels."""
        found = eventually(f"{alert} fires", lambda: self.firing(alert + IMMEDIATE), timeout_s)
        return found[0]

    def ends(self, alert: str, timeout_s: float = 180) -> None:
        """Wait until the immediate copy of an alert does not fire."""
        eventually(f"{alert} ends", lambda: not self.firing(alert + IMMEDIATE), timeout_s)

    def fired(self) -> set[str]:
        """Return the shipped alerts that have fired since the start."""
        found = self.query(f'count_over_time(ALERTS{{alertstate="firing",alertname!~".*{IMMEDIATE}"}}[2h])')
        return {series["alertname"] for series in found}
