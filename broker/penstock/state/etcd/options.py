"""How to reach an etcd: what a person may say about it, validated. Read by `channels` and `auth`; loads no gRPC."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.state.store import StoreError

DEFAULT_PORT = 2379
MAX_ENDPOINTS = 64
LEAST_KEEPALIVE_S = 5.0
"""etcd drops connections that send pings more often (its --grpc-keepalive-min-time)."""


class InvalidEtcdOption(StoreError, ValueError):
    """An option that cannot be; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where one member of etcd serves its clients."""

    url: str
    host: str
    port: int
    tls: bool

    @property
    def target(self) -> str:
        """As gRPC names it: an address is taken as it is, a name is looked up at each connect."""
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
    """PEM file with the authorities that the members' certificates are checked against; None: the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    """PEM files with this client's certificate and key, where etcd asks for one (--client-cert-auth)."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    request_timeout_s: float = 5.0
    """For the answer of one member to one request."""
    connect_timeout_s: float = 2.0
    patience_s: float = 2.0
    """How long a call that can be repeated is, where no endpoint answers: longer than etcd takes to choose a leader."""
    keepalive_s: float = 6.0
    """A connection on which nothing came for this long is pinged; without an answer within half of it, it is dead."""

    def __post_init__(self) -> None:
        addresses = self.addresses()
        if not 1 <= len(addresses) <= MAX_ENDPOINTS:
            raise InvalidEtcdOption(f"etcd needs 1 to {MAX_ENDPOINTS} endpoints, not {len(addresses)}")
        if len({address.tls for address in addresses}) > 1:
            raise InvalidEtcdOption("etcd's endpoints are either all http:// or all https://, not mixed")
        files = [name for name in ("ca_file", "cert_file", "key_file") if getattr(self, name) is not None]
        if files and not addresses[0].tls:
            raise InvalidEtcdOption(f"etcd's {files[0]} is for endpoints with https://: {addresses[0].url} is not")
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidEtcdOption("etcd's cert_file and key_file belong together: give both or neither")
        if (self.user is None) != (self.password is None):
            raise InvalidEtcdOption("etcd's user and password belong together: give both or neither")
        for name, least in (
            ("request_timeout_s", 0.0),
            ("connect_timeout_s", 0.0),
            ("patience_s", 0.0),
            ("keepalive_s", LEAST_KEEPALIVE_S),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= least and value > 0):
                raise InvalidEtcdOption(f"etcd's {name} is {value}: seconds above 0, and at least {least}, are allowed")

    def addresses(self) -> list[EndpointAddress]:
        """The endpoints, taken apart."""
        if isinstance(self.endpoints, str):
            raise InvalidEtcdOption("etcd's endpoints are several strings, not one")
        return [parse_endpoint(url) for url in dict.fromkeys(self.endpoints)]


def parse_endpoint(url: str) -> EndpointAddress:
    """Takes apart `http://host:port` or `https://host:port`. Raises `InvalidEtcdOption`."""
    wrong = InvalidEtcdOption(f"{url!r} is no endpoint of etcd: write http://host:port or https://host:port")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None:
        raise InvalidEtcdOption("an endpoint of etcd has no user in it: give user and password beside it")
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/") or parts.query:
        raise wrong
    if any(c.isspace() for c in host):
        raise wrong
    return EndpointAddress(url.rstrip("/"), host, DEFAULT_PORT if port is None else port, parts.scheme == "https")
