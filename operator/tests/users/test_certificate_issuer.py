"""Users of type tls: the operator issues their certificates by its CA, renews them, and writes files for clients."""

from __future__ import annotations

import base64
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
from doubles.kube import EPOCH
from users.user_kit import CLUSTER, NS, READ_ORDERS, UserWorld

from penstock.client.security_properties import resolve
from penstock.config.properties import parse_properties
from penstock_operator.pki.authority import KeyPair, create_authority
from penstock_operator.ports.kube import CLUSTERS, SECRETS
from penstock_operator.specs.certificates import ReadCertificate, read_certificate
from penstock_spark.options.security import pop_security
from penstock_spark.options.text import OptionReader

TLS: dict[str, Any] = {"type": "tls"}
MUTUAL: dict[str, Any] = {"name": "mutual", "port": 9095, "authentication": "tls"}
PASSWORDS: dict[str, Any] = {"name": "clients", "port": 9093}
DAY_S = 86_400.0


def authority() -> KeyPair:
    return create_authority("c-ca", "penstock-internal", EPOCH, 1_825)


class TlsWorld(UserWorld):
    """A Cluster with a CA and, by default, a listener for clients with certificates."""

    def __init__(self, *listeners: dict[str, Any], **certificates: Any) -> None:
        super().__init__()
        spec = {
            "etcd": {"endpoints": ["http://etcd:2379"]},
            "brokers": {"replicas": 1, "storage": {"size": "1Gi"}},
            "listeners": list(listeners or [MUTUAL]),
            "certificates": certificates,
        }
        self.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": spec})
        self.pair = authority()
        self.put_authority(self.pair)

    def put_authority(self, pair: KeyPair) -> None:
        self.write_secret(f"{CLUSTER}-ca-key", **{"ca.crt": pair.certificate, "ca.key": pair.key})
        self.write_secret(f"{CLUSTER}-ca", **{"ca.crt": pair.certificate})

    def certificate(self) -> ReadCertificate:
        return read_certificate(self.secret()["user.crt"])

    async def apply_and_run(self, **spec: Any) -> None:
        self.apply("ana", **{"authentication": TLS, **spec})
        await self.run()


async def test_a_user_gets_a_certificate_with_its_name_and_rights() -> None:
    world = TlsWorld()
    await world.apply_and_run(acls=[READ_ORDERS])
    assert world.condition() == ("True", "Ready")
    assert world.condition("Authentication") == ("True", "Synced")
    present = world.certificate()
    assert (present.subject, present.hosts) == ("CN=ana", frozenset())
    assert present.is_issued_by(read_certificate(world.pair.certificate))
    assert present.has_key(world.secret()["user.key"])
    assert world.acls("User:CN=ana")
    status = world.user().status
    assert (status.secret, status.last_rotation) == ("ana", f"{present.created:%Y-%m-%dT%H:%M:%SZ}")
    assert world.kube.read(SECRETS, NS, "ana")["metadata"]["ownerReferences"][0]["kind"] == "User"  # type: ignore[index]
    assert "CertificateIssued" in world.reasons


async def test_each_file_of_the_secret_names_certificate_and_listener(tmp_path: Path) -> None:
    world = TlsWorld(PASSWORDS, MUTUAL)
    await world.apply_and_run(authentication={**TLS, "mountPath": str(tmp_path), "secretName": "ana-tls"})
    found = world.secret("ana-tls")
    for name, text in found.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    for name in ("client.properties", "client-java.properties"):
        resolved = resolve(parse_properties(found[name], name))
        assert (resolved.bootstrap, resolved.sasl) == ("c.ns.svc:9095", None)
        assert resolved.tls is not None
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "user.crt", tmp_path / "user.key")
    context.load_cert_chain(tmp_path / "user.pem")
    tls, sasl = pop_security(OptionReader(dict(line.split("=", 1) for line in found["spark.options"].splitlines())))
    assert tls is not None
    assert sasl is None
    store = load_pkcs12((tmp_path / "user.p12").read_bytes(), found["user.password"].encode())
    assert store.cert is not None
    assert store.cert.certificate.subject.rfc4514_string() == "CN=ana"


async def test_nothing_is_written_while_nothing_changes() -> None:
    world = TlsWorld()
    await world.apply_and_run()
    before = world.kube.read(SECRETS, NS, "ana")
    await world.resync()
    assert world.kube.read(SECRETS, NS, "ana") == before


async def test_it_is_renewed_before_it_expires() -> None:
    world = TlsWorld(validityDays=90, renewBeforeDays=30)
    await world.apply_and_run()
    first = world.certificate()
    world.time += 59 * DAY_S
    await world.resync()
    assert world.certificate().fingerprint == first.fingerprint
    world.time += 2 * DAY_S
    await world.resync()
    second = world.certificate()
    assert second.expires > EPOCH + timedelta(seconds=world.time) + timedelta(days=88)
    assert world.user().status.last_rotation == f"{second.created:%Y-%m-%dT%H:%M:%SZ}"


async def test_the_next_ca_issues_it_again_once_it_is_promoted() -> None:
    world = TlsWorld()
    await world.apply_and_run()
    following, first = authority(), world.certificate()
    world.write_secret(f"{CLUSTER}-ca", **{"ca.crt": world.pair.certificate + following.certificate})
    await world.resync()
    assert world.certificate().fingerprint == first.fingerprint
    assert world.secret()["ca.crt"].count("BEGIN CERTIFICATE") == 2
    world.put_authority(following)
    await world.resync()
    assert world.certificate().is_issued_by(read_certificate(following.certificate))


@pytest.mark.parametrize("key", ["user.crt", "user.key", "user.pem", "user.p12"])
async def test_what_another_client_destroys_is_issued_again(key: str) -> None:
    world = TlsWorld()
    await world.apply_and_run()
    body = world.kube.read(SECRETS, NS, "ana")
    assert body is not None
    body["data"][key] = base64.b64encode(b"" if key == "user.p12" else b"x").decode()
    world.kube.put(SECRETS, body)
    await world.resync()
    assert world.condition() == ("True", "Ready")
    found = world.secret()
    assert world.certificate().has_key(found["user.key"])
    assert found["user.pem"] == found["user.crt"] + found["user.key"]
    assert found["user.p12"]


async def test_an_annotation_issues_another_one_once() -> None:
    world = TlsWorld()
    await world.apply_and_run()
    first = world.certificate()
    world.apply("ana", authentication=TLS, annotations={"penstock.io/rotate-password": "now"})
    await world.run()
    second = world.certificate()
    await world.resync()
    assert first.fingerprint != second.fingerprint
    assert world.certificate().fingerprint == second.fingerprint


async def test_a_secret_of_another_owner_is_not_overwritten() -> None:
    world = TlsWorld()
    world.write_secret("ana", note="mine")
    await world.apply_and_run()
    assert world.condition() == ("False", "SecretConflict")
    assert world.secret() == {"note": "mine"}


async def test_a_change_of_the_type_replaces_the_content_of_the_secret() -> None:
    world = TlsWorld(PASSWORDS, MUTUAL)
    world.apply("ana", userName="CN=ana")
    await world.run()
    assert "password" in world.secret()
    await world.apply_and_run(userName="CN=ana")
    assert world.condition() == ("True", "Ready")
    assert not {"username", "password", "sasl.jaas.config"} & world.secret().keys()
    assert await world.brokers.credentials(["CN=ana"]) in ({}, {"CN=ana": {}}), "the password is revoked"
    world.apply("ana", userName="CN=ana")
    await world.run()
    assert not {"user.crt", "user.key", "user.pem", "user.p12", "user.password"} & world.secret().keys()


@pytest.mark.parametrize(
    ("certificates", "user_name"),
    [({"clientCaSecret": "company"}, "CN=ana"), ({}, "CN=ana,O=shop"), ({}, "CN=a\\,b"), ({}, "ana")],
)
async def test_certificates_that_the_operator_cannot_issue_are_left_to_others(
    certificates: dict[str, Any], user_name: str
) -> None:
    world = TlsWorld(**certificates)
    await world.apply_and_run(userName=user_name)
    assert world.condition("Authentication") == ("True", "External")
    assert world.kube.read(SECRETS, NS, "ana") is None


async def test_without_a_listener_for_certificates_the_condition_says_so() -> None:
    world = TlsWorld(PASSWORDS)
    await world.apply_and_run()
    assert world.condition() == ("False", "NoListener")
    assert world.kube.read(SECRETS, NS, "ana") is None


async def test_a_ca_that_cannot_issue_is_an_error_without_its_content() -> None:
    world = TlsWorld()
    world.write_secret(f"{CLUSTER}-ca-key", **{"ca.crt": world.pair.certificate, "ca.key": authority().key})
    await world.apply_and_run(acls=[READ_ORDERS])
    assert world.condition("Authentication") == ("False", "Refused")
    assert world.condition("Authorization") == ("True", "Synced")
    assert "has no key" in world.message()
    assert "PRIVATE" not in world.message()
