"""Connection options of an etcd cluster, validated. Read by `channels` and `auth`; loads no gRPC."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.state.store import StoreError

DEFAULT_PORT = 2379
MAX_ENDPOINTS = 64
MIN_KEEPALIVE_S = 5.0
"""etcd drops connections that ping more often (--grpc-keepalive-min-time)."""


class InvalidEtcdOption(StoreError, ValueError):
    """An option is not valid; the message has its name and what is allowed."""


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """The client address of one etcd member."""

    url: str
    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """gRPC's name of the address: an IP address is used as it is, a name is resolved at each connect."""
        if ":" in self.host:
            return f"ipv6:[{self.host}]:{self.port}"
        if self.host.replace(".", "").isdigit():
            return f"ipv4:{self.host}:{self.port}"
        return f"dns:///{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """Endpoints of one etcd cluster (all http:// or all https://) and how to connect. Raises `InvalidEtcdOption`."""

    endpoints: tuple[str, ...]
    ca_file: str | None = None
    """PEM file with the CA certificates for the members' certificates; None: the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    """PEM files with this client's certificate and key, if etcd requires them (--client-cert-auth)."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    request_timeout_s: float = 5.0
    """Timeout of one request to one member."""
    connect_timeout_s: float = 2.0
    patience_s: float = 2.0
    """How long retriable calls are retried if no endpoint responds; longer than an etcd leader election."""
    keepalive_s: float = 6.0
    """Idle time after which a connection is pinged; without a response within half of it, it is dead."""

    def __post_init__(self) -> None:
        addresses = self.addresses()
        if not 1 <= len(addresses) <= MAX_ENDPOINTS:
            raise InvalidEtcdOption(f"etcd needs 1 to {MAX_ENDPOINTS} endpoints, not {len(addresses)}")
        if len({address.tls for address in addresses}) > 1:
            raise InvalidEtcdOption("etcd's endpoints must be all http:// or all https://, not mixed")
        files = [name for name in ("ca_file", "cert_file", "key_file") if getattr(self, name) is not None]
        if files and not addresses[0].tls:
            raise InvalidEtcdOption(f'etcd\'s {files[0]} needs https:// endpoints, but "{addresses[0].url}" is not one')
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidEtcdOption("etcd's cert_file and key_file belong together; set both or neither")
        if (self.user is None) != (self.password is None):
            raise InvalidEtcdOption("etcd's user and password belong together; set both or neither")
        for name, least in (
            ("request_timeout_s", 0.0),
            ("connect_timeout_s", 0.0),
            ("patience_s", 0.0),
            ("keepalive_s", MIN_KEEPALIVE_S),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least and value > 0):
                raise InvalidEtcdOption(f"etcd's {name} is {value}; it must be above 0 and at least {least} seconds")

    def addresses(self) -> list[EndpointAddress]:
        """Return the parsed endpoints."""
        if isinstance(self.endpoints, str):
            raise InvalidEtcdOption("etcd's endpoints must be a sequence of strings, not a string")
        return [parse_endpoint(url) for url in dict.fromkeys(self.endpoints)]


def parse_endpoint(url: str) -> EndpointAddress:
    """Parse `http://host:port` or `https://host:port`. Raises `InvalidEtcdOption`."""
    wrong = InvalidEtcdOption(f'"{url}" is not an etcd endpoint; use http://host:port or https://host:port')
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None:
        raise InvalidEtcdOption("an etcd endpoint cannot contain a user; use the options user and password")
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/") or parts.query:
        raise wrong
    if any(c.isspace() for c in host):
        raise wrong
    return EndpointAddress(url.rstrip("/"), host, DEFAULT_PORT if port is None else port, parts.scheme == "https")
