"""Types shared by all kinds: metadata, keys, conditions, printer columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from penstock_operator.model.fields import PrinterColumn, Rule, doc

GROUP = "penstock.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

Kind = Literal["Cluster", "Topic", "ConsumerGroup", "User"]
PLURALS: dict[Kind, str] = {
    "Cluster": "clusters",
    "Topic": "topics",
    "ConsumerGroup": "consumergroups",
    "User": "users",
}

DeletionPolicy = Literal["Retain", "Delete"]
LISTS_WITHOUT = 2
"""Consecutive complete lists without an owner after which the operator treats the owner as deleted."""

MAX_TOPIC_NAME = 249
TOPIC_NAME = "^[a-zA-Z0-9._-]+$"

DNS_LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MAX_CLUSTER_NAME = 40
"""Keeps derived names (StatefulSet, revisions, pods, Services) within 63 characters, the limit of a DNS label."""


class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all parts of a resource. JSON names are camelCase; decoding ignores unknown fields, the schema rejects
    them."""

    rules: ClassVar[tuple[Rule, ...]] = ()


class ObjectMeta(Model, frozen=True, kw_only=True):
    """The fields of an object's metadata that the operator uses."""

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
    """Kind, namespace and name of an object; the element of the work queue."""

    kind: Kind
    namespace: str
    name: str


class Condition(Model, frozen=True, kw_only=True):
    """As `metav1.Condition`. `last_transition_time` changes only with `status`: see `with_conditions`."""

    type: Annotated[str, doc("Type of the condition.")]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Status of the condition.")]
    reason: Annotated[str, doc("Reason for the status, as one CamelCase word.")]
    message: Annotated[str, doc("Human-readable details.")] = ""
    observed_generation: Annotated[int, doc("Generation of the object that the condition was computed from.")] = 0
    last_transition_time: Annotated[str, doc("Time at which `status` last changed, in RFC 3339.")] = ""


NOT_RECONCILED = "NotReconciled"
INITIAL_STATUS: dict[str, Any] = {
    "observedGeneration": 0,
    "conditions": [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": NOT_RECONCILED,
            "message": "no operator has reconciled this object; if this stays, check that an operator runs and that it"
            " watches this namespace (operator.namespaces of its chart)",
        }
    ],
}
"""Status that the API server gives to an object without one, by a default in the schema. An operator cannot write to a
namespace that it does not watch; the API server can."""


def is_initial(status: object) -> bool:
    """Whether a status is the API server's default: no operator has written one."""
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    if not isinstance(conditions, Sequence) or not conditions:
        return False
    return all(isinstance(one, Mapping) and one.get("reason") == NOT_RECONCILED for one in conditions)


class ClusterRef(Model, frozen=True, kw_only=True):
    """Reference to a `Cluster` in the same namespace."""

    rules = (
        Rule(
            "self.name == oldSelf.name",
            "clusterRef cannot be changed: delete this object (deletionPolicy Retain keeps the topic, group or user)"
            " and create one for the other Cluster",
        ),
    )

    name: Annotated[str, doc("Name of the Cluster, in the same namespace.", min_length=1, max_length=63)]


class KindInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a kind and the columns that `kubectl get` prints."""

    kind: Kind
    short: str
    description: str
    columns: tuple[PrinterColumn, ...]
    scale: dict[str, str] | None = None

    @property
    def plural(self) -> str:
        """Plural name, as in API paths."""
        return PLURALS[self.kind]


def condition_column(type_: str, priority: int = 0) -> PrinterColumn:
    """Return the column with the status of a condition."""
    return PrinterColumn(type_, f'.status.conditions[?(@.type=="{type_}")].status', priority=priority)


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


def message_column(type_: str = "Ready") -> PrinterColumn:
    """Return the column with the message of a condition."""
    return PrinterColumn("Message", f'.status.conditions[?(@.type=="{type_}")].message', priority=1)


def keyed_by(field: str) -> dict[str, Any]:
    """Return the schema of a list whose entries are identified by `field`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


def topic_name_rule(subject: str) -> Rule:
    """Return the rule for Kafka topic names; `subject` starts its message."""
    return Rule(
        f"self.matches('{TOPIC_NAME}') && self != '.' && self != '..'",
        f"{subject} must contain only letters, digits, '.', '_' and '-', and not be '.' or '..'",
    )


def with_conditions(before: tuple[Condition, ...], now: tuple[Condition, ...], at: str) -> tuple[Condition, ...]:
    """Return `now` with transition times: from `before` if the status is unchanged, otherwise `at` (RFC 3339)."""
    times = {(c.type, c.status): c.last_transition_time for c in before}
    return tuple(msgspec.structs.replace(c, last_transition_time=times.get((c.type, c.status)) or at) for c in now)
