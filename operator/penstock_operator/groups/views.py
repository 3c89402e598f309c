"""Polled group states by cluster. `groups.discovery` writes them, the controller reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import ClusterRef, ObjectMeta
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupSpec
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.ports.brokers import ObservedGroupState
from penstock_operator.ports.kube import CONSUMER_GROUPS, Object
from penstock_operator.reconcile.group.names import is_discovered, winners

FRESH_MS = 10_000
ClusterKey = tuple[str, str]
"""Namespace and name of a Cluster."""


@dataclass(slots=True)
class GroupView:
    """Result of the polls of one cluster. `states`: groups that have objects. `missing`: by object UID, the number of
    consecutive complete lists without its group. `orphans`: owner UID by id of groups whose object is gone."""

    at_ms: int = 0
    states: dict[str, ObservedGroupState] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    orphans: dict[str, str] = field(default_factory=dict)
    refused_ms: dict[str, int] = field(default_factory=dict)
    """By group: time at which the API server rejected its object."""
    examined_up_to: str = ""
    """The last group without an object that the last poll described; the next poll continues after it."""
    is_capped: bool = False
    is_unreachable: bool = False
    """Whether the brokers have not answered for longer than `FRESH_MS`; the objects were queued to report that."""


class GroupViews:
    """Views by cluster, and parsed ConsumerGroup objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._views: dict[ClusterKey, GroupView] = {}
        self._parsed: dict[ClusterKey, dict[str, ParsedGroup]] = {}

    def view_for(self, cluster_key: ClusterKey) -> GroupView:
        """Return the view of a cluster; creates it if needed."""
        return self._views.setdefault(cluster_key, GroupView())

    def all(self) -> Mapping[ClusterKey, GroupView]:
        """Return all views."""
        return self._views

    def drop(self, cluster_key: ClusterKey) -> None:
        """Remove the view of a deleted cluster."""
        self._views.pop(cluster_key, None)
        self._parsed.pop(cluster_key, None)

    def known(self, cluster_key: ClusterKey, now_ms: int) -> Mapping[str, ObservedGroupState] | None:
        """Return the states of the last poll, or None if it is older than `FRESH_MS`."""
        view = self._views.get(cluster_key)
        return view.states if view is not None and now_ms - view.at_ms < FRESH_MS else None

    def forget(self, cluster_key: ClusterKey, group_id: str) -> None:
        """Drop the state of a group that the operator changed."""
        view = self._views.get(cluster_key)
        if view is not None:
            view.states.pop(group_id, None)

    def winners(self, namespace: str, cluster: str) -> Mapping[str, ConsumerGroup]:
        """Return the owning object by group id."""
        return winners((one.group, one.is_discovered) for one in self.objects_for(namespace, cluster))

    def objects_for(self, namespace: str, cluster: str) -> list[ParsedGroup]:
        """Return a cluster's valid objects that are not being deleted. Each version of an object is parsed once."""
        bodies = self._objects.in_cluster(CONSUMER_GROUPS, namespace, cluster)
        before = self._parsed.get((namespace, cluster), {})
        now: dict[str, ParsedGroup] = {}
        for body in bodies:
            name = body["metadata"]["name"]
            known = before.get(name)
            now[name] = known if known is not None and known.body is body else ParsedGroup.from_object(body)
        self._parsed[namespace, cluster] = now
        return [one for one in now.values() if one.group.metadata.uid and one.group.metadata.deletion_timestamp is None]


@dataclass(frozen=True, slots=True)
class ParsedGroup:
    """An object and its parsed form. `group` of an invalid object has no UID."""

    body: Object
    group: ConsumerGroup
    is_discovered: bool

    @classmethod
    def from_object(cls, body: Object) -> ParsedGroup:
        """Parse an object. Does not raise."""
        try:
            return cls(body, parse("ConsumerGroup", body), is_discovered(body))
        except InvalidResource:
            return cls(body, _UNREADABLE, False)


_UNREADABLE = ConsumerGroup(
    metadata=ObjectMeta(name="", namespace="", uid=""), spec=ConsumerGroupSpec(cluster_ref=ClusterRef(name=""))
)
