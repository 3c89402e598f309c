"""What all kinds share: identity, conditions, and how a resource is read from what the API server gives."""

from __future__ import annotations

from typing import Literal

import msgspec

GROUP = "penstock.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

Kind = Literal["Cluster", "Topic", "ConsumerGroup"]
PLURALS: dict[Kind, str] = {"Cluster": "clusters", "Topic": "topics", "ConsumerGroup": "consumergroups"}

DeletionPolicy = Literal["Retain", "Delete"]


class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of a resource. Field names are camelCase outside; unknown fields are ignored, the schema refuses them."""


class Meta(Model, frozen=True, kw_only=True):
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


class Key(msgspec.Struct, frozen=True, order=True):
    """What the queue holds: which object is to be looked at."""

    kind: Kind
    namespace: str
    name: str


class Condition(Model, frozen=True, kw_only=True):
    """As `metav1.Condition`. `last_transition_time` (RFC 3339) changes with `status` only: see `with_conditions`."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class ClusterRef(Model, frozen=True, kw_only=True):
    """The `Cluster` that something belongs to, in the same namespace."""

    name: str


def with_conditions(before: tuple[Condition, ...], now: tuple[Condition, ...], at: str) -> tuple[Condition, ...]:
    """`now`, where a condition whose status is as `before` keeps the time of its last transition; others get `at`."""
    times = {(c.type, c.status): c.last_transition_time for c in before}
    return tuple(msgspec.structs.replace(c, last_transition_time=times.get((c.type, c.status)) or at) for c in now)
