"""How a client protects its connections and says who it is: TLS and SASL, as values.

Producer, consumer, admin and `Cluster` take one `Security`; `Connection` uses it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Literal

from penstock.client.errors import TlsFailed

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS 1.2 or newer. Files are PEM.

    - `ca_file`, or `ca_data` (PEM text): the authorities that brokers' certificates must come from; without both,
      the system's.
    - `certificate_file`, `key_file`, `key_password`: this client's own certificate; the key may stand in the same file.
    - `check_hostname`: a broker's certificate must name the host that was connected to.
    """

    ca_file: str | None = None
    ca_data: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises `TlsFailed`, naming the one that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca_file is None and self.ca_data is None:
            context.load_default_certs()
        else:
            self._load_authorities(context)
        if self.certificate_file is not None:
            self._load_certificate(context, self.certificate_file)
        elif self.key_file is not None:
            raise TlsFailed(f"key_file {self.key_file!r} is given without certificate_file: give both")
        return context

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        name = f"ca_file {self.ca_file!r}" if self.ca_file is not None else "ca_data"
        try:
            context.load_verify_locations(self.ca_file, None, self.ca_data)
        except ssl.SSLError as e:
            raise TlsFailed(f"{name} holds no certificate in PEM: {e.reason or e}") from None
        except OSError as e:
            raise TlsFailed(f"{name} cannot be read: {e.strerror}") from None

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: str) -> None:
        # A callback, since without one OpenSSL asks the terminal for the password of an encrypted key.
        secret = self.key_password or ""
        key = f" with key_file {self.key_file!r}" if self.key_file is not None else ""
        try:
            context.load_cert_chain(certificate_file, self.key_file, lambda: secret)
        except ssl.SSLError as e:
            raise TlsFailed(
                f"certificate_file {certificate_file!r}{key} cannot be used: {e.reason or e} (a PEM certificate and "
                "its private key are needed, and key_password where the key is encrypted)"
            ) from None
        except OSError as e:
            raise TlsFailed(f"certificate_file {certificate_file!r}{key} cannot be read: {e.strerror}") from None


@dataclass(frozen=True, slots=True)
class Sasl:
    """Name and password. PLAIN sends the password as it is: use it inside TLS."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"SASL mechanism {self.mechanism!r} is not known: choose one of {', '.join(MECHANISMS)}")


@dataclass(frozen=True, slots=True)
class Security:
    """Without `tls` connections are plain, without `sasl` nobody is authenticated (but by a client certificate)."""

    tls: Tls | None = None
    sasl: Sasl | None = None
