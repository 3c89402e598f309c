"""Listeners that clients reach by a Gateway: TLSRoutes of the Gateway API."""

from __future__ import annotations

from typing import Any

from clusters.cluster_kit import NS, World
from clusters.test_certificates import QUICK, formed_with_tls, later, secret

from penstock_operator.ports.kube import CONFIG_MAPS, TLS_ROUTES, KubeError, Object
from penstock_operator.specs.certificates import CERTIFICATE, read_certificate, text_of

CLIENTS: dict[str, Any] = {"name": "clients", "port": 9093}
ROUTED: dict[str, Any] = {
    "name": "routed",
    "port": 9094,
    "type": "tlsroute",
    "host": "b{ordinal}.kafka.example.org",
    "route": {"gateway": "edge", "bootstrapHost": "kafka.example.org"},
}


def routes(world: World) -> dict[str, Object]:
    found = {body["metadata"]["name"]: body for (kind, _, _), body in world.kube.stored.items() if kind == TLS_ROUTES}
    return dict(sorted(found.items()))


def backends(world: World) -> dict[str, tuple[str, int]]:
    """Return Service and port by host."""
    found = {}
    for body in routes(world).values():
        (host,), (rule,) = body["spec"]["hostnames"], body["spec"]["rules"]
        (backend,) = rule["backendRefs"]
        found[host] = (backend["name"], backend["port"])
    return found


async def formed_with_routes(**spec: Any) -> World:
    return await formed_with_tls(listeners=[CLIENTS, ROUTED], **spec)


async def test_each_broker_and_the_bootstrap_host_have_a_route_to_their_service() -> None:
    world = await formed_with_routes()
    assert backends(world) == {
        "kafka.example.org": ("c", 9094),
        "b0.kafka.example.org": ("c-broker-0", 9094),
        "b1.kafka.example.org": ("c-broker-1", 9094),
        "b2.kafka.example.org": ("c-broker-2", 9094),
    }
    assert all(body["spec"]["parentRefs"] == [{"name": "edge"}] for body in routes(world).values())
    (routed,) = [each for each in world.cluster.status.listeners if each.name == "routed"]
    assert routed.bootstrap == "kafka.example.org:443"
    writes = world.kube.writes
    await world.run(30)
    assert world.kube.writes == writes


async def test_the_certificate_has_the_hosts_of_the_routes() -> None:
    world = await formed_with_routes()
    hosts = read_certificate(text_of(secret(world, "c-broker-tls"), CERTIFICATE)).hosts
    assert {"kafka.example.org", *(f"b{ordinal}.kafka.example.org" for ordinal in range(3))} <= hosts


async def test_without_a_bootstrap_host_clients_begin_with_the_brokers() -> None:
    world = await formed_with_tls(listeners=[CLIENTS, ROUTED | {"route": {"gateway": "edge", "port": 8443}}])
    (routed,) = [each for each in world.cluster.status.listeners if each.name == "routed"]
    assert routed.bootstrap == ",".join(f"b{ordinal}.kafka.example.org:8443" for ordinal in range(3))


async def test_the_routes_of_removed_brokers_and_listeners_are_deleted_and_then_not_read_any_more() -> None:
    world = await formed_with_routes(brokers={"replicas": 4})
    assert "c-broker-3-routed" in routes(world)
    world.apply(certificates=QUICK, listeners=[CLIENTS, ROUTED], brokers={"replicas": 3})
    await later(world, 60)
    assert list(routes(world)) == ["c-bootstrap-routed", *(f"c-broker-{ordinal}-routed" for ordinal in range(3))]
    world.apply(certificates=QUICK, listeners=[CLIENTS], brokers={"replicas": 3})
    await later(world, 60)
    assert routes(world) == {}
    world.kube.forbidden.add(TLS_ROUTES)  # a read would be an error in the status
    await later(world, 60)
    assert world.condition("Progressing")[0] == "False", world.message("Progressing")
    assert world.condition("Progressing")[1] != "Failing"
    config_map = world.kube.read(CONFIG_MAPS, NS, "c-broker")
    assert config_map is not None
    assert "penstock.io/routes" not in config_map["metadata"]["annotations"]


async def test_routes_are_deleted_although_the_first_attempt_fails() -> None:
    world = await formed_with_routes()
    world.kube.fail("delete", KubeError(500, "InternalError", "try again"), times=4, resource=TLS_ROUTES)
    world.apply(certificates=QUICK, listeners=[CLIENTS])
    await later(world, 60)
    assert routes(world) == {}


async def test_a_route_that_another_client_changed_is_repaired() -> None:
    world = await formed_with_routes()
    body = world.kube.read(TLS_ROUTES, NS, "c-broker-1-routed")
    assert body is not None
    body["spec"]["hostnames"] = ["elsewhere.example.org"]
    world.kube.put(TLS_ROUTES, body)
    await later(world, 700)
    assert backends(world)["b1.kafka.example.org"] == ("c-broker-1", 9094)


async def test_a_users_route_with_the_clusters_labels_stays() -> None:
    world = await formed_with_routes()
    body = world.kube.read(TLS_ROUTES, NS, "c-broker-1-routed")
    assert body is not None
    metadata = {"name": "copied", "namespace": NS, "labels": body["metadata"]["labels"]}
    world.kube.put(TLS_ROUTES, {"metadata": metadata, "spec": body["spec"]})
    world.apply(certificates=QUICK, listeners=[CLIENTS])
    await later(world, 60)
    assert list(routes(world)) == ["copied"]


async def test_without_the_gateway_api_the_status_says_what_to_install_and_the_brokers_run() -> None:
    world = World()
    world.kube.crds_gone.add(TLS_ROUTES)
    world.apply(certificates=QUICK, listeners=[CLIENTS, ROUTED])
    await world.run(90)
    assert world.condition("Ready")[0] == "True"
    assert world.condition("Progressing") == ("False", "Failing")
    assert "install the Gateway API, 1.5 or later" in world.message("Progressing")
    world.kube.crds_gone.clear()
    await later(world, 700)
    assert len(routes(world)) == 4
    assert world.condition("Progressing")[1] != "Failing"


async def test_without_the_permission_the_status_names_the_value_of_the_chart() -> None:
    world = World()
    world.kube.forbidden.add(TLS_ROUTES)
    world.apply(certificates=QUICK, listeners=[CLIENTS, ROUTED])
    await world.run(90)
    assert "set rbac.gatewayApi: true" in world.message("Progressing")


async def test_a_cluster_forgets_its_routes_when_the_gateway_api_is_uninstalled() -> None:
    world = await formed_with_routes()
    world.kube.crds_gone.add(TLS_ROUTES)
    for name in routes(world):
        world.kube.remove(TLS_ROUTES, NS, name)
    world.apply(certificates=QUICK, listeners=[CLIENTS])
    await later(world, 60)
    assert world.condition("Progressing")[1] != "Failing"
