"""A real broker with the settings of a Cluster, and with certificates that are swapped as a kubelet does it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import Gateway
from penstock_operator.brokers.tls_prober import TlsProber
from penstock_operator.model.parse import parse
from penstock_operator.pki.authority import CertificateRequest, KeyPair, create_authority, issue
from penstock_operator.ports.brokers import BrokersError, ClientCertificate, ConfigPatch
from penstock_operator.specs import settings
from penstock_operator.specs.certificates import read_certificate
from penstock_operator.specs.security import BROKER_TLS_DIR, ORGANIZATION

pytestmark = pytest.mark.integration

WAIT_S = 60.0
REFUSED_PROBES = 30
CHANGE = ConfigPatch("", {"log.retention.hours": "5"})


def authority() -> KeyPair:
    return create_authority("c-ca", ORGANIZATION, datetime.now(UTC), 30)


def certificate(by: KeyPair, name: str, *hosts: str) -> KeyPair:
    return issue(by, CertificateRequest(name, ORGANIZATION, 10, hosts), datetime.now(UTC))


def mount(directory: Path, pair: KeyPair, trusted: str, version: str) -> None:
    """Write the files of a Secret and swap the link to them."""
    inside = directory / version
    inside.mkdir(parents=True)
    for name, text in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", trusted)):
        (inside / name).write_text(text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..new").symlink_to(version)
    os.replace(directory / "..new", directory / "..data")


def start_file(directory: Path, home: Path, **spec: Any) -> Path:
    body = {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"etcd": {"endpoints": ["e"]}, **spec}}
    text = settings.toml(settings.start_settings(parse("Cluster", body)))
    path = home / "penstock.toml"
    path.write_text(text.replace(BROKER_TLS_DIR, str(directory)))
    return path


class TlsBroker:
    """A broker with a listener for brokers and one for clients."""

    def __init__(self, home: Path) -> None:
        from node_kit import Process, port_of, reserved_port

        self.authority, self.directory = authority(), home / "tls"
        self.leaf = certificate(self.authority, "c-broker", "localhost", "127.0.0.1")
        mount(self.directory, self.leaf, self.authority.certificate, "v1")
        oauth = {"jwksUrl": "https://id.invalid/keys", "issuer": "https://id.invalid", "audience": "penstock"}
        listeners = [
            {"name": "clients", "port": 9093, "authentication": "tls"},
            {"name": "passwords", "port": 9094},
            {"name": "tokens", "port": 9095, "authentication": "oauth", "oauth": oauth},
        ]
        config = {"authorizer.class.name": "StandardAuthorizer"}
        file = start_file(self.directory, home, listeners=listeners, config=config)
        names = ("BROKERS", "CLIENTS", "PASSWORDS", "TOKENS")
        self._reserved = [reserved_port() for _ in names]
        ports = [port_of(reserved) for reserved in self._reserved]
        self.brokers_port, self.clients_port, *_ = ports
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)]
        listen = [word for address in addresses for word in ("--listener", address)]
        self.process = Process(home, "--config", str(file), listen=(*listen, "--http-port", "-1")).ready()

    def gateway(self, port: int, pair: KeyPair, timeout_ms: int = 30_000) -> Gateway:
        access = ClientCertificate(self.authority.certificate, pair.certificate, pair.key)
        return Gateway(AdminConnection(f"localhost:{port}", certificate=access, request_timeout_ms=timeout_ms))

    def end(self) -> None:
        self.process.kill()
        for reserved in self._reserved:
            reserved.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    made = TlsBroker(tmp_path_factory.mktemp("tls"))
    yield made
    made.end()


async def test_the_operator_is_a_super_user_by_its_certificate(broker: TlsBroker) -> None:
    gateway = broker.gateway(broker.brokers_port, certificate(broker.authority, "c-operator"))
    assert len((await gateway.describe_cluster()).brokers) == 1
    assert await gateway.change_brokers([CHANGE]) == {"": None}
    await gateway.close()


async def test_another_certificate_of_the_ca_has_no_rights(broker: TlsBroker) -> None:
    name = CertificateRequest("ana", None, 10)
    gateway = broker.gateway(broker.clients_port, issue(broker.authority, name, datetime.now(UTC)))
    refused = (await gateway.change_brokers([CHANGE]))[""]
    assert refused is not None
    assert refused.code == "CLUSTER_AUTHORIZATION_FAILED"
    await gateway.close()


async def test_a_certificate_of_another_ca_is_refused(broker: TlsBroker) -> None:
    gateway = broker.gateway(broker.brokers_port, certificate(authority(), "c-operator"), timeout_ms=2_000)
    with pytest.raises(BrokersError):
        await gateway.describe_cluster()
    await gateway.close()


async def test_probes_that_the_broker_refuses_fail_no_other_connection(broker: TlsBroker) -> None:
    pair, prober = certificate(authority(), "c-operator"), TlsProber()
    stranger = ClientCertificate(broker.authority.certificate, pair.certificate, pair.key)
    gateway = broker.gateway(broker.brokers_port, certificate(broker.authority, "c-operator"))
    for _ in range(REFUSED_PROBES):
        probe = asyncio.create_task(prober.presented("127.0.0.1", broker.brokers_port, stranger))
        while not probe.done():
            assert len((await gateway.describe_cluster()).brokers) == 1
    await gateway.close()


async def test_probes_show_what_the_broker_presents_and_accepts_after_files_were_swapped(broker: TlsBroker) -> None:
    prober, new = TlsProber(), authority()

    def client(by: KeyPair) -> ClientCertificate:
        pair = certificate(by, "c-operator")
        return ClientCertificate(by.certificate, pair.certificate, pair.key)

    present = read_certificate(broker.leaf.certificate).fingerprint
    old_client, new_client = client(broker.authority), client(new)
    assert await prober.presented("127.0.0.1", broker.brokers_port, old_client) == (present, True)
    assert await prober.presented("127.0.0.1", broker.brokers_port, new_client) == (present, False)
    assert await prober.presented("127.0.0.1", 1, old_client) == ("", False)
    leaf = certificate(new, "c-broker", "localhost", "127.0.0.1")
    mount(broker.directory, leaf, broker.authority.certificate + new.certificate, "v2")
    expected = read_certificate(leaf.certificate).fingerprint
    async with asyncio.timeout(WAIT_S):
        while await prober.presented("127.0.0.1", broker.brokers_port, new_client) != (expected, True):
            await asyncio.sleep(0.2)
    assert await prober.presented("127.0.0.1", broker.brokers_port, old_client) == (expected, True)
