"""The rights of a `User`: ACLs in short form, and quotas."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc

MAX_ACLS = 200
MAX_RESOURCE_NAME = 249
MAX_HOST = 64
MAX_QUOTA = 2**53
"""The protocol transports quotas as 64-bit floats, which are exact up to here."""

Operation = Literal[
    "All",
    "Read",
    "Write",
    "Create",
    "Delete",
    "Alter",
    "Describe",
    "ClusterAction",
    "DescribeConfigs",
    "AlterConfigs",
    "IdempotentWrite",
    "TwoPhaseCommit",
]

RESOURCE_FIELDS = ("topic", "group", "transactionalId", "cluster")
OPERATIONS: dict[str, tuple[str, ...]] = {
    "topic": (
        "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs",
    ),
    "group": ("All", "Read", "Delete", "Describe", "DescribeConfigs", "AlterConfigs"),
    "transactionalId": ("All", "Write", "Describe", "TwoPhaseCommit"),
    "cluster": (
        "All", "Create", "Alter", "Describe", "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite",
    ),
}  # fmt: skip
"""Valid operations by resource field."""


def _operations_rule(field: str) -> Rule:
    valid = OPERATIONS[field]
    listed = ", ".join(f"'{operation}'" for operation in valid)
    return Rule(
        f"!has(self.{field}) || self.operations.all(o, o in [{listed}])",
        f"operations of {field} are {', '.join(valid)}",
    )


class UserAcl(Model, frozen=True, kw_only=True):
    """One entry of `spec.acls`. Schema rules enforce exactly one resource and operations that fit it."""

    rules = (
        Rule(
            f"[{', '.join(f'has(self.{field})' for field in RESOURCE_FIELDS)}].filter(b, b).size() == 1",
            f"set exactly one of {', '.join(RESOURCE_FIELDS)}; use one entry per resource",
        ),
        *(_operations_rule(field) for field in RESOURCE_FIELDS),
        Rule(
            "!has(self.prefix) || !self.prefix || !has(self.cluster)",
            "prefix does not apply to cluster: remove one of them",
        ),
        Rule("!has(self.cluster) || self.cluster", "cluster is true, or omitted"),
    )

    topic: (
        Annotated[str, doc("Topic name, or `*` for all topics.", min_length=1, max_length=MAX_RESOURCE_NAME)] | None
    ) = None
    group: (
        Annotated[str, doc("Group id, or `*` for all groups.", min_length=1, max_length=MAX_RESOURCE_NAME)] | None
    ) = None
    transactional_id: (
        Annotated[str, doc("Transactional id, or `*` for all of them.", min_length=1, max_length=MAX_RESOURCE_NAME)]
        | None
    ) = None
    cluster: Annotated[bool, doc("If true, the entry is about the cluster itself.")] | None = None
    prefix: Annotated[
        bool, doc("If true, the entry applies to all resources whose names start with the given name.")
    ] = False
    operations: Annotated[
        tuple[Operation, ...],
        doc(
            "Operations, by Kafka name. Read, Write, Delete and Alter include Describe; AlterConfigs includes"
            " DescribeConfigs.",
            schema={"x-kubernetes-list-type": "set"},
            min_length=1,
            max_length=12,
        ),
    ]
    host: Annotated[
        str,
        doc(
            "Client address, or a network such as 10.0.0.0/8, to which the entry applies. `*`: all.",
            min_length=1,
            max_length=MAX_HOST,
        ),
    ] = "*"
    deny: Annotated[bool, doc("If true, the entry denies the operations. It overrides entries that allow them.")] = (
        False
    )


class UserQuotas(Model, frozen=True, kw_only=True):
    """Quotas of a user (KIP-13, KIP-124, KIP-599). None: unlimited."""

    producer_byte_rate: (
        Annotated[int, doc("Bytes per second that the user may produce, per broker.", ge=1, le=MAX_QUOTA)] | None
    ) = None
    consumer_byte_rate: (
        Annotated[int, doc("Bytes per second that the user may consume, per broker.", ge=1, le=MAX_QUOTA)] | None
    ) = None
    request_percentage: (
        Annotated[
            int,
            doc("Share of a broker's time that the user's requests may take, in percent of one CPU.", ge=1, le=100_000),
        ]
        | None
    ) = None
    controller_mutation_rate: (
        Annotated[int, doc("Partitions per second that the user may create or delete.", ge=1, le=MAX_QUOTA)] | None
    ) = None
