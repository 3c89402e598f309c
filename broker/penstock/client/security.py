"""TLS and SASL settings of a client.

Producer, consumer, admin and `ClusterConnections` accept one `Security`; `ClientConnection` applies it.
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

    - `ca_file`, or `ca_data` (PEM text): CA certificates that brokers' certificates must be signed by. Default: the
      system's.
    - `certificate_file`, `key_file`, `key_password`: client certificate; the key may be in the same file.
    - `check_hostname`: whether the broker's certificate must match the host name.
    """

    ca_file: str | None = None
    ca_data: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

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
            self._load_certificate(context, self.certificate_file)
        elif self.key_file is not None:
            raise TlsFailed(f'key_file "{self.key_file}" is set without certificate_file; set both')
        return context

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        name = f'ca_file "{self.ca_file}"' if self.ca_file is not None else "ca_data"
        try:
            context.load_verify_locations(self.ca_file, None, self.ca_data)
        except ssl.SSLError as e:
            raise TlsFailed(f"{name} contains no PEM certificate: {e.reason or e}") from None
        except OSError as e:
            raise TlsFailed(f"{name} cannot be read: {e.strerror}") from None

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: str) -> None:
        # With a callback, OpenSSL does not prompt for the password of an encrypted key.
        secret = self.key_password or ""
        key = f' with key_file "{self.key_file}"' if self.key_file is not None else ""
        try:
            context.load_cert_chain(certificate_file, self.key_file, lambda: secret)
        except ssl.SSLError as e:
            raise TlsFailed(
                f'cannot use certificate_file "{certificate_file}"{key}: {e.reason or e}; set a PEM certificate and '
                "its private key, and key_password if the key is encrypted"
            ) from None
        except OSError as e:
            raise TlsFailed(f'cannot read certificate_file "{certificate_file}"{key}: {e.strerror}') from None


@dataclass(frozen=True, slots=True)
class Sasl:
    """SASL mechanism and credentials. PLAIN sends the password in plain text: use it with TLS only."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f'unknown SASL mechanism "{self.mechanism}"; use one of {", ".join(MECHANISMS)}')


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL settings. Without `tls`, connections are plain text; without `sasl`, clients authenticate by
    certificate or not at all.
    """

    tls: Tls | None = None
    sasl: Sasl | None = None
