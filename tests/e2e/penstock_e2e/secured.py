"""A secured broker for tests of clients: TLS, each mechanism, ACLs, and a listener with short sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from client_doubles.certificates import Authority
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from node_kit import port_of, reserved_port
from secrets_kit import secret

from penstock_e2e.broker import BrokerProcess
from penstock_e2e.connections import CERTIFICATE, SASL, Connection
from penstock_e2e.identity_provider import AUDIENCE, GROUP, ISSUER, IdentityProvider
from penstock_e2e.model import DEADLINE_S

ADMIN, ADMIN_PASSWORD = "admin", secret("admin-pw-7f3a")
USER, PASSWORD, WRONG_PASSWORD = "ana", secret("ana-pw-91be"), secret("wrong-pw-55c2")
PREFIXES = ("ana-", "java-")
"""Names of topics, groups and transactions to which `USER` has every right."""
GROUP_PREFIX = "readers-"
"""Names to which the group of the identity provider's clients has every right."""
FORBIDDEN = "forbidden"
"""A topic to which `USER` has no right."""
SESSION_MS = 1_500
"""Session length of the listener SHORT, which requires re-authentication (KIP-368)."""
REFUSED_S = 0.5
LISTENERS = {"CLIENTS": "SASL_SSL", "CERTIFIED": "SSL", "SHORT": "SASL_SSL"}


class SecuredBroker:
    """The listener CERTIFIED requires client certificates, the others SASL. `USER` exists for each mechanism."""

    def __init__(self, home: Path) -> None:
        self.authority = Authority(home / "certificates")
        self.stranger = Authority(home / "certificates", "stranger")
        own = self.authority.sign("broker")
        self.certificate = self.authority.sign(USER)
        secrets = {USER: PASSWORD, ADMIN: ADMIN_PASSWORD}
        self.provider = IdentityProvider(home, own.together, self.authority.file, secrets)
        self._reserved = {name: reserved_port() for name in LISTENERS}
        password = home / "password"
        password.write_text(ADMIN_PASSWORD + "\n")
        listeners = [f"--listener={name}://localhost:{port_of(port)}" for name, port in self._reserved.items()]
        first = ("--bootstrap-user", ADMIN, "--bootstrap-password-file", str(password))
        self._process = BrokerProcess(home / "broker", [*listeners, "--http-port", "-1", *first], self._settings(own))

    def _settings(self, own: Any) -> dict[str, str]:
        keys = self.provider.keys.as_uri()
        return {
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "ssl.keystore.location": str(own.together),
            "ssl.truststore.location": str(self.authority.file),
            "listener.name.certified.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": ",".join(SASL),
            "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.allowed.urls": keys,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.groups.claim.name": "groups",
            "connection.failed.authentication.delay.ms": "10",
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "group.initial.rebalance.delay.ms": "0",
        }

    def connection(self, mechanism: str, user: str = USER, listener: str | None = None) -> Connection:
        """Return the connection of a client that is granted its rights."""
        port = port_of(self._reserved[listener or ("CERTIFIED" if mechanism == CERTIFICATE else "CLIENTS")])
        password = {USER: PASSWORD, ADMIN: ADMIN_PASSWORD}[user]
        url = self.provider.url
        ca, bootstrap = self.authority.file, f"localhost:{port}"
        return Connection(bootstrap, mechanism, user, password, ca, self.certificate, self.provider, url)

    def refused(self, mechanism: str) -> Connection:
        """Return a connection with wrong credentials: the password, the token's audience, the certificate's issuer."""
        right = self.connection(mechanism).replace(limit_s=REFUSED_S)
        if mechanism == CERTIFICATE:
            return right.replace(certificate=self.stranger.sign(USER))
        if mechanism == "OAUTHBEARER":
            return right.replace(token_url=self.provider.foreign_url)
        return right.replace(password=WRONG_PASSWORD)

    def distrusting(self, mechanism: str) -> Connection:
        """Return the connection of a client that trusts another CA than the broker's."""
        return self.connection(mechanism).replace(ca=self.stranger.file, limit_s=REFUSED_S)

    def prepare(self) -> None:
        """Wait for the broker; create the user, its rights, and the topic that it may not use."""
        self._process.wait_until_ready()
        admin = AdminClient(self.connection("SCRAM-SHA-512", ADMIN).librdkafka())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([change])[USER].result(DEADLINE_S)
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        owners = dict.fromkeys(PREFIXES, f"User:{USER}") | {GROUP_PREFIX: f"Group:{GROUP}"}
        rights = [_rights(kind, prefix, owner) for kind in kinds for prefix, owner in owners.items()]
        for created in admin.create_acls(rights).values():
            created.result(DEADLINE_S)
        admin.create_topics([NewTopic(FORBIDDEN, 1)])[FORBIDDEN].result(DEADLINE_S)

    def stop(self) -> None:
        self._process.ask_to_end()
        self._process.wait_for_end()

    def clean_up(self) -> None:
        self._process.clean_up()
        self.provider.close()
        for reserved in self._reserved.values():
            reserved.close()


def _rights(kind: ResourceType, prefix: str, principal: str) -> AclBinding:
    pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    return AclBinding(kind, prefix, pattern, principal, "*", AclOperation.ALL, allow)


@contextlib.contextmanager
def secured_broker(home: Path) -> Iterator[SecuredBroker]:
    """Run a secured broker, which must exit with code 0."""
    made = SecuredBroker(home)
    try:
        made.prepare()
        yield made
        made.stop()
    finally:
        made.clean_up()
