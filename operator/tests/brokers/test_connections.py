"""Gateways of Clusters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.brokers.connections import BrokerConnections, parse_override
from penstock_operator.ports.brokers import HIBERNATED, BrokerAccess, BrokersError, ClientCertificate


def bodies(**more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {("ns", "c"): {"metadata": {"name": "c", "namespace": "ns", "uid": "1"}, "spec": more}}


def no_service(namespace: str, name: str) -> None:
    return None


async def test_a_clusters_brokers_are_behind_its_service() -> None:
    there = bodies()
    connections = BrokerConnections(lambda ns, name: there.get((ns, name)), no_service)
    found = connections.gateway_for("ns", "c")
    assert found is not None
    assert found._connection.bootstrap == "c.ns.svc:9092"
    assert connections.gateway_for("ns", "c") is found
    assert connections.gateway_for("ns", "other") is None
    await connections.close()


async def test_a_cluster_made_anew_or_at_another_port_is_connected_anew() -> None:
    there = bodies()
    connections = BrokerConnections(lambda ns, name: there.get((ns, name)), no_service)
    first = connections.gateway_for("ns", "c")
    there["ns", "c"]["metadata"]["uid"] = "2"
    second = connections.gateway_for("ns", "c")
    assert second is not first
    there["ns", "c"]["spec"]["port"] = 9192
    third = connections.gateway_for("ns", "c")
    assert third is not None
    assert third is not second
    assert third._connection.bootstrap == "c.ns.svc:9192"
    there.clear()
    assert connections.gateway_for("ns", "c") is None
    await connections.close()


async def test_an_address_may_be_given_instead() -> None:
    there = bodies()
    connections = BrokerConnections(
        lambda ns, name: there.get((ns, name)), no_service, override="ns/c=127.0.0.1:1;127.0.0.1:2"
    )
    found = connections.gateway_for("ns", "c")
    assert found is not None
    assert found._connection.bootstrap == "127.0.0.1:1"
    await connections.close()


async def test_a_cluster_with_listeners_is_connected_by_the_certificate_that_its_controller_sets() -> None:
    there = bodies(listeners=[{"name": "clients", "port": 9093}])
    connections = BrokerConnections(lambda ns, name: there.get((ns, name)), lambda ns, name: {})
    early = connections.gateway_for("ns", "c")
    assert early is not None
    with pytest.raises(BrokersError, match=r"certificate for c\.ns\.svc:9092 does not exist yet") as refused:
        await early.describe_cluster()
    assert refused.value.is_passing
    first = BrokerAccess(9091, ClientCertificate("ca", "certificate", "key"))
    connections.set_access("ns", "c", first)
    found = connections.gateway_for("ns", "c")
    assert found is not None
    assert found._connection.bootstrap == "c.ns.svc:9091"
    connections.set_access("ns", "c", BrokerAccess(9091, ClientCertificate("ca", "certificate", "key")))
    assert connections.gateway_for("ns", "c") is found
    connections.set_access("ns", "c", BrokerAccess(9091, ClientCertificate("ca", "renewed", "key")))
    assert connections.gateway_for("ns", "c") is not found
    there.clear()
    assert connections.gateway_for("ns", "c") is None
    there.update(bodies(listeners=[{"name": "clients", "port": 9093}]))
    again = connections.gateway_for("ns", "c")
    assert again is not None
    with pytest.raises(BrokersError, match="does not exist yet"):
        await again.describe_cluster()
    await connections.close()


@pytest.mark.integration
async def test_a_service_that_is_not_there_yet_is_not_looked_up() -> None:
    there, services = bodies(port=1), {}
    connections = BrokerConnections(lambda ns, name: there.get((ns, name)), lambda ns, name: services.get((ns, name)))
    found = connections.gateway_for("ns", "c")
    assert found is not None
    with pytest.raises(BrokersError, match="does not exist yet") as refused:
        await found.describe_cluster()
    assert refused.value.is_passing
    services["ns", "c"] = {}
    with pytest.raises(BrokersError) as unknown:
        await found.describe_cluster()
    assert unknown.value.code != "NoService"
    await connections.close()


@pytest.mark.parametrize(("reason", "code"), [("Hibernating", HIBERNATED), ("Hibernated", HIBERNATED), ("Waking", "")])
async def test_brokers_of_a_hibernated_cluster_are_not_contacted(reason: str, code: str) -> None:
    there = bodies(port=1)
    connections = BrokerConnections(lambda ns, name: there.get((ns, name)), no_service)
    found = connections.gateway_for("ns", "c")
    assert found is not None
    there["ns", "c"]["status"] = {"conditions": [{"type": "Hibernated", "reason": reason}]}
    with pytest.raises(BrokersError) as refused:
        await found.describe_cluster()
    assert refused.value.code == (code or "NoService")
    assert refused.value.is_hibernated == bool(code)
    await connections.close()


@pytest.mark.integration
def test_overrides_are_read_or_refused() -> None:
    assert parse_override("") == {}
    assert parse_override("h:1,g:2") == {None: "h:1,g:2"}
    assert parse_override("a/b=h:1; c/d=g:2") == {("a", "b"): "h:1", ("c", "d"): "g:2"}
    with pytest.raises(ValueError, match="expected host:port or"):
        parse_override("b=h:1")
    for wrong in ("::1:9092", "a/b=h:0", "a/b=h:1;http://h:8080"):
        with pytest.raises(ValueError, match="PENSTOCK_BOOTSTRAP_OVERRIDE: invalid bootstrap server"):
            parse_override(wrong)
    assert parse_override("a/b=[::1]:9092") == {("a", "b"): "[::1]:9092"}
