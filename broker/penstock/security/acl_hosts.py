"""Hosts of ACLs: `*`, an address, or a network such as 10.0.0.0/8 (KIP-1276). Used by `acl_index` and `acl_filters`."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from penstock.wire.acl import WILDCARD

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
MAPPED = IPv6Network("::ffff:0:0/96")
"""IPv4-mapped addresses, as which sockets for both families report IPv4 clients."""
MAX_HOST_CHARS = 64


@lru_cache(4096)
def parse_address(host: str) -> Address | None:
    """Return a client's address, as IPv4 if it is IPv4-mapped; None if the text is not an address."""
    if len(host) > MAX_HOST_CHARS:
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_network(host: str) -> Network:
    """Return the network of an ACL's host; an address is a network of one. Raises ValueError."""
    if len(host) > MAX_HOST_CHARS:
        raise ValueError(f"the host has more than {MAX_HOST_CHARS} characters")
    network = ip_network(host)
    if isinstance(network, IPv6Network) and network.subnet_of(MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - MAPPED.prefixlen))
    return network


class HostPattern:
    """The host of an ACL. A text that is neither `*` nor an address nor a network matches only itself."""

    __slots__ = ("network", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.network: Network | None = None
        if text != WILDCARD:
            try:
                self.network = parse_network(text)
            except ValueError:
                self.network = None

    def matches(self, host: str) -> bool:
        """Return whether a client connected from `host` matches."""
        if self.text == WILDCARD or self.text == host:
            return True
        if self.network is None:
            return False
        address = parse_address(host)
        return address is not None and address in self.network


def check_host(host: str) -> None:
    """Raise ValueError if a host of a new ACL is invalid."""
    if host == WILDCARD:
        return
    try:
        parse_network(host)
    except ValueError as e:
        raise ValueError(f'invalid host "{host[:MAX_HOST_CHARS]}": {e}; use *, an address, or a network') from None
