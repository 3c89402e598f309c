"""Decides by a list of ACLs, and says which one decided, with the rules of Kafka's StandardAuthorizer.

Used by `penstock acl explain`. It examines each ACL: a broker's authorizer has an index and gives the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from penstock.wire.acl import WILDCARD, AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import AclBinding

EVERYONE = "User:*"
IMPLYING: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""Operations whose ALLOW also allows another operation. A DENY implies nothing."""
MAX_CACHED_NETWORKS = 4096


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a principal wants to do. An empty `host` means an address that no ACL names.

    `groups` are principals too, such as `Group:analysts`: those that the client's token names.
    """

    principal: str
    host: str
    operation: AclOperation
    resource_type: ResourceType
    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer. `acl` is the ACL that decided; None if none applies, and then `has_acls` decides.

    `has_acls` tells whether the resource has any ACL: if not, `allow.everyone.if.no.acl.found` applies.
    """

    is_allowed: bool
    acl: AclBinding | None
    has_acls: bool


def decide(request: AccessRequest, acls: Iterable[AclBinding], *, allow_without_acls: bool = False) -> AccessDecision:
    """Decide a request: a matching DENY takes precedence, then a matching ALLOW; otherwise it is denied.

    `allow_without_acls` is the setting `allow.everyone.if.no.acl.found`. `super.users` are the caller's concern.
    """
    of_resource = [acl for acl in acls if applies_to(acl, request.resource_type, request.name)]
    principals = {request.principal, *request.groups, EVERYONE}
    allowing: AclBinding | None = None
    for acl in of_resource:
        if acl.principal not in principals or not matches_host(acl.host, request.host):
            continue
        if acl.permission == AclPermission.DENY and acl.operation in (request.operation, AclOperation.ALL):
            return AccessDecision(False, acl, True)
        if allowing is None and acl.permission == AclPermission.ALLOW and allows(acl.operation, request.operation):
            allowing = acl
    if allowing is not None:
        return AccessDecision(True, allowing, True)
    return AccessDecision(not of_resource and allow_without_acls, None, bool(of_resource))


def applies_to(acl: AclBinding, resource_type: ResourceType, name: str) -> bool:
    """Return whether an ACL's pattern matches a resource."""
    if acl.resource_type != resource_type:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def allows(granted: AclOperation, operation: AclOperation) -> bool:
    """Return whether an ALLOW of `granted` allows `operation`."""
    return granted in (operation, AclOperation.ALL) or granted in IMPLYING.get(operation, ())


def matches_host(pattern: str, host: str) -> bool:
    """Return whether a client's address matches an ACL's host: `*`, an address, or a network (KIP-1276)."""
    if pattern in (WILDCARD, host):
        return True
    network, address = parse_network(pattern), parse_host_address(host)
    return network is not None and address is not None and address.version == network.version and address in network


@lru_cache(maxsize=MAX_CACHED_NETWORKS)
def parse_network(text: str) -> IPv4Network | IPv6Network | None:
    """Return an ACL's host as a network, of one address if it has no prefix length; None if it is neither."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


def parse_host_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return a client's address, IPv4 if it is IPv4-mapped; None if the text is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
