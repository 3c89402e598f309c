"""The files of a broker that `penstock up --secure` starts: keys and password, and the properties of its clients.

The command line creates keys and password; the broker writes the properties once it knows its port.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.config.properties import escape

ADMINISTRATOR = "admin"
MECHANISM = "SCRAM-SHA-512"
LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class SecureFiles:
    """The paths in a data directory."""

    data_dir: str

    @property
    def directory(self) -> str:
        """Return the directory of keys and password, which only its owner may read."""
        return os.path.join(self.data_dir, "secure")

    @property
    def authority(self) -> str:
        """Return the file of the CA certificate, for clients to trust."""
        return os.path.join(self.directory, "ca.pem")

    @property
    def authority_key(self) -> str:
        """Return the file of the CA's private key and certificate."""
        return os.path.join(self.directory, "ca.key")

    @property
    def server(self) -> str:
        """Return the file of the broker's private key and certificate."""
        return os.path.join(self.directory, "server.pem")

    @property
    def password(self) -> str:
        """Return the file of the administrator's password."""
        return os.path.join(self.directory, "admin.password")

    @property
    def client(self) -> str:
        """Return the properties file for clients with librdkafka's names."""
        return os.path.join(self.data_dir, "client.properties")

    @property
    def java_client(self) -> str:
        """Return the properties file for Java clients."""
        return os.path.join(self.data_dir, "client-java.properties")

    def client_text(self, bootstrap: str, password: str) -> str:
        """Return the content of `client`."""
        return lines(
            [
                ("bootstrap.servers", bootstrap),
                ("security.protocol", "SASL_SSL"),
                ("sasl.mechanism", MECHANISM),
                ("sasl.username", ADMINISTRATOR),
                ("sasl.password", password),
                ("ssl.ca.location", self.authority),
            ]
        )

    def java_client_text(self, bootstrap: str, password: str) -> str:
        """Return the content of `java_client`."""
        quoted = password.replace("\\", "\\\\").replace('"', '\\"')
        return lines(
            [
                ("bootstrap.servers", bootstrap),
                ("security.protocol", "SASL_SSL"),
                ("sasl.mechanism", MECHANISM),
                ("sasl.jaas.config", f'{LOGIN_MODULE} required username="{ADMINISTRATOR}" password="{quoted}";'),
                ("ssl.truststore.type", "PEM"),
                ("ssl.truststore.location", self.authority),
            ]
        )


def lines(properties: Iterable[tuple[str, str]]) -> str:
    """Return the text of a properties file."""
    return "".join(f"{name}={escape(value)}\n" for name, value in properties)
