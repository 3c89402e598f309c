"""TLS and SASL settings of a client.

Producer, consumer, admin and `ClusterConnections` accept one `Security`; `ClientConnection` applies it.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.client.errors import TlsFailed
from penstock.client.security_properties import (
    SaslProperties,
    SecurityProperties,
    TlsProperties,
    TokenProperties,
    resolve,
)
from penstock.client.tokens import ClientCredentials, TokenFile, TokenSource
from penstock.config.properties import Property

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS 1.2 or newer. Files are PEM.

    - `ca_file`, or `ca_data` (PEM text): CA certificates that brokers' certificates must be signed by. Default: the
      system's.
    - `certificate_file`, `key_file`, `key_password`: client certificate; the key may be in the same file.
    - `certificate_data`, `key_data`: the same as PEM text, instead of files.
    - `check_hostname`: whether the broker's certificate must match the host name.
    """

    ca_file: str | None = None
    ca_data: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    certificate_data: str | None = field(default=None, repr=False)
    key_data: str | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext:
        """Load the files and return the SSL context. Raises `TlsFailed`, naming the invalid file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca_file is None and self.ca_data is None:
            context.load_default_certs()
        else:
            self._load_authorities(context)
        if self.certificate_file is not None:
            self._load_certificate(context, self.certificate_file, self.key_file)
        elif self.certificate_data is not None:
            self._load_certificate_data(context, self.certificate_data)
        elif self.key_file is not None:
            raise TlsFailed(f'key_file "{self.key_file}" is set without certificate_file; set both')
        return context

    def _load_certificate_data(self, context: ssl.SSLContext, certificate_data: str) -> None:
        # OpenSSL's Python binding reads certificates and keys from files only. These are private and removed at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{self.key_data or ''}\n{certificate_data}")
            file.flush()
            self._load_certificate(context, file.name, self.key_file)

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        name = f'ca_file "{self.ca_file}"' if self.ca_file is not None else "ca_data"
        try:
            context.load_verify_locations(self.ca_file, None, self.ca_data)
        except ssl.SSLError as e:
            raise TlsFailed(f"{name} contains no PEM certificate: {e.reason or e}") from None
        except OSError as e:
            raise TlsFailed(f"{name} cannot be read: {e.strerror}") from None

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: str, key_file: str | None) -> None:
        # With a callback, OpenSSL does not prompt for the password of an encrypted key.
        secret = self.key_password or ""
        key = f' with key_file "{key_file}"' if key_file is not None else ""
        name = "certificate_data" if self.certificate_file is None else f'certificate_file "{certificate_file}"'
        try:
            context.load_cert_chain(certificate_file, key_file, lambda: secret)
        except ssl.SSLError as e:
            raise TlsFailed(
                f"cannot use {name}{key}: {e.reason or e}; set a PEM certificate and "
                "its private key, and key_password if the key is encrypted"
            ) from None
        except OSError as e:
            raise TlsFailed(f"cannot read {name}{key}: {e.strerror}") from None


@dataclass(frozen=True, slots=True)
class Sasl:
    """SASL mechanism and credentials. PLAIN sends the password, and OAUTHBEARER the token, in plain text: use them with
    TLS only.

    `tokens` is where the tokens of OAUTHBEARER come from: a `TokenFile`, `ProvidedTokens` or `ClientCredentials`.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenSource | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f'unknown SASL mechanism "{self.mechanism}"; use one of {", ".join(MECHANISMS)}')
        if (self.mechanism == "OAUTHBEARER") != (self.tokens is not None):
            raise ValueError("OAUTHBEARER needs tokens, and other mechanisms a user name and a password")


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL settings. Without `tls`, connections are plain text; without `sasl`, clients authenticate by
    certificate or not at all.
    """

    tls: Tls | None = None
    sasl: Sasl | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Security:
        """Return the settings of client properties, by the names of Kafka's Java clients or of librdkafka.

        Other names are ignored. Without `security.protocol`, connections are plain text. Raises `InvalidProperties`, a
        ValueError that names the property.
        """
        return security_of(resolve([Property(name, value) for name, value in properties.items()]))


def security_of(properties: SecurityProperties) -> Security:
    """Return the settings of resolved properties."""
    return Security(tls_of(properties.tls), sasl_of(properties.sasl))


def tls_of(tls: TlsProperties | None) -> Tls | None:
    """Return the TLS settings of properties; None for plain text."""
    if tls is None:
        return None
    return Tls(
        ca_file=tls.ca_file,
        ca_data=tls.ca_data,
        certificate_file=tls.certificate_file,
        certificate_data=tls.certificate_data,
        key_file=tls.key_file,
        key_data=tls.key_data,
        key_password=tls.key_password,
        check_hostname=tls.check_hostname,
    )


def sasl_of(sasl: SaslProperties | None) -> Sasl | None:
    """Return the SASL settings of properties; None without SASL."""
    if sasl is None:
        return None
    tokens = None if sasl.tokens is None else token_source(sasl.tokens)
    return Sasl(sasl.mechanism, sasl.username, sasl.password, tokens)


def token_source(tokens: TokenProperties) -> TokenSource:
    """Return the source of tokens that properties name."""
    if tokens.file is not None:
        return TokenFile(tokens.file)
    return ClientCredentials(tokens.endpoint, tokens.client_id, tokens.client_secret, tokens.scope, tokens.ca_file)
