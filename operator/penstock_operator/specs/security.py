"""Security settings of the brokers, and the certificates that they mount. Used by `settings`, `pod` and `reconcile`."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.listeners import OAuth
from penstock_operator.ports.kube import Object
from penstock_operator.specs import names
from penstock_operator.specs.listeners import (
    BrokerListener,
    Transition,
    inter_broker_name,
    is_secured,
    listeners_of,
)

BROKER_TLS_DIR = "/etc/penstock-tls"
"""Key, certificate and CA of the listener for brokers, and of client listeners with `source: operator`."""
CLIENT_TLS_DIR = "/etc/penstock-client-tls"
"""Key and certificate of client listeners with `source: secret`."""
CLIENT_CA_DIR = "/etc/penstock-client-ca"
"""CA of client certificates, with `clientCaSecret`."""
ORGANIZATION = "penstock-internal"
"""Organization in the names of the operator's and the brokers' certificates. Certificates of clients lack it."""
SUPER_USERS = "super.users"
SCRAM = "SCRAM-SHA-512,SCRAM-SHA-256"
FOREIGN_RULES = f"RULE:^.*O={ORGANIZATION}$/ANONYMOUS/,DEFAULT"
"""Mapping of client certificates of another CA, which could otherwise name a broker."""


def has_certificates(cluster: Cluster, transition: Transition) -> bool:
    """Whether brokers need certificates of the operator's CA."""
    return is_secured(cluster) or transition is not Transition.NONE


def distinguished_name(common_name: str) -> str:
    """Return the distinguished name (RFC 2253) of the brokers' or the operator's certificate."""
    return f"CN={common_name},O={ORGANIZATION}"


def listener_settings(cluster: Cluster, transition: Transition) -> dict[str, str]:
    """Return the settings of all listeners; none for a cluster that never had certificates."""
    if not has_certificates(cluster, transition):
        return {}
    listeners = listeners_of(cluster, transition)
    found = {
        "listener.security.protocol.map": ",".join(f"{each.name}:{each.protocol}" for each in listeners),
        "inter.broker.listener.name": inter_broker_name(cluster, transition),
    }
    urls = [each.spec.oauth.jwks_url for each in listeners if each.spec is not None and each.spec.oauth is not None]
    if urls:
        found["sasl.oauthbearer.allowed.urls"] = ",".join(dict.fromkeys(urls))
    for listener in listeners:
        found |= {listener.prefix + name: text for name, text in settings_of(cluster, listener).items()}
    return found


def settings_of(cluster: Cluster, listener: BrokerListener) -> dict[str, str]:
    """Return the settings of a listener, without its prefix."""
    certificates, found = cluster.spec.certificates, dict[str, str]()
    is_foreign = listener.is_for_clients and certificates.source == "secret"
    if listener.tls:
        found["ssl.keystore.location"] = CLIENT_TLS_DIR if is_foreign else BROKER_TLS_DIR
        # The names depend on the spec and on the brokers' addresses.
        found["ssl.allow.san.changes"] = "true"
        if is_foreign:
            found["ssl.allow.dn.changes"] = "true"
    if listener.authentication == "tls":
        has_own_ca = not listener.is_for_clients or certificates.client_ca_secret is None
        found["ssl.client.auth"] = "required"
        found["ssl.truststore.location"] = BROKER_TLS_DIR if has_own_ca else CLIENT_CA_DIR
        if not has_own_ca:
            found["ssl.principal.mapping.rules"] = FOREIGN_RULES
    if listener.authentication == "scram":
        found["sasl.enabled.mechanisms"] = SCRAM
    if listener.spec is not None and listener.spec.oauth is not None:
        found |= oauth_settings(listener.spec.oauth)
    return found


def oauth_settings(oauth: OAuth) -> dict[str, str]:
    """Return the settings that verify tokens, by Kafka's names."""
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": oauth.jwks_url,
        "sasl.oauthbearer.expected.issuer": oauth.issuer,
        "sasl.oauthbearer.expected.audience": oauth.audience,
        "sasl.oauthbearer.sub.claim.name": oauth.subject_claim,
        **({"sasl.oauthbearer.groups.claim.name": oauth.groups_claim} if oauth.groups_claim else {}),
    }


def client_properties() -> str:
    """Return the properties with which the `penstock` command in a broker's pod connects, as the broker itself."""
    entries = {
        "security.protocol": "SSL",
        "ssl.ca.location": f"{BROKER_TLS_DIR}/ca.crt",
        "ssl.certificate.location": f"{BROKER_TLS_DIR}/tls.crt",
        "ssl.key.location": f"{BROKER_TLS_DIR}/tls.key",
    }
    return "".join(f"{name}={text}\n" for name, text in entries.items())


def super_users(cluster: Cluster, transition: Transition) -> dict[str, str]:
    """Return `super.users` with the brokers and the operator, in addition to those in `spec.config`."""
    if not has_certificates(cluster, transition):
        return {}
    name = cluster.metadata.name
    own = [f"User:{distinguished_name(common)}" for common in (names.broker_name(name), names.operator_name(name))]
    if transition is not Transition.NONE:  # some brokers connect in plain text, as all did before
        own.append("User:ANONYMOUS")
    given = [user for user in cluster.spec.config.get(SUPER_USERS, "").split(";") if user]
    return {SUPER_USERS: ";".join([*given, *own])}


def volumes(cluster: Cluster, transition: Transition) -> list[Object]:
    """Return the pod volumes with certificates."""
    return [
        {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}
        for name, secret, _ in mounted(cluster, transition)
    ]


def mounts(cluster: Cluster, transition: Transition) -> list[Object]:
    """Return the mounts of the broker container. Without `subPath`, so that kubelets update them."""
    return [{"name": name, "mountPath": path, "readOnly": True} for name, _, path in mounted(cluster, transition)]


def mounted(cluster: Cluster, transition: Transition) -> list[tuple[str, str, str]]:
    """Return volume, Secret and directory of each mounted Secret. None has the key of the CA."""
    if not has_certificates(cluster, transition):
        return []
    name, certificates = cluster.metadata.name, cluster.spec.certificates
    found = [("tls", names.broker_tls(name), BROKER_TLS_DIR)]
    if is_secured(cluster) and certificates.source == "secret":
        found.append(("client-tls", certificates.secret_name or names.client_tls(name), CLIENT_TLS_DIR))
    if is_secured(cluster) and certificates.client_ca_secret is not None:
        found.append(("client-ca", certificates.client_ca_secret, CLIENT_CA_DIR))
    return found
