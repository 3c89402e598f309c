"""Certificates of a Cluster over virtual months: issued, renewed, and the CA rolled over without an interruption."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from clusters.cluster_kit import EPOCH, NAME, NS, World
from pki.handshakes import Party, handshake

from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.kube import CERT_MANAGER_CERTIFICATES, CLUSTERS, NETWORK_POLICIES, PODS, SECRETS, SERVICES
from penstock_operator.ports.kube import Object as Body
from penstock_operator.specs import names
from penstock_operator.specs.certificates import (
    AUTHORITY_KEY,
    CA,
    CERTIFICATE,
    KEY,
    read_certificate,
    read_certificates,
    text_of,
)

DAY = 86_400.0
TLS: list[dict[str, Any]] = [{"name": "clients", "port": 9093}]
QUICK = {"caOverlapHours": 0}
BROKERS = range(3)


def secret(world: World, name: str) -> Body:
    body = world.kube.read(SECRETS, NS, name)
    assert body is not None, f"Secret {name} exists"
    return body


def at(world: World) -> datetime:
    return datetime.fromtimestamp(EPOCH + world.time, UTC)


def annotate(world: World, **annotations: str) -> None:
    body = world.kube.read(CLUSTERS, NS, NAME)
    assert body is not None
    world.kube.put(CLUSTERS, {**body, "metadata": {**body["metadata"], "annotations": annotations}})


def rotate(world: World, text: str) -> None:
    annotate(world, **{"penstock.io/rotate-ca": text})


async def later(world: World, seconds: float) -> None:
    """Advance the time without reconciliations, and let the resync do what is due."""
    world.time += seconds
    world.queue.put(ObjectKey("Cluster", NS, NAME))
    await world.run(20)


def check_that_all_can_connect(world: World) -> None:
    """Brokers connect to brokers, and the operator and a client with the published CA to each broker."""
    mounted = [world.prober.mounted(broker) for broker in BROKERS]
    for client, server in itertools.permutations(mounted, 2):
        handshake(Party.of(client), Party.of(server))
    published, access = text_of(secret(world, "c-ca"), CA), world.connections.access
    assert access is not None
    assert access.certificate is not None
    operator = Party(access.certificate.ca, access.certificate.certificate, access.certificate.key)
    for server in mounted:
        handshake(operator, Party.of(server))
        handshake(Party(published), Party.of(server), is_mutual=False)


async def run_checked(world: World, seconds: float) -> list[str]:
    """Advance the time, check all connections at each step, and return the reasons of condition Certificates."""
    seen: list[str] = []
    checked: object = None
    until = world.time + seconds
    while world.time < until:
        await world.run(5)
        now = [world.prober.mounted(broker) for broker in BROKERS], world.connections.access, secret(world, "c-ca")
        if now != checked:
            check_that_all_can_connect(world)
            checked = now
        seen.append(world.condition("Certificates")[1])
    return seen


async def formed_with_tls(**spec: Any) -> World:
    world = World()
    world.apply(**{"listeners": TLS, "certificates": QUICK, **spec})
    await world.run(90)
    assert world.condition("Ready") == ("True", "Serving"), world.message("Ready")
    assert world.condition("Certificates") == ("True", "Issued"), world.message("Certificates")
    return world


async def test_a_cluster_with_listeners_gets_certificates_before_its_pods() -> None:
    world = await formed_with_tls()
    check_that_all_can_connect(world)
    assert world.pods_made == 3
    assert world.restart_action == []
    broker = read_certificate(text_of(secret(world, "c-broker-tls"), CERTIFICATE))
    assert broker.subject == "CN=c-broker,O=penstock-internal"
    assert broker.expires - at(world) > timedelta(days=89)
    assert world.connections.access is not None
    assert world.connections.access.port == 9091
    writes = world.kube.writes
    await world.run(120)
    assert world.kube.writes == writes, "in the steady state, nothing is written"


async def test_the_key_of_the_ca_is_in_no_secret_that_pods_mount() -> None:
    world = await formed_with_tls()
    key = text_of(secret(world, "c-ca-key"), AUTHORITY_KEY)
    assert "PRIVATE KEY" in key
    volumes = world.stateful_set["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert mounted == {"c-broker-tls"}
    for name in {*mounted, "c-ca", "c-operator-tls"}:
        body = secret(world, name)
        assert AUTHORITY_KEY not in body["data"]
        assert key not in {text_of(body, each) for each in body["data"]}


async def test_secrets_never_appear_in_events_status_or_cache() -> None:
    world = await formed_with_tls()
    await run_checked(world, 30)
    shown = str(world.kube.recorded) + str(world.kube.read(CLUSTERS, NS, NAME))
    assert "PRIVATE KEY" not in shown
    assert "BEGIN" not in shown
    assert "key=" not in repr(world.connections.access)


async def test_certificates_are_renewed_a_month_before_they_expire_and_brokers_are_not_restarted() -> None:
    world = await formed_with_tls()
    first = secret(world, "c-broker-tls")
    await later(world, 59 * DAY)
    assert secret(world, "c-broker-tls")["data"] == first["data"]
    await later(world, 2 * DAY)
    renewed = secret(world, "c-broker-tls")
    assert renewed["data"][CERTIFICATE] != first["data"][CERTIFICATE]
    assert renewed["data"][KEY] != first["data"][KEY], "with another key"
    assert renewed["data"][CA] == first["data"][CA]
    assert read_certificate(text_of(renewed, CERTIFICATE)).expires - at(world) > timedelta(days=89)
    assert world.restart_action == []
    assert "CertificateIssued" in world.recorded
    check_that_all_can_connect(world)


async def test_a_rollover_of_the_ca_interrupts_no_connection_and_survives_restarts_of_the_operator() -> None:
    world = await formed_with_tls()
    before = read_certificate(text_of(secret(world, "c-ca"), CA))
    rotate(world, "1")
    seen = []
    for _ in range(16):
        seen += await run_checked(world, 20)
        world.start()
    lasting = [reason for reason in seen if reason not in ("Issuing", "DroppingCa")]
    steps = [reason for reason, _ in itertools.groupby(lasting)]
    assert steps == ["PublishingCa", "IssuingCertificates", "Issued"]
    (after,) = read_certificates(text_of(secret(world, "c-ca"), CA))
    assert after.fingerprint != before.fingerprint
    assert not world.prober.accepts(0, before.pem)
    assert secret(world, "c-ca-key")["data"].keys() == {CA, AUTHORITY_KEY}
    assert world.restart_action == []
    assert world.condition("Progressing") == ("False", "Done")
    fingerprint = after.fingerprint
    await run_checked(world, 60)
    assert read_certificate(text_of(secret(world, "c-ca"), CA)).fingerprint == fingerprint, "one rollover per text"


@pytest.mark.parametrize("step", ["PublishingCa", "IssuingCertificates"])
async def test_a_rollover_waits_for_a_broker_whose_files_are_not_updated(step: str) -> None:
    world = await formed_with_tls()
    rotate(world, "1")
    if step == "IssuingCertificates":
        while world.condition("Certificates")[1] != step:
            await world.run(5)
    world.prober.stuck[1] = world.time - world.prober.delay_s
    await run_checked(world, 400)
    assert world.condition("Certificates") == ("True", step)
    assert "broker 1" in world.message("Certificates")
    assert world.condition("Progressing") == ("True", step)
    world.prober.stuck.clear()
    await run_checked(world, 400)
    assert world.condition("Certificates") == ("True", "Issued")


async def test_clients_have_a_day_for_each_step_of_a_rollover() -> None:
    world = await formed_with_tls(certificates={})
    rotate(world, "1")
    await run_checked(world, 300)
    assert world.condition("Certificates") == ("True", "PublishingCa")
    assert "for clients" in world.message("Certificates")
    assert world.prober.handshakes == 0, "brokers are not probed before the step can end"
    await later(world, DAY)
    await run_checked(world, 300)
    assert world.condition("Certificates") == ("True", "IssuingCertificates")
    assert len(read_certificates(text_of(secret(world, "c-ca"), CA))) == 2
    await later(world, DAY)
    await run_checked(world, 100)
    assert world.condition("Certificates") == ("True", "Issued")


async def test_the_ca_is_replaced_while_it_outlives_the_certificates_that_it_issues() -> None:
    world = await formed_with_tls(certificates={**QUICK, "caValidityDays": 200})
    before = text_of(secret(world, "c-ca"), CA)
    for _ in range(10):
        await later(world, 10 * DAY)
    assert text_of(secret(world, "c-ca"), CA) == before
    await later(world, 12 * DAY)
    await run_checked(world, 400)
    assert text_of(secret(world, "c-ca"), CA) != before
    assert world.condition("Certificates") == ("True", "Issued")


async def test_a_lost_key_of_the_ca_is_replaced_by_a_rollover() -> None:
    world = await formed_with_tls()
    world.kube.remove(SECRETS, NS, "c-ca-key")
    await later(world, 60)
    await run_checked(world, 400)
    assert world.condition("Certificates") == ("True", "Issued")
    assert len(read_certificates(text_of(secret(world, "c-ca"), CA))) == 1


async def test_a_secret_that_cannot_be_read_is_told_and_nothing_is_overwritten() -> None:
    world = await formed_with_tls()
    broken = secret(world, "c-ca-key") | {"data": {CA: "AAAA"}}
    world.kube.put(SECRETS, broken)
    await later(world, 60)
    assert world.condition("Certificates") == ("False", "SecretInvalid")
    assert "delete it" in world.message("Certificates")
    assert secret(world, "c-ca-key")["data"] == {CA: "AAAA"}
    assert world.condition("Ready")[0] == "True"


async def test_secrets_that_cannot_be_read_are_told_and_no_broker_is_stopped() -> None:
    world = await formed_with_tls()
    world.kube.forbidden.add(SECRETS)
    await later(world, 60 * DAY)
    assert world.condition("Certificates") == ("False", "SecretUnreadable")
    assert "secrets is forbidden" in world.message("Certificates")
    assert world.restart_action == []
    world.kube.forbidden.clear()
    await world.run(60)
    assert world.condition("Certificates") == ("True", "Issued")


async def test_a_secret_of_another_owner_is_not_touched() -> None:
    world = World()
    foreign = {"metadata": {"name": "c-broker-tls", "namespace": NS}, "data": {"a": "Yg=="}}
    world.kube.put(SECRETS, foreign)
    world.apply(listeners=TLS)
    await world.run(60)
    assert secret(world, "c-broker-tls")["data"] == {"a": "Yg=="}
    assert "belongs to another owner" in world.message("Progressing")
    assert world.pods_made == 0


async def test_the_certificate_contains_the_addresses_outside() -> None:
    outside = [
        {"name": "nodes", "port": 9094, "type": "nodeport", "host": "b{ordinal}.example.org"},
        {"name": "lb", "port": 9095, "type": "loadbalancer"},
    ]
    world = await formed_with_tls(listeners=[*TLS, *outside])
    service = world.kube.read(SERVICES, NS, "c-broker-1-lb")
    assert service is not None
    world.kube.put(SERVICES, service | {"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.7"}]}}})
    await world.run(60)
    hosts = read_certificate(text_of(secret(world, "c-broker-tls"), CERTIFICATE)).hosts
    assert {"b0.example.org", "b2.example.org", "10.0.0.7", "*.c-brokers.ns.svc", "c.ns.svc"} <= hosts
    found = {each.name: each.bootstrap for each in world.cluster.status.listeners}
    assert found == {
        "clients": "c.ns.svc:9093",
        "nodes": "b0.example.org:30000,b1.example.org:30001,b2.example.org:30002",
        "lb": "10.0.0.7:9095",
    }


async def test_the_certificate_of_clients_may_come_from_a_secret_which_pods_wait_for() -> None:
    world = World()
    world.apply(listeners=TLS, certificates={"source": "secret", "secretName": "given"})
    await world.run(60)
    assert world.condition("Certificates") == ("False", "SecretMissing")
    assert world.pods_made == 0
    other = await formed_with_tls()
    given = given_by(other)
    given["metadata"]["name"] = "given"
    world.kube.put(SECRETS, given)
    await later(world, 60)
    assert world.condition("Certificates") == ("True", "Issued")
    assert world.condition("Ready")[0] == "True"
    assert text_of(secret(world, "c-ca"), CA) == text_of(secret(other, "c-ca"), CA), "the CA that clients need"
    assert text_of(secret(world, "c-broker-tls"), CA) != text_of(secret(world, "c-ca"), CA)


async def test_cert_manager_is_asked_for_a_certificate() -> None:
    world = World()
    certificates = {"source": "secret", "issuerRef": {"name": "company", "kind": "ClusterIssuer"}}
    world.apply(listeners=TLS, certificates=certificates)
    await world.run(60)
    asked = world.kube.read(CERT_MANAGER_CERTIFICATES, NS, "c-client-tls")
    assert asked is not None
    assert asked["spec"]["issuerRef"] == {"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert "c.ns.svc" in asked["spec"]["dnsNames"]
    assert asked["spec"]["secretName"] == "c-client-tls"
    assert "waiting for cert-manager" in world.message("Certificates")
    writes = world.kube.writes
    await world.run(30)
    assert world.kube.writes == writes


async def test_brokers_that_are_added_start_with_a_certificate_that_names_them() -> None:
    world = await formed_with_tls()
    world.apply(listeners=TLS, certificates=QUICK, brokers={"replicas": 5})
    while world.pods_made < 4:
        await world.run(0.5)
        hosts = read_certificate(text_of(secret(world, "c-broker-tls"), CERTIFICATE)).hosts
    assert {f"c-broker-{ordinal}.ns.svc" for ordinal in range(5)} <= hosts


async def test_brokers_wait_until_cert_manager_has_issued_a_certificate_with_their_names() -> None:
    world = World()
    certificates = {"source": "secret", "issuerRef": {"name": "company", "kind": "ClusterIssuer"}}
    world.apply(listeners=TLS, certificates=certificates)
    other = await formed_with_tls(brokers={"replicas": 1})
    world.kube.put(SECRETS, given_by(other))
    await later(world, 60)
    assert world.pods_made == 0
    assert world.message("Certificates").endswith("no certificate for c-broker-1.ns.svc yet: waiting for cert-manager")
    world.kube.put(SECRETS, given_by(await formed_with_tls()))
    await world.run(60)
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Certificates") == ("True", "Issued")


def given_by(world: World) -> Body:
    """Return the Secret that cert-manager writes, with the brokers' certificate of another cluster."""
    data = {key: secret(world, "c-broker-tls")["data"][key] for key in (CERTIFICATE, KEY, CA)}
    return {"metadata": {"name": "c-client-tls", "namespace": NS}, "data": data}


async def test_brokers_change_to_tls_and_back_while_each_can_connect_to_each_other() -> None:
    world = World()
    world.apply(external={"type": "NodePort", "host": "example.org"})
    await world.run(30)

    async def changed(**spec: Any) -> None:
        world.apply(**spec)
        for _ in range(200):
            await world.run(1)
            pods = (await world.controller._observer.observe(world.cluster, memory(world), world.stamp(), 0.0)).pods
            for one, other in itertools.permutations(pods, 2):
                assert one.inter_broker in other.listeners
            check_advertised_ports(world)
        assert world.condition("Rolled") == ("True", "AsWanted"), world.message("Rolled")

    world.most_away = 0
    await changed(listeners=TLS, certificates=QUICK)
    assert world.most_away == 1
    assert set(world.restart_action) == {0, 1, 2}
    assert 6 < len(world.restart_action) <= 9, "two or three restarts of each broker"
    ports = world.stateful_set["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert [(port["name"], port["containerPort"]) for port in ports] == [
        ("clients", 9093), ("http", 8080), ("brokers", 9091),
    ]  # fmt: skip
    assert world.kube.read(NETWORK_POLICIES, NS, names.network_policy(NAME)) is not None
    await changed()
    assert world.most_away == 1
    assert 12 < len(world.restart_action) <= 18
    assert world.kube.read(NETWORK_POLICIES, NS, names.network_policy(NAME)) is None
    assert world.connections.access is not None
    assert (world.connections.access.port, world.connections.access.certificate) == (9092, None)


def check_advertised_ports(world: World) -> None:
    """Each pod advertises ports of its Service only, whichever listeners it was started with."""
    for pod in world.kube.objects.list_objects(PODS, NS):
        name, command = pod["metadata"]["name"], pod["spec"]["containers"][0]["command"]
        flags = itertools.pairwise(command)
        advertised = {url.rpartition(":")[2] for flag, url in flags if flag == "--advertise" and "$(POD_NAME)" in url}
        service = world.kube.read(SERVICES, NS, name)
        assert service is not None
        assert advertised
        assert advertised <= {str(port["port"]) for port in service["spec"]["ports"]}


def memory(world: World) -> Any:
    return next(iter(world.controller._memories.values()))


ETCD: dict[str, Any] = {
    "endpoints": ["https://e-0.ns.svc:2379"],
    "certificate": {"secretName": "e-tls", "hosts": ["e.ns.svc", "e-0.ns.svc"]},
}


async def test_etcd_and_brokers_get_a_certificate_of_a_ca_without_a_key() -> None:
    world = await formed_with_tls(etcd=ETCD)
    body = secret(world, "e-tls")
    made, authority = read_certificate(text_of(body, CERTIFICATE)), read_certificate(text_of(body, CA))
    assert made.hosts == {"e.ns.svc", "e-0.ns.svc"}
    assert made.has_key(text_of(body, KEY))
    assert made.is_issued_by(authority)
    assert not made.is_issued_by(read_certificate(text_of(secret(world, "c-ca"), CA))), (
        "clients' certificates are of it"
    )
    assert made.expires - at(world) > timedelta(days=3_649)
    handshake(Party.of(body), Party.of(body), host="e-0.ns.svc")
    assert AUTHORITY_KEY not in body["data"]
    spec = world.stateful_set["spec"]["template"]["spec"]
    assert {v["name"]: v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}["etcd-tls"] == "e-tls"


async def test_the_certificate_of_etcd_outlives_its_cluster_and_is_never_replaced() -> None:
    world = await formed_with_tls(etcd=ETCD)
    before = secret(world, "e-tls")
    assert "ownerReferences" not in before["metadata"]
    rotate(world, "now")
    await world.run(90)
    await later(world, 2_000 * DAY)
    assert secret(world, "e-tls") == before


async def test_no_pod_starts_before_the_certificate_of_etcd_exists() -> None:
    world = World()
    world.apply(listeners=TLS, etcd=ETCD)
    seen: list[bool] = []
    while not world.pods_made:
        await world.run(0.5)
        seen.append(world.kube.read(SECRETS, NS, "e-tls") is not None)
    assert seen[-1]
