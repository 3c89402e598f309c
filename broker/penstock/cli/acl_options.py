"""The options of `penstock acl` that name resources, operations and principals, and what they mean as ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer

from penstock.config.addresses import quoted
from penstock.security.principal import parse_principal
from penstock.wire.acl import CLUSTER_NAME, AclOperation, AclPermission, PatternType, ResourceType
from penstock.wire.acl_binding import SUPPORTED_OPERATIONS, AclBinding

NAMED_OPERATIONS = {
    operation.name.lower().replace("_", "-"): operation
    for operation in AclOperation
    if operation not in (AclOperation.UNKNOWN, AclOperation.ANY)
}
"""Operations by their names in options; `DescribeConfigs` and `describe_configs` are accepted, too."""
PRODUCER_OPERATIONS = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
}
CONSUMER_OPERATIONS = {
    ResourceType.TOPIC: (AclOperation.READ, AclOperation.DESCRIBE),
    ResourceType.GROUP: (AclOperation.READ,),
}
RESOURCE_FLAGS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.CLUSTER: "--cluster",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}

PrincipalName = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="User:NAME, or User:* for everyone; NAME alone means User:NAME.")
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="NAME", help="Topic, or * for all; may be repeated.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", "-g", metavar="NAME", help="Group, or * for all; may be repeated.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="Transactional id, or * for all; may be repeated."),
]
Prefix = Annotated[
    bool,
    typer.Option("--prefix", help="Treat each name as a prefix: apply to all resources whose name starts with it."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="NAME,...",
        help="Operations: read, write, create, delete, alter, describe, all, ...; comma-separated.",
    ),
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny instead of allow. A denial takes precedence.")]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that options name."""

    topics: list[str]
    groups: list[str]
    is_cluster: bool
    transactional_ids: list[str]
    is_prefix: bool = False

    def __iter__(self) -> Iterator[tuple[ResourceType, str]]:
        for kind, names in (
            (ResourceType.TOPIC, self.topics),
            (ResourceType.GROUP, self.groups),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
        ):
            yield from ((kind, name) for name in names)
        if self.is_cluster:
            yield ResourceType.CLUSTER, CLUSTER_NAME

    def pattern(self, kind: ResourceType) -> PatternType:
        """Return the pattern type of ACLs on resources of a type."""
        return PatternType.PREFIXED if self.is_prefix and kind != ResourceType.CLUSTER else PatternType.LITERAL

    @property
    def types(self) -> set[ResourceType]:
        """Return the types of the resources."""
        return {kind for kind, _ in self}


def refuse(message: str, option: str | None = None) -> NoReturn:
    """Raise `typer.BadParameter`."""
    raise typer.BadParameter(message, param_hint=option)


def parse_principal_name(text: str) -> str:
    """Return a principal; a name alone is a user's. Raises `typer.BadParameter`."""
    try:
        return str(parse_principal(text if ":" in text else f"User:{text}"))
    except ValueError as e:
        refuse(str(e), "PRINCIPAL")


def parse_operations(texts: Iterable[str]) -> list[AclOperation]:
    """Return the operations of comma-separated names. Raises `typer.BadParameter`."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return list(dict.fromkeys(map(parse_operation, names)))


def parse_operation(text: str) -> AclOperation:
    """Return the operation with a name such as `describe-configs`. Raises `typer.BadParameter`."""
    by_letters = {name.replace("-", ""): operation for name, operation in NAMED_OPERATIONS.items()}
    found = by_letters.get(text.lower().replace("-", "").replace("_", ""))
    if found is None:
        refuse(f"{quoted(text)} is not an operation; use one of {', '.join(NAMED_OPERATIONS)}", "--operation")
    return found


def check_supported(kind: ResourceType, operation: AclOperation) -> None:
    """Raise `typer.BadParameter` if an operation means nothing for a resource type."""
    if operation == AclOperation.ALL or operation in SUPPORTED_OPERATIONS[kind]:
        return
    valid = ["all", *(name for name, each in NAMED_OPERATIONS.items() if each in SUPPORTED_OPERATIONS[kind])]
    name = next(name for name, each in NAMED_OPERATIONS.items() if each == operation)
    refuse(f"{RESOURCE_FLAGS[kind]} has no operation {quoted(name)}; use one of {', '.join(valid)}", "--operation")


def bindings_of(
    principal: str,
    resources: Resources,
    operations: list[AclOperation],
    *,
    hosts: list[str],
    is_denied: bool,
    is_producer: bool,
    is_consumer: bool,
) -> list[AclBinding]:
    """Return the ACLs that the options of `acl add` mean. Raises `typer.BadParameter`."""
    check_presets(resources, operations, is_producer, is_consumer)
    found = []
    for kind, name in resources:
        granted = list(operations)
        granted += PRODUCER_OPERATIONS.get(kind, ()) if is_producer else ()
        granted += CONSUMER_OPERATIONS.get(kind, ()) if is_consumer else ()
        for operation in dict.fromkeys(granted):
            check_supported(kind, operation)
            permission = AclPermission.DENY if is_denied else AclPermission.ALLOW
            found += [
                AclBinding(kind, resources.pattern(kind), name, principal, host, operation, permission)
                for host in hosts or ["*"]
            ]
    return found


def check_presets(resources: Resources, operations: list[AclOperation], is_producer: bool, is_consumer: bool) -> None:
    """Raise `typer.BadParameter` unless resources and operations fit each other."""
    types = resources.types
    if not types:
        refuse("no resource is given; set --topic, --group, --cluster or --transactional-id")
    if not (operations or is_producer or is_consumer):
        refuse("no operation is given; set --operation, --producer or --consumer")
    if is_producer and ResourceType.TOPIC not in types:
        refuse("--producer needs --topic; set the topics to write to")
    if is_consumer and not {ResourceType.TOPIC, ResourceType.GROUP} <= types:
        refuse("--consumer needs --topic and --group; set the topics to read and the group to read as")
    if operations:
        return
    covered = {*(PRODUCER_OPERATIONS if is_producer else ()), *(CONSUMER_OPERATIONS if is_consumer else ())}
    for kind in sorted(types - covered):
        preset = "--producer" if is_producer else "--consumer"
        refuse(f"{RESOURCE_FLAGS[kind]} is not part of {preset}; leave it out, or set --operation")
