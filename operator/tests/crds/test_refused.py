"""Invalid objects are rejected by `kubectl apply`, with a message that states the fix."""

from __future__ import annotations

from typing import Any

import pytest
from crds.kubectl_kit import ROOT, Kubectl, manifest

INVALID = sorted((ROOT / "tests" / "e2e" / "kubernetes" / "invalid").glob("*.yaml"))
MARK = "# refused with: "

BUCKET = {"endpoint": "https://s3", "bucket": "backups", "secretName": "keys"}
SIDECAR = {"etcd": {"sidecar": {"image": "etcd:3.5"}}}
RESET = {"reset.id": "a"}
ROUTED = {
    "name": "a",
    "port": 9093,
    "type": "tlsroute",
    "host": "b{ordinal}.example.org",
    "route": {"gateway": "edge"},
}

Case = tuple[str, dict[str, Any], str]

CASES: dict[str, Case] = {
    "an ACL of two resources": (
        "User",
        {"acls": [{"topic": "a", "group": "b", "operations": ["Read"]}]},
        "set exactly one of topic, group, transactionalId, cluster; use one entry per resource",
    ),
    "an ACL of no resource": ("User", {"acls": [{"operations": ["Read"]}]}, "set exactly one of topic"),
    "an operation of another resource": (
        "User",
        {"acls": [{"group": "a", "operations": ["Write"]}]},
        "operations of group are All, Read, Delete",
    ),
    "an unknown operation": ("User", {"acls": [{"topic": "a", "operations": ["Look"]}]}, "Unsupported value"),
    "an ACL without operations": ("User", {"acls": [{"topic": "a", "operations": []}]}, "at least 1 items"),
    "a prefix of the cluster": (
        "User",
        {"acls": [{"cluster": True, "prefix": True, "operations": ["Alter"]}]},
        "prefix does not apply to cluster",
    ),
    "a password of a user with a certificate": (
        "User",
        {"authentication": {"type": "tls", "passwordSecretRef": {"name": "a"}}},
        "requires the type scram-sha-512 or scram-sha-256",
    ),
    "a Secret that is read and written": (
        "User",
        {"authentication": {"secretName": "a", "passwordSecretRef": {"name": "a"}}},
        "choose another name than that of passwordSecretRef",
    ),
    "a group with a password": ("User", {"principalType": "Group"}, "requires authentication.type oauth or external"),
    "a group with quotas": (
        "User",
        {"principalType": "Group", "authentication": {"type": "oauth"}, "quotas": {"producerByteRate": 1}},
        "quotas apply to users only",
    ),
    "every user as a user": ("User", {"userName": "*"}, "set the name of one user"),
    "a user name with a line break": ("User", {"userName": "a\nb"}, "should match"),
    "a quota of nothing": ("User", {"quotas": {"producerByteRate": 0}}, "greater than or equal to 1"),
    "more partitions than there can be": ("Topic", {"partitions": 10_001}, "partitions must be 1 to 10000"),
    "fewer than no partitions": ("Topic", {"partitions": -1}, "omit it to use the brokers' default"),
    "no replicas": ("Topic", {"replicas": 0}, "replicas must be 1 to 32, and at most the number of brokers"),
    "a topic of no cluster": ("Topic", {"clusterRef": None}, "spec.clusterRef: Required value"),
    "an unknown deletion policy": ("Topic", {"deletionPolicy": "Keep"}, 'supported values: "Delete", "Retain"'),
    "an unknown field": ("Topic", {"partition": 3}, 'unknown field "spec.partition"'),
    "a topic named ..": ("Topic", {"topicName": ".."}, "not be '.' or '..'"),
    "a topic of Kafka's own": (
        "Topic",
        {"topicName": "__consumer_offsets"},
        "topicName cannot be the name of an internal topic",
    ),
    "a topic's name too long": ("Topic", {"topicName": "a" * 250}, "may not be more than 249"),
    "a setting that is no number": (
        "Topic",
        {"config/retention.ms": "7d"},
        "retention.ms must be a whole number from -1 to 9223372036854775807",
    ),
    "a number with a fraction": ("Topic", {"config/segment.ms": "1.5"}, "segment.ms must be a whole number"),
    "a number out of range": (
        "Topic",
        {"config/max.message.bytes": "2000000000"},
        "max.message.bytes must be a whole number from 0 to 1073741824",
    ),
    "a ratio above one": (
        "Topic",
        {"config/min.cleanable.dirty.ratio": "1.5"},
        "min.cleanable.dirty.ratio must be a number from 0 to 1",
    ),
    "an unknown word": (
        "Topic",
        {"config/cleanup.policy": "compact,keep"},
        "cleanup.policy must be a comma-separated list of delete and compact",
    ),
    "a truth in other words": (
        "Topic",
        {"config/unclean.leader.election.enable": "yes"},
        "unclean.leader.election.enable must be true or false",
    ),
    "a setting of moves": (
        "Topic",
        {"config/leader.replication.throttled.replicas": "*"},
        "use spec.moving.throttleBytesPerSecond of the Cluster",
    ),
    "a truth without quotes": (
        "Topic",
        {"config/preallocate": False},
        'Invalid value: "boolean": spec.config.preallocate in body must be of type integer,string: "boolean"',
    ),
    "a cluster without etcd": ("Cluster", {"etcd": {}}, "set exactly one of etcd.endpoints"),
    "an endpoint without a scheme": (
        "Cluster",
        {"etcd.endpoints": ["etcd:2379"]},
        "an etcd endpoint must be http://host:port or https://host:port",
    ),
    "endpoints with and without TLS": (
        "Cluster",
        {"etcd.endpoints": ["http://a:2379", "https://b:2379"]},
        "etcd.endpoints must be all http:// or all https://",
    ),
    "TLS to a sidecar": ("Cluster", {"etcd": SIDECAR["etcd"] | {"tlsSecret": "a"}}, "remove it with etcd.sidecar"),
    "snapshots without a destination": ("Cluster", {"etcd.snapshots": {}}, "set exactly one of snapshots.volume"),
    "snapshots to two destinations": (
        "Cluster",
        {"etcd.snapshots": {"volume": {"claimName": "a"}, "objectStore": BUCKET}},
        "set exactly one of snapshots.volume",
    ),
    "a bucket in the address": (
        "Cluster",
        {"etcd.snapshots": {"objectStore": BUCKET | {"endpoint": "https://s3/backups"}}},
        "the bucket is a field of its own",
    ),
    "snapshots all the time": (
        "Cluster",
        {"etcd.snapshots": {"volume": {"claimName": "a"}, "intervalMinutes": 1}},
        "intervalMinutes must be 5 to",
    ),
    "snapshots of a sidecar": (
        "Cluster",
        {"etcd": SIDECAR["etcd"] | {"snapshots": {"volume": {"claimName": "a"}}}},
        "etcd.snapshots requires etcd.endpoints",
    ),
    "a restore without snapshots": (
        "Cluster",
        {"etcd.restore": {"snapshot": "etcd-20260310T120000Z"}},
        "etcd.restore requires etcd.statefulSet and etcd.snapshots",
    ),
    "a restore of a file": (
        "Cluster",
        {"etcd.restore": {"snapshot": "etcd-20260310T120000Z.db"}},
        "restore.snapshot must be the name of a snapshot",
    ),
    "a request that is a sentence": (
        "Cluster",
        {"etcd.restore": {"snapshot": "etcd-20260310T120000Z", "request": "once more"}},
        "restore.request must consist of letters",
    ),
    "no brokers": ("Cluster", {"brokers.replicas": 0}, "brokers.replicas must be 1 to 1000"),
    "a volume of no size": ("Cluster", {"brokers.storage.size": "0"}, "size must be a quantity greater than 0"),
    "an amount that is none": (
        "Cluster",
        {"brokers.resources.requests": {"memory": "1 GB"}},
        "each value must be a quantity, such as 500m, 2 or 4Gi",
    ),
    "more memory than the limit": (
        "Cluster",
        {"brokers.resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}}},
        "requests must not exceed limits",
    ),
    "more processors than the limit, as numbers": (
        "Cluster",
        {"brokers.resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1900m"}}},
        "requests must not exceed limits",
    ),
    "a sidecar with more than its limit": (
        "Cluster",
        {
            "etcd": {
                "sidecar": {
                    "image": "etcd:3.5",
                    "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}},
                }
            }
        },
        "requests must not exceed limits",
    ),
    "the port of health": ("Cluster", {"port": 8080}, "port must be 1024 to 65535, except 8080"),
    "an external port of etcd": (
        "Cluster",
        {"external": {"type": "NodePort", "port": 2379}},
        "external.port must be 1024 to 65535",
    ),
    "a host of load balancers": (
        "Cluster",
        {"external": {"type": "LoadBalancer", "host": "example.org"}},
        "host requires type NodePort",
    ),
    "an external listener's type": ("Cluster", {"external": {"type": "Ingress"}}, '"LoadBalancer", "NodePort"'),
    "a listener with the name of another port": (
        "Cluster",
        {"listeners": [{"name": "brokers", "port": 9093}]},
        "not be brokers, etcd, http, internal, kafka, plaintext or ssl",
    ),
    "a listener on the brokers' port": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9091}]},
        "a listener's port must be 1024 to 65535, except 8080",
    ),
    "two listeners on one port": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093}, {"name": "b", "port": 9093}]},
        "listeners must have different ports",
    ),
    "client certificates without TLS": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "tls": False, "authentication": "tls"}]},
        "authentication tls requires tls: true",
    ),
    "tokens in plain text": (
        "Cluster",
        {
            "listeners": [
                {
                    "name": "a",
                    "port": 9093,
                    "tls": False,
                    "authentication": "oauth",
                    "oauth": {"jwksUrl": "https://a", "issuer": "b", "audience": "c"},
                }
            ]
        },
        "authentication oauth requires tls: true",
    ),
    "tokens without an issuer": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "authentication": "oauth"}]},
        "authentication oauth requires oauth",
    ),
    "keys over plain HTTP": (
        "Cluster",
        {
            "listeners": [
                {
                    "name": "a",
                    "port": 9093,
                    "authentication": "oauth",
                    "oauth": {"jwksUrl": "http://issuer", "issuer": "b", "audience": "c"},
                }
            ]
        },
        "oauth.jwksUrl must be an https:// URL",
    ),
    "a host of an internal listener": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "host": "a.example.org"}]},
        "host requires type nodeport, loadbalancer or tlsroute",
    ),
    "a route without a Gateway": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "type": "tlsroute", "host": "b{ordinal}.example.org"}]},
        "type tlsroute requires route, and the reverse",
    ),
    "a Gateway of another type": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "type": "loadbalancer", "route": {"gateway": "edge"}}]},
        "type tlsroute requires route, and the reverse",
    ),
    "a route in plain text": (
        "Cluster",
        {"listeners": [ROUTED | {"tls": False}]},
        "type tlsroute requires tls: true",
    ),
    "a route of all brokers by one host": (
        "Cluster",
        {"listeners": [ROUTED | {"host": "kafka.example.org"}]},
        "type tlsroute requires a host with {ordinal}",
    ),
    "a route by an address": (
        "Cluster",
        {"listeners": [ROUTED | {"host": "fd00::{ordinal}"}]},
        "type tlsroute requires a host with {ordinal}",
    ),
    "a bootstrap host with a port": (
        "Cluster",
        {"listeners": [ROUTED | {"route": {"gateway": "edge", "bootstrapHost": "kafka.example.org:443"}}]},
        "route.bootstrapHost must be a DNS name in lower case, without a port",
    ),
    "a host with a script": (
        "Cluster",
        {"listeners": [{"name": "a", "port": 9093, "type": "nodeport", "host": "$(id)"}]},
        "host must be a host name or an IP address, without a port; it may contain {ordinal} once",
    ),
    "an external listener beside listeners": (
        "Cluster",
        {"external": {"type": "NodePort"}, "listeners": [{"name": "a", "port": 9093}]},
        "external cannot be combined with listeners",
    ),
    "a Secret that is not used": (
        "Cluster",
        {"certificates": {"secretName": "a"}},
        "certificates.secretName and issuerRef require source: secret",
    ),
    "two sources of a certificate": (
        "Cluster",
        {"certificates": {"source": "secret", "secretName": "a", "issuerRef": {"name": "b"}}},
        "exactly one of secretName and issuerRef",
    ),
    "a renewal before the issue": (
        "Cluster",
        {"certificates": {"validityDays": 30}},
        "certificates.renewBeforeDays must be less than validityDays",
    ),
    "a CA that ends with its certificates": (
        "Cluster",
        {"certificates": {"caValidityDays": 100}},
        "certificates.caValidityDays must be at least twice validityDays",
    ),
    "an unknown broker setting": (
        "Cluster",
        {"config/log.retention": "1"},
        "unknown broker setting log.retention; docs/reference/settings.md lists the supported settings",
    ),
    "listeners as a setting": (
        "Cluster",
        {"config/advertised.listeners": "A://b:1"},
        "listeners are derived from spec.port and spec.external",
    ),
    "a broker's id": ("Cluster", {"config/node.id": 7}, "the broker id is the ordinal of the pod"),
    "draining by setting": (
        "Cluster",
        {"config/broker.draining": "true"},
        "lower spec.brokers.replicas to drain brokers",
    ),
    "a standstill": ("Cluster", {"moving.throttleBytesPerSecond": 0}, "to stop moves, set moving.automatic: false"),
    "labels of the operator": (
        "Cluster",
        {"brokers.podLabels": {"penstock.io/cluster": "other"}},
        "podLabels cannot use the prefixes penstock.io/",
    ),
    "too little time to stop": (
        "Cluster",
        {"brokers.terminationGracePeriodSeconds": 0},
        "a broker needs time to hand over leaderships and to",
    ),
    "a replay of no period": (
        "ConsumerGroup",
        {
            "replayDeadLetters.id": "a",
            "replayDeadLetters.since": "2026-11-21T08:00:00Z",
            "replayDeadLetters.until": "2026-11-21T08:00:00Z",
        },
        "since must be before until",
    ),
    "a replay since an unknown time": (
        "ConsumerGroup",
        {"replayDeadLetters.id": "a", "replayDeadLetters.since": "yesterday"},
        "since must be an RFC 3339 date and time with a time zone",
    ),
    "a replay that is too fast": (
        "ConsumerGroup",
        {"replayDeadLetters.id": "a", "replayDeadLetters.rate": 0},
        "rate must be 1 to 100000 letters per second",
    ),
    "a reset to nowhere": ("ConsumerGroup", RESET | {"reset.to": "yesterday"}, '"earliest", "latest", "offset"'),
    "a reset without a name": ("ConsumerGroup", {"reset.to": "latest"}, "spec.reset.id: Required value"),
    "a time without a zone": (
        "ConsumerGroup",
        RESET | {"reset.to": "timestamp", "reset.timestamp": "2026-11-21T08:00:00"},
        "an RFC 3339 date and time with a time zone, such as 2026-11-21T08:00:00Z",
    ),
    "a time where none belongs": (
        "ConsumerGroup",
        RESET | {"reset.to": "latest", "reset.timestamp": "2026-11-21T08:00:00Z"},
        "timestamp requires `to: timestamp`, and the reverse",
    ),
    "an offset below zero": (
        "ConsumerGroup",
        RESET | {"reset.to": "offset", "reset.offset": -1},
        "use earliest or latest for the start or end of the log",
    ),
    "partitions of several topics": (
        "ConsumerGroup",
        RESET | {"reset.to": "latest", "reset.topics": ["a", "b"], "reset.partitions": [0]},
        "partitions requires exactly one topic in topics",
    ),
    "starting offsets of nothing": (
        "ConsumerGroup",
        {"startingOffsets": {"topics": []}},
        "should have at least 1 items",
    ),
    "an unknown group setting": ("ConsumerGroup", {"config/share.limit": "1"}, "unknown group setting share.limit"),
    "a setting out of its bounds": (
        "ConsumerGroup",
        {"config/share.isolation.level": "serializable"},
        "share.isolation.level must be",
    ),
    "a group of no type": ("ConsumerGroup", {"type": "streams"}, '"classic", "consumer", "share"'),
    "a group's id too long": ("ConsumerGroup", {"groupId": "g" * 1025}, "may not be more than 1024"),
    "a group's id of nothing": ("ConsumerGroup", {"groupId": ""}, "spec.groupId in body should be at least 1 chars"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_wrong_is_refused_with_the_cure(kubectl: Kubectl, name: str, case: Case) -> None:
    kind, changes, words = case
    assert words in kubectl.refusal(manifest(kind, name, changes))


@pytest.mark.parametrize("path", INVALID, ids=[path.stem for path in INVALID])
def test_each_example_of_a_mistake_is_refused_with_the_words_that_it_announces(kubectl: Kubectl, path: Any) -> None:
    text = path.read_text()
    assert text.startswith(MARK)
    words = text.partition("\n")[0].removeprefix(MARK)
    done = kubectl.run("apply", "-f", str(path))
    assert done.returncode != 0
    assert words in done.stderr


def test_the_examples_of_mistakes_are_found() -> None:
    assert len(INVALID) >= 12


def test_a_clusters_name_leaves_room_for_the_names_made_from_it(kubectl: Kubectl) -> None:
    assert "the name of a Cluster must have at most 40" in kubectl.refusal(manifest("Cluster", "c" * 41, {}))
    assert "start with a letter" in kubectl.refusal(manifest("Cluster", "1st", {}))


def test_an_objects_name_too_long_for_a_topic_asks_for_a_topic_name(kubectl: Kubectl) -> None:
    long = ".".join(["a" * 62] * 4)
    assert len(long) == 251
    assert "set spec.topicName" in kubectl.refusal(manifest("Topic", long, {}))
    kubectl.apply(manifest("Topic", long, {"topicName": "short"}))
