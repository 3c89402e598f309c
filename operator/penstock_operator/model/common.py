"""What all kinds share: identity, conditions, and what the generator of their schemas has to know of a kind."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from penstock_operator.model.fields import PrinterColumn, Rule, doc

GROUP = "penstock.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

Kind = Literal["Cluster", "Topic", "ConsumerGroup"]
PLURALS: dict[Kind, str] = {"Cluster": "clusters", "Topic": "topics", "ConsumerGroup": "consumergroups"}

DeletionPolicy = Literal["Retain", "Delete"]
LISTS_WITHOUT = 2
"""Complete lists in a row that lack an owner, before it counts as deleted."""

MAX_TOPIC_NAME = 249
TOPIC_NAME = "^[a-zA-Z0-9._-]+$"

DNS_LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MAX_CLUSTER_NAME = 40
"""So that names made from it (StatefulSet, revisions, pods, Services) stay within Kubernetes' 63 characters."""


class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a resource. Field names are camelCase outside; unknown fields are ignored, the schema refuses them."""

    rules: ClassVar[tuple[Rule, ...]] = ()


class ObjectMeta(Model, frozen=True, kw_only=True):
    """Of an object's metadata what reconciling needs."""

    name: str
    namespace: str
    uid: str
    generation: int = 0
    resource_version: str = ""
    deletion_timestamp: str | None = None
    creation_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ObjectKey(msgspec.Struct, frozen=True, order=True):
    """What the queue holds: which object is to be looked at."""

    kind: Kind
    namespace: str
    name: str


class Condition(Model, frozen=True, kw_only=True):
    """As `metav1.Condition`. `last_transition_time` (RFC 3339) changes with `status` only: see `with_conditions`."""

    type: Annotated[str, doc("What is spoken of.")]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Whether it is so.")]
    reason: Annotated[str, doc("Why, as one word in CamelCase.")]
    message: Annotated[str, doc("Why, for people.")] = ""
    observed_generation: Annotated[int, doc("Of which generation of the object this is said.")] = 0
    last_transition_time: Annotated[str, doc("When `status` became what it is, in RFC 3339.")] = ""


class ClusterRef(Model, frozen=True, kw_only=True):
    """The `Cluster` that something belongs to, in the same namespace."""

    rules = (
        Rule(
            "self.name == oldSelf.name",
            "clusterRef cannot be changed: delete this object (deletionPolicy Retain keeps what it stands for)"
            " and create one for the other Cluster",
        ),
    )

    name: Annotated[str, doc("The Cluster's name, in the same namespace.", min_length=1, max_length=63)]


class NamedReference(msgspec.Struct, frozen=True, kw_only=True):
    """What `kubectl` calls a kind, and prints of it."""

    kind: Kind
    short: str
    description: str
    columns: tuple[PrinterColumn, ...]
    scale: dict[str, str] | None = None

    @property
    def plural(self) -> str:
        return PLURALS[self.kind]


def condition_column(type_: str, priority: int = 0) -> PrinterColumn:
    return PrinterColumn(type_, f'.status.conditions[?(@.type=="{type_}")].status', priority=priority)


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


def message_column(type_: str = "Ready") -> PrinterColumn:
    return PrinterColumn("Message", f'.status.conditions[?(@.type=="{type_}")].message', priority=1)


def keyed_by(field: str) -> dict[str, Any]:
    """The schema of a list whose entries are told apart by a field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


def topic_name_rule(subject: str) -> Rule:
    return Rule(
        f"self.matches('{TOPIC_NAME}') && self != '.' && self != '..'",
        f"{subject} may have letters, digits, '.', '_' and '-' only, and cannot be '.' or '..'",
    )


def with_conditions(before: tuple[Condition, ...], now: tuple[Condition, ...], at: str) -> tuple[Condition, ...]:
    """`now`, where a condition whose status is as `before` keeps the time of its last transition; others get `at`."""
    times = {(c.type, c.status): c.last_transition_time for c in before}
    return tuple(msgspec.structs.replace(c, last_transition_time=times.get((c.type, c.status)) or at) for c in now)
