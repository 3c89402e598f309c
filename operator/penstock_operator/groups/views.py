"""What the polls saw of each cluster's groups, shared between `groups.discovery`, which polls, and the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import ClusterRef, ObjectMeta
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupSpec
from penstock_operator.ports.brokers import ObservedGroupState
from penstock_operator.ports.kube import CONSUMER_GROUPS, Object
from penstock_operator.reconcile.group.names import is_discovered, winners

FRESH_MS = 10_000
Place = tuple[str, str]
"""A namespace and the name of a Cluster."""


@dataclass(slots=True)
class GroupView:
    """`states` of the groups that have objects. `missing` counts, by object's UID, how many complete lists of groups in
    a row lacked its group. `orphans` has groups that no object stands for any more: by id their owner's UID."""

    at_ms: int = 0
    states: dict[str, ObservedGroupState] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    orphans: dict[str, str] = field(default_factory=dict)
    refused_ms: dict[str, int] = field(default_factory=dict)
    """By group for which the API server takes no object, when that was."""
    looked_up_to: str = ""
    """The last of the groups without an object that the last poll looked at: the next one goes on behind it."""
    is_capped: bool = False
    is_blind: bool = False
    """Whether the brokers have not answered for longer than `FRESH_MS`, and the objects were called to say so."""


class GroupViews:
    """By cluster."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._views: dict[Place, GroupView] = {}
        self._parsed: dict[Place, dict[str, Parsed]] = {}

    def of(self, place: Place) -> GroupView:
        return self._views.setdefault(place, GroupView())

    def all(self) -> Mapping[Place, GroupView]:
        return self._views

    def drop(self, place: Place) -> None:
        self._views.pop(place, None)
        self._parsed.pop(place, None)

    def known(self, place: Place, now_ms: int) -> Mapping[str, ObservedGroupState] | None:
        """The last poll's states, where they are new enough."""
        view = self._views.get(place)
        return view.states if view is not None and now_ms - view.at_ms < FRESH_MS else None

    def forget(self, place: Place, group_id: str) -> None:
        """The group was changed just now."""
        view = self._views.get(place)
        if view is not None:
            view.states.pop(group_id, None)

    def winners(self, namespace: str, cluster: str) -> Mapping[str, ConsumerGroup]:
        """By group id the object that it belongs to."""
        return winners((one.group, one.is_discovered) for one in self.objects_of(namespace, cluster))

    def objects_of(self, namespace: str, cluster: str) -> list[Parsed]:
        """All of a cluster that can be read and are not on their way out; each is parsed once for each of its
        versions."""
        bodies = self._objects.in_cluster(CONSUMER_GROUPS, namespace, cluster)
        before = self._parsed.get((namespace, cluster), {})
        now: dict[str, Parsed] = {}
        for body in bodies:
            name = body["metadata"]["name"]
            known = before.get(name)
            now[name] = known if known is not None and known.body is body else Parsed.of(body)
        self._parsed[namespace, cluster] = now
        return [one for one in now.values() if one.group.metadata.uid and one.group.metadata.deletion_timestamp is None]


@dataclass(frozen=True, slots=True)
class Parsed:
    """`group` of an object that cannot be read has no UID."""

    body: Object
    group: ConsumerGroup
    is_discovered: bool

    @classmethod
    def of(cls, body: Object) -> Parsed:
        try:
            return cls(body, parsed(body), is_discovered(body))
        except msgspec.ValidationError:
            return cls(body, _UNREADABLE, False)


def parsed(body: Object) -> ConsumerGroup:
    """A status that cannot be read, such as one of a newer operator, counts as none: it is written anew. Raises
    `msgspec.ValidationError`."""
    try:
        return msgspec.convert(body, ConsumerGroup)
    except msgspec.ValidationError:
        return msgspec.convert({key: value for key, value in body.items() if key != "status"}, ConsumerGroup)


_UNREADABLE = ConsumerGroup(
    metadata=ObjectMeta(name="", namespace="", uid=""), spec=ConsumerGroupSpec(cluster_ref=ClusterRef(name=""))
)
