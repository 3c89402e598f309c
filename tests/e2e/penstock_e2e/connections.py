"""How a client connects to a secured broker: the settings of each client library for one mechanism and one user."""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_doubles.certificates import Signed

from penstock_e2e.identity_provider import IdentityProvider
from penstock_e2e.model import DEADLINE_S

PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SASL = (*PASSWORDS, "OAUTHBEARER")
CERTIFICATE = "CERTIFICATE"
MECHANISMS = (*SASL, CERTIFICATE)
_MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Connection:
    """`mechanism` is one of `MECHANISMS`. The password of OAUTHBEARER is the secret for the identity provider."""

    bootstrap: str
    mechanism: str
    user: str
    password: str
    ca: Path
    certificate: Signed
    provider: IdentityProvider
    token_url: str
    limit_s: float = DEADLINE_S
    """How long a client that repeats refused connections may do so."""

    def replace(self, **changes: Any) -> Connection:
        return dataclasses.replace(self, **changes)

    def token(self) -> str:
        audience = {} if self.token_url == self.provider.url else {"audience": "another"}
        return self.provider.token(self.user, **audience)

    @property
    def protocol(self) -> str:
        return "SSL" if self.mechanism == CERTIFICATE else "SASL_SSL"

    def librdkafka(self) -> dict[str, Any]:
        common = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.ca.location": str(self.ca),
        }
        if self.mechanism == CERTIFICATE:
            files = self.certificate
            return common | {"ssl.certificate.location": str(files.certificate), "ssl.key.location": str(files.key)}
        common["sasl.mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            return common | {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.oauthbearer.client.id": self.user,
                "sasl.oauthbearer.client.secret": self.password,
                "https.ca.location": str(self.provider.ca),
            }
        return common | {"sasl.username": self.user, "sasl.password": self.password}

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.mechanism == CERTIFICATE:
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
        return context

    def for_python(self, tokens: object) -> dict[str, Any]:
        """Return the settings of kafka-python and aiokafka; `tokens` is the library's provider of tokens."""
        common = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.protocol,
            "ssl_context": self.ssl_context(),
        }
        if self.mechanism == CERTIFICATE:
            return common
        common["sasl_mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            return common | {"sasl_oauth_token_provider": tokens}
        return common | {"sasl_plain_username": self.user, "sasl_plain_password": self.password}

    def java(self) -> dict[str, str]:
        """Return the properties of Apache's Java client. Spark's options are these with the prefix `kafka.`."""
        common = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }
        if self.mechanism == CERTIFICATE:
            return common | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate.together)}
        common["sasl.mechanism"] = self.mechanism
        if self.mechanism == "OAUTHBEARER":
            return common | {
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
                f'clientId="{self.user}" clientSecret="{self.password}" '
                f'ssl.truststore.type="PEM" ssl.truststore.location="{self.provider.ca}";',
            }
        module = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = f'username="{self.user}" password="{self.password}"'
        return common | {"sasl.jaas.config": f"{_MODULES}.{module} required {login};"}


def properties_file(path: Path, properties: dict[str, str]) -> Path:
    """Write the properties in Java's format."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path
