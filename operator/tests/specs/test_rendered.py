"""The objects of a cluster: golden files, and properties of each variant."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.parse import parse
from penstock_operator.ports.kube import Object
from penstock_operator.specs import compare, etcd, names, objects
from penstock_operator.specs.cluster_annotations import ClusterAnnotations, read, written
from penstock_operator.specs.hosts import certificate_hosts

GOLDEN = Path(__file__).parent / "golden"
EXTERNAL = {"endpoints": ["http://etcd-0:2379", "http://etcd-1:2379"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "smallest": {"etcd": {"endpoints": ["http://etcd:2379"]}},
    "managed-etcd-with-tls": {
        "etcd": {"endpoints": ["https://etcd:2379"], "managed": True, "tlsSecret": "etcd-client"},
        "brokers": {"replicas": 1},
    },
    "sidecar-of-three": {"etcd": {"sidecar": {"image": "etcd:3.5", "storage": {"size": "1Gi", "className": "fast"}}}},
    "sidecar-of-one": {"etcd": {"sidecar": {"image": "etcd:3.5"}}, "brokers": {"replicas": 1}},
    "node-ports": {"etcd": EXTERNAL, "external": {"type": "NodePort", "host": "example.org", "port": 9095}},
    "load-balancers": {
        "etcd": EXTERNAL,
        "external": {"type": "LoadBalancer", "name": "outside", "annotations": {"cloud.example/internal": "true"}},
        "brokers": {"replicas": 2},
    },
    "listeners": {
        "etcd": {"sidecar": {"image": "etcd:3.5"}},
        "listeners": [
            {"name": "clients", "port": 9093},
            {"name": "mutual", "port": 9092, "authentication": "tls"},
            {"name": "nodes", "port": 9094, "type": "nodeport", "host": "b{ordinal}.example.org"},
            {"name": "plain", "port": 9095, "type": "loadbalancer", "tls": False, "authentication": "none"},
            {
                "name": "routed",
                "port": 9096,
                "type": "tlsroute",
                "host": "b{ordinal}.kafka.example.org",
                "route": {
                    "gateway": "edge",
                    "namespace": "gateways",
                    "bootstrapHost": "kafka.example.org",
                    "port": 8443,
                },
            },
        ],
    },
    "listeners-with-cert-manager": {
        "etcd": EXTERNAL,
        "listeners": [
            {
                "name": "tokens",
                "port": 9093,
                "authentication": "oauth",
                "oauth": {
                    "jwksUrl": "https://id.example/keys",
                    "issuer": "https://id.example",
                    "audience": "penstock",
                    "groupsClaim": "roles",
                },
            },
            {"name": "mutual", "port": 9094, "authentication": "tls"},
        ],
        "certificates": {"source": "secret", "issuerRef": {"name": "company"}, "clientCaSecret": "clients"},
    },
    "all-of-a-pod": {
        "etcd": EXTERNAL,
        "image": "registry.example/penstock:2",
        "port": 19092,
        "zoneLabel": "example.org/rack",
        "config": {"log.retention.hours": 48, "num.partitions": 6, "log.max.open.files": 64},
        "brokers": {
            "replicas": 5,
            "storage": {"size": "100Gi", "className": "fast"},
            "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [],
            "priorityClassName": "high",
            "serviceAccountName": "brokers",
            "imagePullSecrets": [{"name": "pull"}],
            "podLabels": {"team": "data"},
            "podAnnotations": {"sidecar.istio.io/inject": "false"},
            "terminationGracePeriodSeconds": 60,
        },
    },
}


def cluster_of(spec: dict[str, Any], **annotations: str) -> Cluster:
    meta = {"name": "events", "namespace": "prod", "uid": "0b1c", "annotations": annotations}
    return parse("Cluster", {"metadata": meta, "spec": spec})


def rendered(spec: dict[str, Any], **more: Any) -> list[Object]:
    cluster = cluster_of(spec)
    members = 3 if cluster.spec.brokers.replicas >= 3 else 1
    addresses = {} if cluster.spec.external is None else {"external-0": "example.org:30001"}
    hosts = certificate_hosts(cluster, 3, ["b0.example.org", "10.0.0.7"]) if cluster.spec.listeners else ()
    facts = objects.RenderContext(
        "penstock:1", cluster.spec.brokers.replicas, etcd_members=members, external=addresses, hosts=hosts, **more
    )
    return [body for _, body in objects.render(cluster, facts)]


class Plain(yaml.SafeDumper):
    """Dumps YAML without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def shown(bodies: list[Object]) -> list[Object]:
    """Replace the script's text and the hash that depends on it."""
    for body in bodies:
        if etcd.PREPARE in body.get("data", {}):
            assert "def join_again(" in body["data"][etcd.PREPARE]
            body["data"][etcd.PREPARE] = "(the script)"
            body["metadata"]["annotations"][names.RENDERED] = "(of the script too)"
    return bodies


def stateful_set(spec: dict[str, Any], **more: Any) -> Object:
    return next(body for body in rendered(spec, **more) if body["kind"] == "StatefulSet")


def containers(body: Object) -> list[Object]:
    pod = body["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_rendered_as_its_golden_file_says(name: str, request: pytest.FixtureRequest) -> None:
    text = yaml.dump_all(shown(rendered(VARIANTS[name], is_founded=True)), Dumper=Plain, sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest operator/tests/specs --update, and look at the difference"


@pytest.mark.parametrize("name", VARIANTS)
def test_rendering_twice_gives_the_same(name: str) -> None:
    assert rendered(VARIANTS[name]) == rendered(VARIANTS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_pods_hold_to_the_restricted_security_standard(name: str) -> None:
    body = stateful_set(VARIANTS[name])
    pod = body["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod.get("hostNetwork")
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {"configMap", "emptyDir", "secret"}
    for container in containers(body):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert "hostPort" not in str(container)


@pytest.mark.parametrize("name", VARIANTS)
def test_all_that_is_owned_goes_with_the_cluster_but_the_claims(name: str) -> None:
    for body in rendered(VARIANTS[name]):
        assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["0b1c"]
        assert body["metadata"]["labels"]["penstock.io/cluster"] == "events"
    body = stateful_set(VARIANTS[name])
    assert body["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    for claim in body["spec"]["volumeClaimTemplates"]:
        assert "ownerReferences" not in claim["metadata"]
        assert claim["metadata"]["labels"]["penstock.io/cluster"] == "events"


@pytest.mark.parametrize("name", VARIANTS)
def test_selectors_find_the_pods_and_mounts_find_their_volumes(name: str) -> None:
    body = stateful_set(VARIANTS[name])
    template = body["spec"]["template"]
    for other in rendered(VARIANTS[name]):
        selector = other["spec"].get("selector", {}) if "spec" in other else {}
        wanted = dict(selector.get("matchLabels", selector))
        wanted.pop("statefulset.kubernetes.io/pod-name", None)
        assert wanted.items() <= template["metadata"]["labels"].items()
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in body["spec"]["volumeClaimTemplates"]}
    for container in containers(body):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container[kind] for kind in container if kind.endswith("Probe")]
        assert {http_probe["httpGet"]["port"] for http_probe in probes} <= ports


def advertised(body: Object, ordinal: int) -> list[tuple[str, int]]:
    """Return host and port of each listener that a broker advertises by its flags."""
    (broker,) = [each for each in body["spec"]["template"]["spec"]["containers"] if each["name"] == "broker"]
    flags = zip(broker["command"], broker["command"][1:], strict=False)
    pod = names.pod("events", ordinal)
    urls = [
        value.replace("$(POD_NAME)", pod).replace("$(POD_INDEX)", str(ordinal))
        for flag, value in flags
        if flag == "--advertise"
    ]
    addresses = [url.partition("://")[2].rpartition(":") for url in urls]
    return [(host, int(port)) for host, _, port in addresses]


@pytest.mark.parametrize("name", VARIANTS)
def test_each_broker_advertises_a_service_of_its_own_which_the_certificate_names(name: str) -> None:
    bodies, body = rendered(VARIANTS[name]), stateful_set(VARIANTS[name])
    services = {f"{s['metadata']['name']}.prod.svc": s["spec"] for s in bodies if s["kind"] == "Service"}
    routes = {
        route["spec"]["hostnames"][0]: route["spec"]["rules"][0]["backendRefs"][0]["name"]
        for route in bodies
        if route["kind"] == "TLSRoute"
    }
    replicas = body["spec"]["replicas"]
    hosts = certificate_hosts(cluster_of(VARIANTS[name]), replicas, [])
    for ordinal in range(replicas):
        for host, port in advertised(body, ordinal):
            if host in routes:
                assert services[f"{routes[host]}.prod.svc"]["selector"]["statefulset.kubernetes.io/pod-name"] == (
                    names.pod("events", ordinal)
                )
                continue
            assert services[host]["selector"]["statefulset.kubernetes.io/pod-name"] == names.pod("events", ordinal)
            assert services[host]["type"] == "ClusterIP", "its address stays when the pod restarts"
            assert services[host]["publishNotReadyAddresses"], "brokers connect to each other before they are ready"
            assert port in {each["port"] for each in services[host]["ports"]}
            assert host in hosts
    assert advertised(body, 0)
    assert not {"*.prod.svc", "*.prod.svc.cluster.local"} & set(hosts), "these would match other Services"


def test_brokers_advertise_their_pods_where_the_certificate_is_the_users() -> None:
    given = {"source": "secret", "secretName": "given"}
    listeners = [{"name": "clients", "port": 9093}, {"name": "plain", "port": 9094, "tls": False}]
    spec = {"etcd": EXTERNAL, "listeners": listeners, "certificates": given}
    assert advertised(stateful_set(spec), 1) == [
        ("events-broker-1.events-brokers.prod.svc", 9093),
        ("events-broker-1.prod.svc", 9094),
        ("events-broker-1.prod.svc", 9091),
    ]


def test_the_settings_file_is_toml_that_the_broker_reads() -> None:
    config = {"log.retention.hours": "48", "log.max.open.files": 64, "replica.selector.class": 'a "b" \\ ü'}
    spec = {"etcd": {"endpoints": ["e"], "managed": True}, "config": config}
    made = next(body for body in rendered(spec) if body["kind"] == "ConfigMap")
    assert tomllib.loads(made["data"]["penstock.toml"]) == {
        "etcd.managed": "true",
        "log.max.open.files": "64",
        "replica.selector.class": 'a "b" \\ ü',
    }, "what changes while brokers run is not in it"


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"image": "penstock:2"}, True),
        ({"config": {"log.max.open.files": "99"}}, True),
        ({"config": {"log.retention.hours": "1"}}, False),
        ({"brokers": {"resources": {"limits": {"memory": "1Gi"}}}}, True),
        ({"brokers": {"replicas": 7}}, False),
        ({"brokers": {"storage": {"size": "99Gi"}}}, False),
        ({"moving": {"throttleBytesPerSecond": 5000}}, False),
        ({"external": {"type": "NodePort"}}, True),
    ],
)
def test_brokers_are_restarted_for_what_they_read_at_their_start_alone(change: dict[str, Any], restarts: bool) -> None:
    def of(spec: dict[str, Any]) -> str:
        made = stateful_set(spec, annotations=ClusterAnnotations(draining=frozenset({4})))
        return str(made["spec"]["template"]["metadata"]["annotations"][names.RESTART])

    before = stateful_set(VARIANTS["smallest"])["spec"]["template"]["metadata"]["annotations"][names.RESTART]
    assert (of({**VARIANTS["smallest"], **change}) != before) is restarts


def test_notes_come_back_as_they_were_written() -> None:
    notes = ClusterAnnotations(frozenset({3, 4}), "why", frozenset({"a.b"}), 3, {0: "uid-of-a-pod", 1: ""})
    assert read(written(notes)) == notes
    assert read({}) == ClusterAnnotations()
    assert read(
        {"penstock.io/draining": "x,1", "penstock.io/external-unknown-to": "{", "penstock.io/etcd-members": "-"}
    ) == (ClusterAnnotations(frozenset({1})))


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": 1}, {"a": 2}, ".a"),
        ({"a": {}}, {}, None),
        ({"a": []}, {}, None),
        ({"a": "x"}, {}, ".a"),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A", "value": "1"}]}, None),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}, ".env[A].value"),
        ({"args": ["a", "b"]}, {"args": ["a"]}, ".args"),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, ".args[0]"),
        ({"resources": {"requests": {"cpu": "0.5"}}}, {"resources": {"requests": {"cpu": "500m"}}}, None),
        (
            {"resources": {"requests": {"memory": "1024Mi"}}},
            {"resources": {"requests": {"memory": "1025Mi"}}},
            ".resources.requests.memory",
        ),
        ({"spec": None}, {}, None),
    ],
)
def test_what_is_wanted_is_compared_and_what_others_add_is_not(wanted: Any, live: Any, path: str | None) -> None:
    assert compare.difference(wanted, live) == path
