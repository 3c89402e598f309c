"""Upgrades that the chart rejects because of existing objects: helm renders with an API server that has the companion
etcd of the first install."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock_charts import Document, render
from penstock_charts.api_server import api_server, refused_beside

TLS = "etcd.companion.tlsSecret=server,etcd.tls.clientSecret=client"
CLUSTER = "/apis/penstock.io/v1beta1/namespaces/queue/clusters/penstock"
CLUSTER_KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "penstock.io/v1beta1",
    "resources": [{"name": "clusters", "namespaced": True, "kind": "Cluster", "verbs": ["get"]}],
}
PLAIN = "cluster.allowPlaintext=true"
SERVED = ("--api-versions", "penstock.io/v1beta1/Cluster")
"""What helm reads from the API server during an install or upgrade, but not for `helm template`."""
SECURED = "cluster.listeners[0].name=clients,cluster.listeners[0].port=9093"
WHERE = "/apis/apps/v1/namespaces/queue/statefulsets/penstock-etcd"
KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "apps/v1",
    "resources": [{"name": "statefulsets", "namespaced": True, "kind": "StatefulSet", "verbs": ["get"]}],
}
BOOTSTRAP = "/api/v1/namespaces/queue/configmaps/penstock-etcd-bootstrap"
CORE_KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [{"name": "configmaps", "namespaced": True, "kind": "ConfigMap", "verbs": ["get"]}],
}

Upgrade = Callable[..., str]


@pytest.fixture
def upgrade(helm: str, chart: Path, tmp_path: Path) -> Iterator[Upgrade]:
    """Return a function that renders with the StatefulSet `there` and returns helm's error, or ""."""

    found: dict[str, Any] = {"/apis/apps/v1": KINDS, "/api/v1": CORE_KINDS}
    with api_server(found) as url:

        def run(there: Document, *options: str) -> str:
            found[WHERE] = there
            return refused_beside(url, helm, chart, tmp_path, *options)

        yield run


def companion(helm: str, chart: Path, *options: str) -> Document:
    """Return the StatefulSet as stored after an install with these options: the API server completes claims and
    normalizes their quantities."""
    (found,) = [d for d in render(helm, chart, *options) if d["kind"] == "StatefulSet"]
    (claim,) = found["spec"]["volumeClaimTemplates"]
    claim["spec"]["volumeMode"] = "Filesystem"
    asked = claim["spec"]["resources"]["requests"]
    asked["storage"] = {"1.5Gi": "1536Mi"}.get(asked["storage"], asked["storage"])
    return found


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ("", "etcd.mode=sidecar", "etcd.mode is fixed at the first install: the companion etcd penstock-etcd has"),
        (
            "",
            "etcd.mode=external,etcd.external.endpoints={http://other:2379}",
            "restore etcd.mode=companion, or install another release",
        ),
        ("", "etcd.companion.replicas=1,cluster.enabled=false", "cannot change from 3 to 1 with cluster.enabled=false"),
        (PLAIN, TLS, "TLS of the companion etcd is fixed at the first install"),
        (TLS, "", "TLS of the companion etcd is fixed at the first install"),
        (TLS, PLAIN, "TLS of the companion etcd is fixed at the first install"),
        ("", PLAIN, "TLS of the companion etcd is fixed at the first install"),
        ("", "etcd.companion.storage.className=fast", "etcd.companion.storage.className is fixed at the first install"),
        ("etcd.companion.storage.className=fast", "", "etcd.companion.storage.className is fixed at the first install"),
    ],
)
def test_what_the_companion_etcd_would_not_survive_or_kubernetes_refuse_is_refused(
    helm: str, chart: Path, upgrade: Upgrade, first: str, then: str, words: str
) -> None:
    assert words in upgrade(companion(helm, chart, "--set", first), "--set", then)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("", ""),
        ("", "etcd.companion.initialClusterState=existing"),
        ("", "etcd.companion.storage.size=4Gi"),
        ("etcd.companion.storage.size=4Gi", ""),
        ("etcd.companion.storage.className=fast", "etcd.companion.storage.className=fast"),
        (TLS, TLS),
        (PLAIN, PLAIN),
        (PLAIN, ""),
        (PLAIN, SECURED),
        (TLS, f"{TLS},etcd.companion.tlsSecret=another"),
        ("etcd.companion.replicas=1", "etcd.companion.replicas=1"),
        ("", "etcd.companion.replicas=5"),
        ("", "etcd.companion.replicas=1"),
    ],
)
def test_an_upgrade_that_changes_none_of_that_goes_on(
    helm: str, chart: Path, upgrade: Upgrade, first: str, then: str
) -> None:
    assert upgrade(companion(helm, chart, "--set", first), "--set", then) == ""


@pytest.mark.parametrize(
    ("running", "wanted", "replicas"), [(3, 5, 3), (5, 3, 5), (2, 3, 2), (3, 1, 3), (0, 3, 3), (0, 1, 1)]
)
def test_another_number_of_members_goes_to_the_cluster_and_the_operator_changes_the_pods(
    helm: str, chart: Path, running: int, wanted: int, replicas: int
) -> None:
    there = companion(helm, chart)
    there["spec"]["replicas"] = running
    bootstrap = next(d for d in render(helm, chart) if d["metadata"]["name"] == "penstock-etcd-bootstrap")
    found: dict[str, Any] = {"/apis/apps/v1": KINDS, "/api/v1": CORE_KINDS, WHERE: there, BOOTSTRAP: bootstrap}
    with api_server(found) as url:
        made = render(
            helm, chart, "--kube-apiserver", url, "--dry-run=server", "--set", f"etcd.companion.replicas={wanted}"
        )
    by_name = {(d["kind"], d["metadata"]["name"]): d for d in made}
    assert by_name["StatefulSet", "penstock-etcd"]["spec"]["replicas"] == replicas
    assert len(by_name["Cluster", "penstock"]["spec"]["etcd"]["endpoints"]) == wanted
    assert by_name["ConfigMap", "penstock-etcd-bootstrap"]["data"] == bootstrap["data"], "members form a cluster once"
    assert ("Service", "penstock-etcd-4") in by_name, "a member that is to be removed needs its name until then"


@pytest.mark.parametrize(
    ("instance", "manager", "options", "is_refused"),
    [
        ("penstock", "Helm", "", False),
        ("penstock", "Helm", "cluster.name=other", True),
        ("penstock", "Helm", "fullnameOverride=other", True),
        ("penstock", "Helm", "cluster.name=other,cluster.enabled=false", False),
        ("another", "Helm", "cluster.name=other", False),
        ("penstock", "kubectl", "cluster.name=other", False),
    ],
)
def test_an_upgrade_never_replaces_the_cluster_of_a_release_by_one_of_another_name(
    helm: str, chart: Path, tmp_path: Path, instance: str, manager: str, options: str, is_refused: bool
) -> None:
    labels = {"app.kubernetes.io/instance": instance, "app.kubernetes.io/managed-by": manager}
    there = {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "penstock", "namespace": "queue", "labels": labels},
        "spec": {"listeners": [{"name": "clients", "port": 9093}]},
    }
    found: dict[str, Any] = {
        "/apis/apps/v1": KINDS,
        "/apis/penstock.io/v1beta1": CLUSTER_KINDS,
        CLUSTER: there,
        CLUSTER.rpartition("/")[0]: {"apiVersion": "penstock.io/v1beta1", "kind": "ClusterList", "items": [there]},
    }
    with api_server(found) as url:
        message = refused_beside(url, helm, chart, tmp_path, *SERVED, "--set", options)
    words = 'the name of the Cluster is fixed at the first install: it is "penstock", got "other"'
    assert (words in message) == is_refused, message
    assert is_refused or not message


def test_an_upgrade_never_replaces_the_companion_etcd_by_one_of_another_name(
    helm: str, chart: Path, tmp_path: Path
) -> None:
    there = {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "Cluster",
        "metadata": {
            "name": "penstock",
            "namespace": "queue",
            "labels": {"app.kubernetes.io/instance": "penstock", "app.kubernetes.io/managed-by": "Helm"},
        },
        "spec": {"etcd": {"statefulSet": "penstock-etcd"}, "listeners": [{"name": "clients", "port": 9093}]},
    }
    found: dict[str, Any] = {
        "/apis/apps/v1": KINDS,
        "/apis/penstock.io/v1beta1": CLUSTER_KINDS,
        CLUSTER: there,
        CLUSTER.rpartition("/")[0]: {"apiVersion": "penstock.io/v1beta1", "kind": "ClusterList", "items": [there]},
    }
    with api_server(found) as url:
        assert refused_beside(url, helm, chart, tmp_path, *SERVED) == ""
        options = (*SERVED, "--set", "fullnameOverride=other,cluster.name=penstock")
        message = refused_beside(url, helm, chart, tmp_path, *options)
    assert 'the companion etcd is fixed at the first install: it is "penstock-etcd", got "other-etcd"' in message


@pytest.mark.parametrize(
    ("listeners", "options", "is_refused"),
    [
        ([], "", True),
        ([], "cluster.allowPlaintext=true", False),
        ([], SECURED, False),
        ([{"name": "clients", "port": 9093}], "", False),
        ([{"name": "clients", "port": 9093}], "cluster.allowPlaintext=true", False),
    ],
)
def test_an_upgrade_never_disconnects_clients_in_plain_text_unless_the_values_say_so(
    helm: str, chart: Path, tmp_path: Path, listeners: list[Document], options: str, is_refused: bool
) -> None:
    there = {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "penstock", "namespace": "queue"},
        "spec": {"listeners": listeners} if listeners else {},
    }
    found: dict[str, Any] = {
        "/apis/apps/v1": KINDS,
        "/apis/penstock.io/v1beta1": CLUSTER_KINDS,
        CLUSTER: there,
    }
    with api_server(found) as url:
        message = refused_beside(url, helm, chart, tmp_path, *SERVED, "--set", options)
    assert ('Cluster "penstock" has no listeners' in message) == is_refused, message
    assert ("set cluster.allowPlaintext=true to keep plain text" in message) == is_refused
    assert is_refused or not message


@pytest.mark.parametrize("size", ["1Gi", "4Gi"])
def test_another_size_of_etcds_volumes_goes_to_the_cluster_and_the_claim_template_stays(
    helm: str, chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))
    found: dict[str, Any] = {"/apis/apps/v1": KINDS, WHERE: companion(helm, chart)}
    with api_server(found) as url:
        made = render(
            helm, chart, "--kube-apiserver", url, "--dry-run=server", "--set", f"etcd.companion.storage.size={size}"
        )
    (claim,) = next(d for d in made if d["kind"] == "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert next(d for d in made if d["kind"] == "Cluster")["spec"]["etcd"]["storage"] == {"size": size}
