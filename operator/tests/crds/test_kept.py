"""Valid objects are accepted, immutable fields stay, and kubectl prints and scales as the CRDs define."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from crds.kubectl_kit import ROOT, Kubectl, Object, manifest
from crds.random_specs import examples

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.common import PLURALS
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.model.parse import as_object, parse
from penstock_operator.model.topic import Topic
from penstock_operator.model.user import User

EXAMPLES = sorted((ROOT / "docs" / "reference" / "examples").glob("*.yaml"))

VALID: dict[str, tuple[str, dict[str, Any]]] = {
    "the smallest user": ("User", {}),
    "a user with all that a user can have": (
        "User",
        {
            "userName": "CN=Ana Maria,O=shop",
            "authentication": {"type": "scram-sha-256", "passwordSecretRef": {"name": "a"}, "mountPath": "/run/user"},
            "acls": [
                {"topic": "*", "operations": ["All"], "host": "10.0.0.0/8", "deny": True},
                {"transactionalId": "a", "prefix": True, "operations": ["Write", "Describe"]},
                {"cluster": True, "operations": ["IdempotentWrite"]},
            ],
            "quotas": {"producerByteRate": 1, "requestPercentage": 50},
        },
    ),
    "as many ACLs as a user can have": (
        "User",
        {"acls": [{"topic": f"{i:0249}", "operations": ["Read", "Write", "Describe"]} for i in range(200)]},
    ),
    "a group of a provider": (
        "User",
        {"principalType": "Group", "userName": "/Data/Ops", "authentication": {"type": "oauth"}},
    ),
    "the smallest topic": ("Topic", {}),
    "a topic of Kafka's names": ("Topic", {"topicName": "Orders_EU.v1", "partitions": 10_000, "replicas": 32}),
    "settings as numbers and texts": (
        "Topic",
        {"config/retention.ms": -1, "config/segment.bytes": "1048576", "config/min.cleanable.dirty.ratio": ".25"},
    ),
    "every word of a list": (
        "Topic",
        {"config/cleanup.policy": "compact, delete", "config/unclean.leader.election.enable": "true"},
    ),
    "numbers at their ends": (
        "Topic",
        {"config/retention.bytes": 9223372036854775807, "config/min.cleanable.dirty.ratio": 1},
    ),
    "the smallest cluster": ("Cluster", {}),
    "requests up to the limits, in other units": (
        "Cluster",
        {"brokers.resources": {"requests": {"cpu": "900m", "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "1024Mi"}}},
    ),
    "a cluster with etcd beside it": ("Cluster", {"etcd": {"sidecar": {"image": "etcd:3.5"}}, "brokers.replicas": 1}),
    "a cluster with TLS to etcd": (
        "Cluster",
        {"etcd": {"endpoints": ["https://[::1]:2379", "https://b.example.org"], "tlsSecret": "etcd", "managed": True}},
    ),
    "a cluster with all of a pod's fields": (
        "Cluster",
        {
            "brokers": {
                "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"ephemeral-storage": "500M"}},
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}],
                "imagePullSecrets": [{"name": "registry"}],
                "podLabels": {"team": "data"},
                "podAnnotations": {"example.org/a": "b"},
            },
            "external": {"type": "NodePort", "host": "10.0.0.1", "annotations": {"a": "b"}},
        },
    ),
    "a cluster with listeners": (
        "Cluster",
        {
            "listeners": [
                {"name": "clients", "port": 9093},
                {"name": "nodes", "port": 9094, "type": "nodeport", "host": "b{ordinal}.example.org"},
                {"name": "lb", "port": 9095, "type": "loadbalancer", "host": "10.0.0.1", "annotations": {"a": "b"}},
                {"name": "routed", "port": 9098, "type": "tlsroute", "host": "b{ordinal}.example.org",
                 "route": {"gateway": "a", "namespace": "b", "sectionName": "c", "port": 8443, "bootstrapHost": "d.e"}},
                {"name": "plain", "port": 9096, "tls": False, "authentication": "none"},
                {"name": "tokens", "port": 9097, "authentication": "oauth",
                 "oauth": {"jwksUrl": "https://id.example/keys", "issuer": "https://id.example", "audience": "a"}},
            ],
            "certificates": {"source": "secret", "issuerRef": {"name": "a"}, "clientCaSecret": "b"},
        },
    ),
    "broker settings": ("Cluster", {"config/log.retention.hours": 168, "config/auto.create.topics.enable": "false"}),
    "the smallest group": ("ConsumerGroup", {}),
    "a group of any id": ("ConsumerGroup", {"groupId": "Billing / Österreich 2"}),
    "a share group": (
        "ConsumerGroup",
        {"type": "share", "config/share.delivery.count.limit": 3, "config/share.auto.offset.reset": "earliest"},
    ),
    "a reset to a time": (
        "ConsumerGroup",
        {"reset": {"id": "a", "to": "timestamp", "timestamp": "2026-11-21T08:00:00.5+01:00", "dryRun": True}},
    ),
    "a replay of dead letters": (
        "ConsumerGroup",
        {
            "replayDeadLetters": {
                "id": "a",
                "topic": "orders",
                "reason": "timeout",
                "since": "2026-11-21T08:00:00Z",
                "until": "2026-11-21T08:00:00-01:00",
                "to": "orders.repaired",
                "rate": 10,
                "dryRun": True,
            }
        },
    ),
    "a reset of partitions": (
        "ConsumerGroup",
        {"reset": {"id": "a", "to": "offset", "offset": 0, "topics": ["orders"], "partitions": [0, 7]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "changes"), VALID.values(), ids=VALID)
def test_what_is_right_is_taken_whole(kubectl: Kubectl, name: str, kind: str, changes: dict[str, Any]) -> None:
    wanted = manifest(kind, name, changes)
    stored = kubectl.apply(wanted)
    assert covers(stored["spec"], wanted["spec"])


def covers(stored: Any, wanted: Any) -> bool:
    """Return whether the API server pruned nothing of `wanted`."""
    if isinstance(wanted, dict):
        return all(key in stored and covers(stored[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):  # items can have defaults
        return len(stored) == len(wanted) and all(map(covers, stored, wanted))
    return bool(stored == wanted)


@pytest.mark.parametrize("kind", ["Cluster", "Topic", "ConsumerGroup", "User"])
def test_defaults_of_the_api_server_are_those_of_the_models(kubectl: Kubectl, name: str, kind: Any) -> None:
    stored = kubectl.apply(manifest(kind, name, {}))
    parsed = parse(kind, stored)
    bare = parse(kind, {**manifest(kind, name, {}), "metadata": stored["metadata"]})
    assert parsed.spec == bare.spec


def test_partitions_and_replicas_that_are_left_out_stay_left_out(kubectl: Kubectl, name: str) -> None:
    stored = kubectl.apply(manifest("Topic", name, {}))
    assert "partitions" not in stored["spec"]
    assert "replicas" not in stored["spec"]
    topic = parse("Topic", stored)
    assert (topic.spec.partitions, topic.spec.replicas) == (None, None)


SIDECAR = {"etcd": {"sidecar": {"image": "etcd:3.5"}}}
RESET = {"reset": {"id": "first", "to": "latest"}}

CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a topic's name": ("Topic", {"topicName": "a"}, {"topicName": "b"}, "topicName cannot be changed"),
    "a topic's name taken away": ("Topic", {"topicName": "a"}, {}, "topicName cannot be changed"),
    "a topic's cluster": ("Topic", {}, {"clusterRef.name": "other"}, "clusterRef cannot be changed"),
    "a group's id": ("ConsumerGroup", {}, {"groupId": "other"}, "groupId cannot be changed"),
    "a group's cluster": ("ConsumerGroup", {}, {"clusterRef.name": "other"}, "clusterRef cannot be changed"),
    "a user's name": ("User", {}, {"userName": "other"}, "userName cannot be changed"),
    "a user's default name": ("User", {}, {"authentication.type": "tls"}, "set userName to keep the name"),
    "a user that becomes a group": (
        "User",
        {"authentication.type": "oauth"},
        {"authentication.type": "oauth", "principalType": "Group"},
        "principalType cannot be changed",
    ),
    "a replay under its old id": (
        "ConsumerGroup",
        {"replayDeadLetters": {"id": "first", "reason": "timeout"}},
        {"replayDeadLetters": {"id": "first"}},
        "set a new id for the changed replay",
    ),
    "a reset under its old id": (
        "ConsumerGroup",
        RESET,
        {"reset": {"id": "first", "to": "earliest"}},
        "set a new id for the changed reset",
    ),
    "a reset's topics under its old id": (
        "ConsumerGroup",
        RESET,
        {"reset": RESET["reset"] | {"topics": ["a"]}},
        "set a new id for the changed reset",
    ),
    "where etcd is": ("Cluster", {}, SIDECAR, "etcd.endpoints and etcd.sidecar cannot be exchanged"),
    "a volume's class": (
        "Cluster",
        {"brokers.storage.className": "fast"},
        {"brokers.storage.className": "slow"},
        "className cannot be changed",
    ),
    "a volume's class given later": (
        "Cluster",
        {},
        {"brokers.storage.className": "fast"},
        "className cannot be changed",
    ),
    "fewer brokers than members of etcd": (
        "Cluster",
        SIDECAR | {"brokers.replicas": 3},
        SIDECAR | {"brokers.replicas": 1},
        "the first three brokers run the etcd members",
    ),
}


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_what_is_fixed_cannot_be_changed(kubectl: Kubectl, name: str, case: Any) -> None:
    kind, before, after, words = case
    kubectl.apply(manifest(kind, name, before))
    assert words in kubectl.refusal(manifest(kind, name, after))


ALLOWED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a user's default name written out": (
        "User",
        {},
        {"authentication.type": "tls", "userName": "NAME"},
    ),
    "a topic's own name said aloud": ("Topic", {}, {"topicName": "NAME"}),
    "fewer partitions, which the status refuses": ("Topic", {"partitions": 4}, {"partitions": 2}),
    "a larger volume in another unit": (
        "Cluster",
        {"brokers.storage.size": "1Gi"},
        {"brokers.storage.size": "1.5G"},
    ),
    "a larger volume taken back, which the status compares with the volumes": (
        "Cluster",
        {"brokers.storage.size": "1Ti"},
        {"brokers.storage.size": "1000G"},
    ),
    "a larger volume of etcd taken back": (
        "Cluster",
        SIDECAR,
        {"etcd": {"sidecar": {"image": "etcd:3.5", "storage": {"size": "1Gi"}}}},
    ),
    "other endpoints": ("Cluster", {}, {"etcd.endpoints": ["https://new:2379"]}),
    "a dry run that becomes real": ("ConsumerGroup", {"reset": RESET["reset"] | {"dryRun": True}}, RESET),
    "a replay that becomes faster": (
        "ConsumerGroup",
        {"replayDeadLetters": {"id": "first"}},
        {"replayDeadLetters": {"id": "first", "rate": 1000}},
    ),
    "another reset": ("ConsumerGroup", RESET, {"reset": {"id": "second", "to": "earliest"}}),
    "more brokers beside one member of etcd": ("Cluster", SIDECAR | {"brokers.replicas": 1}, SIDECAR),
    "four brokers beside three members": ("Cluster", SIDECAR, SIDECAR | {"brokers.replicas": 4}),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=ALLOWED)
def test_what_is_not_fixed_can_be_changed(kubectl: Kubectl, name: str, case: Any) -> None:
    kind, before, after = case
    kubectl.apply(manifest(kind, name, before))
    kubectl.apply(manifest(kind, name, {k: name if v == "NAME" else v for k, v in after.items()}))


def test_kubectl_scale_sets_the_number_of_brokers_within_the_rules(kubectl: Kubectl, name: str) -> None:
    kubectl.apply(manifest("Cluster", name, {}))
    kubectl.must("scale", "pcl", name, "--replicas=5")
    assert get(kubectl, "pcl", name)["spec"]["brokers"]["replicas"] == 5
    refused = kubectl.run("scale", "pcl", name, "--replicas=0")
    assert "brokers.replicas must be 1 to 1000" in refused.stderr


def test_the_scale_subresource_shows_what_the_status_says(kubectl: Kubectl, name: str) -> None:
    kubectl.apply(manifest("Cluster", name, {"brokers.replicas": 2}))
    set_status(kubectl, "clusters", name, {"replicas": 1, "selector": "penstock.io/cluster=a"})
    path = f"/apis/penstock.io/v1beta1/namespaces/{kubectl.namespace}/clusters/{name}/scale"
    scale = json.loads(kubectl.must("get", "--raw", path))
    assert scale["spec"]["replicas"] == 2
    assert scale["status"] == {"replicas": 1, "selector": "penstock.io/cluster=a"}


READY = {"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}

SHOWN: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], list[str]]] = {
    "Cluster": (
        {"brokers.replicas": 5},
        {"readyReplicas": 4, "version": "0.1.0", "bootstrap": "main:9092",
         "conditions": [READY, READY | {"type": "Healthy", "status": "False"}]},
        ["NAME", "BROKERS", "AVAILABLE", "READY", "HEALTHY", "VERSION", "BOOTSTRAP", "AGE"],
        ["5", "4", "True", "False", "0.1.0", "main:9092"],
    ),
    "Topic": (
        {},
        {"partitions": 12, "replicas": 3, "inSync": 11, "conditions": [READY]},
        ["NAME", "CLUSTER", "PARTITIONS", "REPLICAS", "IN-SYNC", "READY", "AGE"],
        ["main", "12", "3", "11", "True"],
    ),
    "ConsumerGroup": (
        {},
        {"state": "Stable", "members": 2, "lag": 0, "lagSeconds": 0, "topicNames": "a,b", "conditions": [READY]},
        ["NAME", "CLUSTER", "TYPE", "STATE", "MEMBERS", "LAG", "LAG-SECONDS", "TOPICS", "AGE"],
        ["main", "Stable", "2", "0", "0", "a,b"],
    ),
    "User": (
        {},
        {"acls": 3, "principal": "User:ana", "conditions": [READY]},
        ["NAME", "READY", "AUTHENTICATION", "ACLS", "ROTATED", "AGE"],
        ["True", "scram-sha-512", "3"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHOWN)
def test_kubectl_get_prints_the_columns(kubectl: Kubectl, name: str, kind: Any) -> None:
    changes, status, head, cells = SHOWN[kind]
    kubectl.apply(manifest(kind, name, changes))
    set_status(kubectl, PLURALS[kind], name, status)
    short = {"Cluster": Cluster, "Topic": Topic, "ConsumerGroup": ConsumerGroup, "User": User}[kind].kind_info.short
    lines = [line.split() for line in kubectl.must("get", short, name).splitlines()]
    assert lines[0] == head
    assert lines[1][1:-1] == cells


def test_kubectl_get_shows_the_delay_of_a_topic_in_a_wide_table(kubectl: Kubectl, name: str) -> None:
    kubectl.apply(manifest("Topic", name, {"config": {"delivery.delay.ms": 60_000}}))
    head, row = (line.split() for line in kubectl.must("get", "pt", name, "--output", "wide").splitlines())
    assert "DELAY-MS" in head
    assert "60000" in row


@pytest.mark.parametrize("kind", SHOWN)
def test_an_object_that_no_operator_has_reconciled_is_not_ready(kubectl: Kubectl, name: str, kind: Any) -> None:
    kubectl.apply(manifest(kind, name, {}))
    (ready,) = get(kubectl, PLURALS[kind], name)["status"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "NotReconciled")
    done = kubectl.run("wait", "--for=condition=Ready", "--timeout=1s", f"{PLURALS[kind]}.penstock.io/{name}")
    assert done.returncode != 0
    set_status(kubectl, PLURALS[kind], name, {"conditions": [READY]})
    assert get(kubectl, PLURALS[kind], name)["status"]["conditions"] == [READY]


@pytest.mark.parametrize("kind", SHOWN)
def test_kubectl_wait_sees_the_condition(kubectl: Kubectl, name: str, kind: Any) -> None:
    kubectl.apply(manifest(kind, name, {}))
    set_status(kubectl, PLURALS[kind], name, {"observedGeneration": 1, "conditions": [READY]})
    kubectl.must("wait", "--for=condition=Ready", "--timeout=10s", f"{PLURALS[kind]}.penstock.io/{name}")


def test_all_kinds_are_shown_by_their_category(kubectl: Kubectl, name: str) -> None:
    for kind in SHOWN:
        kubectl.apply(manifest(kind, name, {}))
    shown = kubectl.must("get", "penstock", "-o", "name")
    assert {f"{kind.lower()}.penstock.io/{name}" for kind in SHOWN} <= set(shown.split())


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_of_the_reference_page_is_taken(kubectl: Kubectl, path: Path) -> None:
    assert path.read_text() in (ROOT / "docs" / "reference" / "resources.md").read_text()
    example: Object = yaml.safe_load(path.read_text())
    assert covers(kubectl.apply(example)["spec"], example["spec"])


def test_random_specs_are_taken(kubectl: Kubectl) -> None:
    seed = random.randrange(1 << 32)
    items = [{**as_object(value), "metadata": {"name": f"r{i}"}} for i, value in enumerate(examples(seed, 25))]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    taken = kubectl.run("apply", "--dry-run=server", "-f", "-", given=given)
    assert taken.returncode == 0, f"seed {seed}: {taken.stderr}"


@pytest.mark.parametrize("plural", PLURALS.values())
def test_the_definitions_are_established_and_structural(kubectl: Kubectl, plural: str) -> None:
    found = json.loads(kubectl.must("get", "crd", f"{plural}.penstock.io", "-o", "json"))
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


def get(kubectl: Kubectl, plural: str, name: str) -> Object:
    found: Object = json.loads(kubectl.must("get", plural, name, "-o", "json"))
    return found


def set_status(kubectl: Kubectl, plural: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl.must("patch", f"{plural}.penstock.io", name, "--subresource=status", "--type=merge", "-p", patch)
