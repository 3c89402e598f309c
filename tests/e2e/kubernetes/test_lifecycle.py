"""Upgrade, rollback, uninstall, and RBAC."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from penstock_kubernetes.kubectl import CommandFailed, eventually, run
from penstock_kubernetes.release import CHART, CLUSTERS, TOPICS, Make, Release

CRD = "topics.penstock.io"
VERSION = "penstock.io/crd-version"


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("lifecycle", values=("crds.upgrade=true",))
    release.install()
    release.kubectl.apply(release.topic("kept", partitions=2))
    release.kubectl.wait(TOPICS, "kept")
    release.penstock("produce", "kept", stdin="one\ntwo\nthree\n")
    return release


def version_of_crd() -> str:
    return str(
        json.loads(run("kubectl", "get", "crd", CRD, "--output", "json"))["metadata"]["annotations"].get(VERSION)
    )


def test_an_upgrade_that_changes_nothing_restarts_nothing(release: Release, tmp_path: Path) -> None:
    def uids() -> dict[str, str]:
        pods = release.kubectl.list("pods")
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods if "operator" not in p["metadata"]["name"]}

    before = uids()
    newer = tmp_path / "penstock"
    shutil.copytree(CHART, newer)
    chart = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(chart.replace("version: 0", "version: 1", 1))
    release.upgrade(chart=newer)
    release.kubectl("rollout", "status", "deployment/penstock-operator", "--timeout=120s")
    release.kubectl.wait(CLUSTERS, release.cluster)
    assert uids() == before
    release.helm("rollback", "penstock", "--wait", "--timeout", "3m")
    assert uids() == before


def test_crds_are_brought_up_to_date_and_never_taken_back(release: Release) -> None:
    ours = version_of_crd()
    for installed, expected in (("0.0.1", ours), ("99.0.0", "99.0.0")):
        run("kubectl", "annotate", "crd", CRD, f"{VERSION}={installed}", "--overwrite")
        try:
            release.upgrade()
            assert version_of_crd() == expected
        finally:
            run("kubectl", "annotate", "crd", CRD, f"{VERSION}={ours}", "--overwrite")


@pytest.mark.parametrize(
    ("verb", "what", "allowed"),
    [
        ("create", "statefulsets.apps", "yes"),
        ("patch", "topics.penstock.io/status", "yes"),
        ("create", "pods", "yes"),
        ("delete", "pods", "yes"),
        ("create", "leases.coordination.k8s.io", "yes"),
        ("create", "events", "yes"),
        ("delete", "topics.penstock.io", "no"),
        ("delete", "clusters.penstock.io", "no"),
        ("delete", "persistentvolumeclaims", "no"),
        ("delete", "configmaps", "no"),
        ("delete", "poddisruptionbudgets.policy", "no"),
        ("patch", "leases.coordination.k8s.io", "no"),
        ("update", "clusters.penstock.io/finalizers", "no"),
        ("get", "secrets", "yes"),
        ("list", "secrets", "no"),
        ("watch", "secrets", "no"),
        ("delete", "secrets", "no"),
        ("patch", "pods", "no"),
        ("create", "pods/exec", "no"),
        ("create", "deployments.apps", "no"),
        ("create", "roles.rbac.authorization.k8s.io", "no"),
        ("patch", "customresourcedefinitions.apiextensions.k8s.io", "no"),
    ],
)
def test_the_operator_has_the_rights_that_it_needs_and_no_others(
    release: Release, verb: str, what: str, allowed: str
) -> None:
    account = f"--as=system:serviceaccount:{release.namespace}:penstock-operator"
    assert can(release, verb, what, account) == allowed


def test_the_operator_may_renew_its_own_lease_alone(release: Release) -> None:
    account = f"--as=system:serviceaccount:{release.namespace}:penstock-operator"
    for name, allowed in (("penstock-operator", "yes"), ("another", "no")):
        result = can(release, "patch", "leases.coordination.k8s.io", account, name=name)
        assert result == allowed


def test_the_operator_has_no_rights_in_other_namespaces(release: Release) -> None:
    account = f"--as=system:serviceaccount:{release.namespace}:penstock-operator"
    for verb, what in (("get", "pods"), ("get", "topics.penstock.io"), ("create", "statefulsets.apps")):
        assert can(release, verb, what, account, "--namespace=default") == "no"


def can(release: Release, verb: str, what: str, *options: str, name: str = "") -> str:
    resource, _, part = what.partition("/")  # kubectl reads RESOURCE/NAME
    parts = [f"--subresource={part}"] if part else []
    try:
        of = f"{resource}/{name}" if name else resource
        return release.kubectl("auth", "can-i", verb, of, *parts, *options).strip()
    except CommandFailed as refused:  # "no" is exit code 1
        return "no" if "\nno" in str(refused) else str(refused)


def test_uninstalling_keeps_the_data_and_installing_again_finds_it(release: Release) -> None:
    cluster_id = release.kubectl.status(CLUSTERS, release.cluster)["clusterId"]
    release.uninstall()
    eventually("no pod is left", lambda: not release.kubectl.list("pods"), 120)
    assert {"kept"} == {t["metadata"]["name"] for t in release.kubectl.list(TOPICS)}
    release.install()
    assert release.kubectl.status(CLUSTERS, release.cluster)["clusterId"] == cluster_id
    release.kubectl.wait(TOPICS, "kept")
    assert sorted(release.penstock("consume", "kept").split()) == ["one", "three", "two"]


def test_two_releases_live_side_by_side(release: Release, make_release: Make) -> None:
    other: Release = make_release("beside")
    other.install()
    other.kubectl.apply(other.topic("kept", partitions=1, deletionPolicy="Delete"))
    other.kubectl.wait(TOPICS, "kept")
    other.kubectl("delete", TOPICS, "kept")
    eventually("its topic is gone", lambda: "kept" not in other.penstock("topic", "list", "--output", "json"), 60)
    assert sorted(release.penstock("consume", "kept").split()) == ["one", "three", "two"]
