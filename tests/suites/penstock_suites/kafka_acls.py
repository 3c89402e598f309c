"""The options of kafka-acls.sh that the suites use: adds, removes or lists ACLs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

LIMIT_S = 30
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
CLUSTER = (ResourceType.BROKER, "kafka-cluster")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config", type=Path, help="file of client settings, NAME=VALUE")
    for action in ("--add", "--remove", "--list", "--force", "--cluster"):
        parser.add_argument(action, action="store_true")
    for resource in RESOURCES:
        parser.add_argument(f"--{resource.replace('_', '-')}", action="append", default=[])
    for permission in ("allow", "deny"):
        parser.add_argument(f"--{permission}-principal", action="append", default=[])
        parser.add_argument(f"--{permission}-host", action="append", default=[])
    parser.add_argument("--operation", action="append", default=[])
    parser.add_argument("--authorizer-properties")
    return parser.parse_args()


def bindings(chosen: argparse.Namespace) -> Iterator[AclBinding]:
    """Return the ACLs: each resource with each principal, host and operation."""
    named = [(kind, name) for option, kind in RESOURCES.items() for name in getattr(chosen, option)]
    for kind, name in [*named, *([CLUSTER] if chosen.cluster else [])]:
        for permission in ("allow", "deny"):
            for principal in getattr(chosen, f"{permission}_principal"):
                for host in getattr(chosen, f"{permission}_host") or ["*"]:
                    for operation in chosen.operation or ["All"]:
                        yield AclBinding(
                            kind,
                            name,
                            ResourcePatternType.LITERAL,
                            principal,
                            host,
                            AclOperation[operation.upper()],
                            AclPermissionType[permission.upper()],
                        )


def main() -> None:
    chosen = parsed()
    settings = {"bootstrap.servers": chosen.bootstrap_server}
    if chosen.command_config is not None:
        settings |= dict(line.split("=", 1) for line in chosen.command_config.read_text().splitlines())
    admin, acls = AdminClient(settings), list(bindings(chosen))
    if chosen.add:
        for future in admin.create_acls(acls).values():
            future.result(LIMIT_S)
    elif chosen.remove:
        filters = [
            AclBindingFilter(
                acl.restype,
                acl.name,
                acl.resource_pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for acl in acls
        ]
        for future in admin.delete_acls(filters).values():
            future.result(LIMIT_S)
    else:
        any_acl = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for acl in admin.describe_acls(any_acl).result(LIMIT_S):
            print(acl)


if __name__ == "__main__":
    main()
