"""ACLs: creations with edge cases, every kind of filter, and what is deleted. Needs services with an authorizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.wire.acl import CLUSTER_NAME, WILDCARD, AclOperation, AclPermission, PatternType, ResourceType
from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.values import Tree

CREATE, DESCRIBE, DELETE = "CreateAcls", "DescribeAcls", "DeleteAcls"
STEPS = 6
UNUSUAL_CREATION, UNUSUAL_FILTER, TWICE = 0.08, 0.15, 0.2
"""Probabilities: of an unusual value in a creation or a filter, and of the same one twice in a request."""
NUMBERS = (-128, -1, 16, 127)
"""Numbers that no enumeration has."""
UNKNOWN = "an enumeration is UNKNOWN"
NO_MEMBER = "a number that the enumeration does not have"
INVALID_HOST = "a host that is neither * nor an address nor a network"
INCOMPLETE_PRINCIPAL = "a principal without a type or without a name"
"""Features of requests."""
HOSTS = (WILDCARD, "127.0.0.1", "10.9.8.7", "10.0.0.0/8", "::1", "2001:db8::/32")
UNUSUAL_HOSTS = ("::ffff:10.0.0.1", "2001:DB8::1", "10.9.8.7/32")
INVALID_HOSTS = ("", " ", "localhost", "10.0.0.256", "10.0.0.0/33", "10.0.0.1/8", "**")
NUMBER_FIELDS = (
    "resource_type", "resource_pattern_type", "resource_type_filter", "pattern_type_filter", "operation",
    "permission_type",
)  # fmt: skip


def principals(case: Case) -> list[str]:
    """Return the principals of a case."""
    return [f"User:{case.prefix}", f"User:{case.prefix}-b"]


def names(case: Case) -> list[str]:
    """Return the names of resources of a case, of which one is a prefix of another."""
    return [case.prefix, f"{case.prefix}-t", f"{case.prefix}-t-long", f"{case.prefix}-ä b"]


def creation(case: Case) -> Tree:
    """Return an ACL to create. Its name or its principal belongs to the case."""
    rng = case.rng
    resource = rng.choice([kind for kind in ResourceType if kind > ResourceType.ANY])
    is_cluster = resource is ResourceType.CLUSTER
    acl: Tree = {
        "resource_type": int(resource),
        "resource_name": CLUSTER_NAME if is_cluster else rng.choice([*names(case), WILDCARD]),
        "resource_pattern_type": int(
            PatternType.LITERAL if is_cluster else rng.choice([PatternType.LITERAL, PatternType.PREFIXED])
        ),
        "principal": rng.choice(principals(case)),
        "host": rng.choice(HOSTS),
        "operation": rng.choice([int(each) for each in AclOperation if each > AclOperation.ANY]),
        "permission_type": int(rng.choice([AclPermission.ALLOW, AclPermission.DENY])),
    }
    if rng.random() < UNUSUAL_CREATION:
        field, value = rng.choice(list(unusual_creations(case)))
        acl[field] = value
        if field == "principal" and case.prefix not in str(value):
            acl["resource_name"] = case.prefix
    return acl


def unusual_creations(case: Case) -> Iterator[tuple[str, int | str]]:
    """Yield fields of a creation with values that are invalid, or valid in filters only."""
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        yield field, 1
        yield field, case.rng.choice((0, *NUMBERS))
    yield "resource_pattern_type", int(PatternType.MATCH)
    yield "resource_pattern_type", int(PatternType.PREFIXED)
    for name in ("", " ", CLUSTER_NAME, "x" * 250, "a/b"):
        yield "resource_name", name
    for principal in (
        "",
        "User:",
        ":",
        "User",
        case.prefix,
        f":{case.prefix}",
        "User:*",
        f"Group:{case.prefix}",
        "User: ",
    ):
        yield "principal", principal
    for host in (*UNUSUAL_HOSTS, *INVALID_HOSTS):
        yield "host", host


def filter_of(case: Case) -> Tree:
    """Return a filter: every field is open, or has a value that ACLs of the case have, or an unusual one."""
    rng = case.rng
    wanted: Tree = {
        "resource_type_filter": rng.choice([1, 1, 1, *map(int, list(ResourceType)[2:])]),
        "resource_name_filter": rng.choice(
            [None, None, *names(case), f"{case.prefix}-t-long-er", WILDCARD, CLUSTER_NAME]
        ),
        "pattern_type_filter": rng.choice([1, 1, 2, 2, 3, 4]),
        "principal_filter": rng.choice([None, *principals(case)]),
        "host_filter": rng.choice([None, None, None, *HOSTS]),
        "operation": rng.choice([1, 1, 1, *map(int, list(AclOperation)[2:])]),
        "permission_type": rng.choice([1, 1, 2, 3]),
    }
    if rng.random() < UNUSUAL_FILTER:
        field, value = rng.choice(list(unusual_filters(case)))
        wanted[field] = value
    return wanted


def unusual_filters(case: Case) -> Iterator[tuple[str, int | str]]:
    """Yield fields of a filter with values that match nothing, or are invalid."""
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        yield field, case.rng.choice((0, *NUMBERS))
    for name in ("", " ", "absent", "x" * 3000):
        yield "resource_name_filter", name
    for principal in ("", "User:", "no colon", case.prefix, "User:*", "Group:x"):
        yield "principal_filter", principal
    for host in (*UNUSUAL_HOSTS, *INVALID_HOSTS):
        yield "host_filter", host


def drawn(case: Case, draw: Callable[[Case], Tree], numbers: Sequence[int]) -> list[Tree]:
    """Return one of these numbers of elements, sometimes with the first one twice."""
    parts = [draw(case) for _ in range(case.rng.choice(numbers))]
    return [*parts, parts[0]] if parts and case.rng.random() < TWICE else parts


def features_of(parts: Sequence[Tree]) -> Iterator[str]:
    """Yield the features of creations or filters to which the two brokers answer differently."""
    for part in parts:
        numbers = {part[field] for field in NUMBER_FIELDS if field in part}
        if 0 in numbers:
            yield UNKNOWN
        if numbers & set(NUMBERS):
            yield NO_MEMBER
        if part.get("host") in INVALID_HOSTS:
            yield INVALID_HOST
        kind, colon, name = str(part.get("principal", "")).partition(":")
        if colon and not (kind and name):
            yield INCOMPLETE_PRINCIPAL


@family(CREATE, DESCRIBE, DELETE, has_authorizer=True)
def acls(case: Case) -> None:
    """Creations, some of them invalid or twice in a request; filters; deletions by several filters of one request."""
    try:
        for _ in range(STEPS):
            creations = drawn(case, creation, [0, 1, 1, 2, 3])
            case.features.update(features_of(creations))
            case.ask(CREATE, {"creations": creations}, case.version(CREATE))
            for _ in range(3):
                wanted = filter_of(case)
                case.features.update(features_of([wanted]))
                case.ask(DESCRIBE, wanted, case.version(DESCRIBE))
            filters = drawn(case, filter_of, [0, 1, 1, 2])
            case.features.update(features_of(filters))
            case.ask(DELETE, {"filters": filters}, case.version(DELETE))
    finally:
        delete_all(case)


def delete_all(case: Case) -> None:
    """Delete all ACLs, of each side alone: cases run one after another."""
    anything: Tree = {
        "resource_type_filter": int(ResourceType.ANY),
        "pattern_type_filter": int(PatternType.ANY),
        "operation": int(AclOperation.ANY),
        "permission_type": int(AclPermission.ANY),
    }
    for side in case.sides:
        side.ask(DELETE, 3, {"filters": [anything]})
