"""A secured cluster: Users with passwords and certificates, every type of listener, and NetworkPolicies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.leaks import leaks, register_secrets
from penstock_kubernetes.release import CLUSTERS, TOPICS, USERS, Make, Release

LISTENERS: list[Object] = [
    {"name": "clients", "port": 9093},
    {"name": "nodes", "port": 9094, "type": "nodeport"},
    {"name": "mutual", "port": 9095, "authentication": "tls"},
    {"name": "balanced", "port": 9096, "type": "loadbalancer"},
    {"name": "routed", "port": 9097, "type": "tlsroute", "route.gateway": "edge"},
]
GATEWAY = (Path(__file__).parent / "client" / "gateway.py").read_text()
TLS_ROUTES = "tlsroutes.gateway.networking.k8s.io"
ORDERS = {"topic": "orders", "operations": ["Read", "Write"]}
TLS = {"type": "tls"}
TRY_PORTS = """
import json, socket, sys
found = {}
for address in sys.argv[1:]:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        found[address] = True
    except OSError:
        found[address] = False
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    values = [
        f"cluster.listeners[{number}].{key}={value}"
        for number, listener in enumerate(LISTENERS)
        for key, value in listener.items()
    ]
    release: Release = make_release("security", values=("rbac.gatewayApi=true", *values))
    # Names that resolve without entries in a DNS zone: Services that lead to the gateway.
    release.set(
        f"cluster.listeners[4].host=gateway-{{ordinal}}.{release.namespace}.svc",
        f"cluster.listeners[4].route.bootstrapHost=gateway.{release.namespace}.svc",
    )
    release.install()
    release.kubectl.apply(
        release.topic("orders", partitions=2),
        release.user("ana", acls=[ORDERS, {"group": "ana", "operations": ["Read"]}]),
        release.user("bob"),
        release.user("cora", authentication=TLS, acls=[ORDERS, {"group": "cora", "operations": ["Read"]}]),
        release.user("dan", authentication=TLS),
    )
    release.kubectl.wait(TOPICS, "orders")
    for user in ("ana", "bob", "cora", "dan"):
        release.kubectl.wait(USERS, user)
    return release


def exchange(release: Release, connection: str, group: str) -> dict[str, Any]:
    """Produce and consume a message with librdkafka's settings as JSON; return errors and addresses of brokers."""
    result = dict(json.loads(release.clients.run("python", "load.py", "exchange", connection, "orders", group)))
    print(result)
    return result


def changed(connection: str, **settings: str) -> str:
    """Return a connection with other settings; `_` stands for dots in names."""
    return json.dumps(json.loads(connection) | {name.replace("_", "."): text for name, text in settings.items()})


def addresses(release: Release) -> dict[str, str]:
    """Return the bootstrap servers of each listener."""
    found = release.kubectl.status(CLUSTERS, release.cluster).get("listeners") or ()
    return {listener["name"]: listener["bootstrap"] for listener in found}


def test_a_user_with_rights_produces_and_consumes_and_one_without_is_refused(release: Release) -> None:
    assert exchange(release, release.connection_of("ana"), "ana")["errors"] == []
    refused = exchange(release, release.connection_of("bob"), "bob")
    assert refused["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert exchange(release, release.connection_of("ana"), "another")["errors"] == ["GROUP_AUTHORIZATION_FAILED"]


def test_a_wrong_password_and_a_connection_in_plain_text_are_refused(release: Release) -> None:
    wrong = changed(release.connection_of("ana"), sasl_password="wrong")
    assert "_AUTHENTICATION" in exchange(release, wrong, "ana")["all_errors"]
    plain = json.dumps({"bootstrap.servers": release.bootstrap})
    assert exchange(release, plain, "ana")["errors"] == ["_MSG_TIMED_OUT"]


def test_a_client_certificate_of_the_operator_is_the_user(release: Release) -> None:
    connection = release.connection_of("cora")
    settings = json.loads(connection)
    assert settings["bootstrap.servers"].endswith(":9095")
    assert settings["security.protocol"] == "SSL"
    assert exchange(release, connection, "cora")["errors"] == []
    assert exchange(release, release.connection_of("dan"), "dan")["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]
    without = {name: text for name, text in settings.items() if name not in ("ssl.certificate.pem", "ssl.key.pem")}
    assert exchange(release, json.dumps(without), "cora")["errors"], "the listener requires a certificate"


@pytest.mark.parametrize("listener", ["nodes", "balanced"])
def test_a_listener_for_clients_outside_advertises_addresses_that_its_certificate_has(
    release: Release, listener: str
) -> None:
    bootstrap = eventually("the listener has an address", lambda: addresses(release).get(listener), 60)
    outside = changed(release.connection_of("ana"), bootstrap_servers=bootstrap)

    def is_reachable() -> dict[str, Any] | None:
        found = exchange(release, outside, "ana")
        return found if not found["errors"] and found["brokers"] == [bootstrap] else None

    # The broker restarts when its load balancer gets an address.
    eventually("brokers advertise the address", is_reachable, 120, 2)


def test_clients_reach_brokers_through_a_gateway_by_the_names_of_their_routes(release: Release) -> None:
    domain = f"{release.namespace}.svc"
    expected = {
        f"gateway.{domain}": f"{release.cluster}.{domain}:9097",
        f"gateway-0.{domain}": f"{release.cluster}-broker-0.{domain}:9097",
    }
    assert backends(release) == expected
    run_gateway(release, expected)
    bootstrap = addresses(release)["routed"]
    assert bootstrap == f"gateway.{domain}:443"
    found = exchange(release, changed(release.connection_of("ana"), bootstrap_servers=bootstrap), "ana")
    assert found["errors"] == []
    assert found["brokers"] == [f"gateway-0.{domain}:443"]


def backends(release: Release) -> dict[str, str]:
    """Return HOST:PORT of the Service by host of the TLSRoutes."""
    found = {}
    for route in release.kubectl.list(TLS_ROUTES, f"penstock.io/cluster={release.cluster}"):
        assert route["spec"]["parentRefs"][0]["name"] == "edge"
        (host,), (rule,) = route["spec"]["hostnames"], route["spec"]["rules"]
        (backend,) = rule["backendRefs"]
        found[host] = f"{backend['name']}.{release.namespace}.svc:{backend['port']}"
    return found


def run_gateway(release: Release, backends: dict[str, str]) -> None:
    """Run a gateway that passes TLS through to `backends`, with a Service for each of its names, and wait for it."""
    labels = {"app": "gateway"}
    body = pod(release, "gateway", ["python", "-c", GATEWAY, json.dumps(backends)])
    (container,) = body["spec"]["containers"]
    container["readinessProbe"] = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
    ports = [{"port": 443, "targetPort": 8443}]
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": host.partition(".")[0]},
            "spec": {"selector": labels, "ports": ports},
        }
        for host in backends
    ]
    body["metadata"]["labels"] = labels
    release.kubectl.apply(body, *services)
    release.kubectl("wait", "--for=condition=Ready", "pod/gateway", "--timeout=60s")


def pod(release: Release, name: str, command: list[str]) -> Object:
    """Return a pod that runs a command in the brokers' image."""
    prefix, tag = os.environ.get("E2E_IMAGE_PREFIX", "localhost/"), os.environ["E2E_IMAGE_TAG"]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    image = f"{prefix}penstock-broker:{tag}"
    container = {"name": "main", "image": image, "command": command, "securityContext": security}
    profile = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": profile, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_kubectl_shows_how_users_authenticate_and_what_they_may_do(release: Release) -> None:
    shown = release.kubectl("get", USERS)
    print(shown)
    header, *rows = (line.split() for line in shown.splitlines())
    assert header == ["NAME", "READY", "AUTHENTICATION", "ACLS", "ROTATED", "AGE"]
    found = {row[0]: row[1:4] for row in rows}
    assert found["ana"] == ["True", "scram-sha-512", "3"]
    assert found["bob"] == ["True", "scram-sha-512", "0"]
    assert found["cora"] == ["True", "tls", "3"]
    described = release.kubectl("describe", USERS, "ana")
    assert json.loads(release.connection_of("ana"))["sasl.password"] not in described


def test_network_policies_leave_only_the_listeners_for_clients_open(release: Release) -> None:
    domain = f"{release.namespace}.svc"
    ports = {
        f"{release.cluster}.{domain}:9093": True,
        f"{release.cluster}.{domain}:9091": False,
        f"{release.cluster}-etcd-0.{domain}:2379": False,
        f"{release.cluster}-etcd-0.{domain}:2380": False,
    }
    release.kubectl.apply(pod(release, "stranger", ["python", "-c", TRY_PORTS, *ports]))
    ended = lambda: release.kubectl.status("pod", "stranger").get("phase") in ("Succeeded", "Failed")  # noqa: E731
    eventually("the pod has tried all ports", ended, 60)
    found = json.loads(release.kubectl("logs", "stranger"))
    assert not all(found.values()), "this cluster does not enforce NetworkPolicies: its network plugin has to"
    assert found == ports


def test_no_secret_is_in_logs_events_statuses_or_descriptions(release: Release) -> None:
    register_secrets(release.kubectl)
    release.kubectl("annotate", USERS, "bob", "penstock.io/rotate-password=once")
    eventually("the password is replaced", lambda: "PasswordChanged" in release.kubectl.events("bob"), 60)
    register_secrets(release.kubectl)
    assert leaks(release.kubectl) == []


def test_deleting_a_user_revokes_its_password_and_rights(release: Release) -> None:
    connection, cora = release.connection_of("ana"), release.connection_of("cora")
    release.kubectl("delete", USERS, "ana")

    def is_refused() -> bool:
        return "_AUTHENTICATION" in exchange(release, connection, "ana")["all_errors"]

    eventually("the password is refused", is_refused, 60)
    assert "User:ana" not in release.penstock("acl", "list")
    eventually("its Secret is deleted", lambda: not release.kubectl.get("secret", "ana"), 60)
    release.kubectl("delete", USERS, "cora")
    revoked = lambda: exchange(release, cora, "cora")["errors"] == ["TOPIC_AUTHORIZATION_FAILED"]  # noqa: E731
    eventually("its certificate has no rights", revoked, 60)
