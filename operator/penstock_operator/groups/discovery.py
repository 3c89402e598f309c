"""Polls the groups of each cluster every few seconds: creates and deletes objects of discovered groups, queues changes.

A background task of the leader. A group without an object gets one, owned by the Cluster; the operator deletes it after
two consecutive complete lists without the group. A list fails if any broker fails, so a broker that is down does not
cause deletions.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report_failure
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue
from penstock_operator.groups.deletions import deletion_owner
from penstock_operator.groups.views import FRESH_MS, ClusterKey, GroupView, GroupViews, ParsedGroup
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedGroupState
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, Kube, KubeError, KubeEvent, Object
from penstock_operator.reconcile.group.names import discovered, hashed_name, plain_name
from penstock_operator.reconcile.group.types import group_exists

POLL_S = 4.0
MAX_DISCOVERED = 1_000
MAX_CREATED_PER_POLL = 100
MIN_EXAMINED_PER_POLL = 100
"""Minimum number of groups without an object to describe per poll: orphaned groups are found even if the cap is low."""
LISTS_NEEDED = 2
POLL_TIMEOUT_S = 60.0
REFUSED_RETRY_MS = 300_000
"""Pause before the creation of an object that the API server rejected is retried."""

log = get_logger("operator")


class Discovery:
    """Group discovery. `max_discovered` limits the discovered objects per cluster; an Event reports if it is
    reached."""

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        queue: Queue,
        clock: Clock,
        views: GroupViews,
        max_discovered: int = MAX_DISCOVERED,
    ) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections
        self._queue, self._clock, self._views = queue, clock, views
        self._max = max_discovered
        self._under_way: dict[ClusterKey, asyncio.Task[None]] = {}

    async def run(self, poll_s: float = POLL_S) -> None:
        """Poll until cancelled. A cluster that does not answer does not delay others."""
        try:
            while True:
                self._start_polls()
                await asyncio.sleep(poll_s)
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def poll(self) -> None:
        """Poll all clusters once and wait for completion."""
        self._start_polls()
        await asyncio.gather(*self._under_way.values())

    def _start_polls(self) -> None:
        """Start a poll of each cluster that has none running."""
        if not self._objects.is_listed(CONSUMER_GROUPS) or not self._objects.is_listed(CLUSTERS):
            return
        clusters = {
            (c["metadata"]["namespace"], c["metadata"]["name"]): c for c in self._objects.list_objects(CLUSTERS)
        }
        for cluster_key in [cluster_key for cluster_key in self._views.all() if cluster_key not in clusters]:
            self._views.drop(cluster_key)
        for cluster_key, cluster in clusters.items():
            if cluster_key not in self._under_way:
                task = asyncio.create_task(self._poll_safely(cluster), name=f"groups of {'/'.join(cluster_key)}")
                self._under_way[cluster_key] = task
                task.add_done_callback(partial(self._poll_finished, cluster_key))

    def _poll_finished(self, cluster_key: ClusterKey, task: asyncio.Task[None]) -> None:
        del self._under_way[cluster_key]
        report_failure(task)

    async def _poll_safely(self, cluster: Object) -> None:
        metadata = cluster["metadata"]
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                await self._poll(cluster)
        except (BrokersError, KubeError, TimeoutError) as error:
            log.debug("cannot poll groups", cluster=f"{metadata['namespace']}/{metadata['name']}", why=str(error))
            self._mark_unreachable(metadata["namespace"], metadata["name"])

    def _mark_unreachable(self, *cluster_key: str) -> None:
        view = self._views.view_for((cluster_key[0], cluster_key[1]))
        if not view.is_unreachable and self._clock.boot_ms() - view.at_ms > FRESH_MS:
            view.is_unreachable = True
            self._requeue_all((cluster_key[0], cluster_key[1]))

    def _requeue_all(self, cluster_key: ClusterKey) -> None:
        for one in self._views.objects_for(*cluster_key):
            self._queue.put(ObjectKey("ConsumerGroup", cluster_key[0], one.group.metadata.name))

    async def _poll(self, cluster: Object) -> None:
        cluster_key = (cluster["metadata"]["namespace"], cluster["metadata"]["name"])
        brokers = self._connections.gateway_for(*cluster_key)
        if brokers is None or cluster["metadata"].get("deletionTimestamp"):
            return
        view = self._views.view_for(cluster_key)
        # Offset commits without membership can create a group with an empty id, which cannot be described.
        ids = {group_id: state for group_id, state in (await brokers.group_ids()).items() if group_id}
        winners = self._views.winners(*cluster_key)
        # First, so that existing objects are updated even if creating new ones fails.
        await self._requeue_changed(cluster_key, brokers, view, winners)
        if not (cluster.get("spec") or {}).get("paused"):
            await self._create_missing(cluster, brokers, view, sorted(ids.keys() - winners.keys()))
            await self._delete_vanished(cluster_key, brokers, view, ids)

    async def _requeue_changed(
        self,
        cluster_key: tuple[str, str],
        brokers: BrokerGateway,
        view: GroupView,
        winners: Mapping[str, ConsumerGroup],
    ) -> None:
        """Fetch the groups with objects and queue those whose state changed."""
        states = await brokers.groups(sorted(winners)) if winners else {}
        before, view.states, view.at_ms = view.states, dict(states), self._clock.boot_ms()
        if view.is_unreachable:
            view.is_unreachable = False
            self._requeue_all(cluster_key)
        for group_id, group in winners.items():
            if states.get(group_id) != before.get(group_id):
                self._queue.put(ObjectKey("ConsumerGroup", cluster_key[0], group.metadata.name))

    async def _create_missing(
        self, cluster: Object, brokers: BrokerGateway, view: GroupView, new: Sequence[str]
    ) -> None:
        metadata = cluster["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        examined = rotate(new, view.examined_up_to, max(self._max, MIN_EXAMINED_PER_POLL))
        states = await brokers.groups(examined) if examined else {}
        _record_orphans(view, new, examined, states)
        now_ms = self._clock.boot_ms()
        view.refused_ms = {g: at for g, at in view.refused_ms.items() if now_ms - at < REFUSED_RETRY_MS}
        hidden = view.orphans.keys() | view.refused_ms.keys()
        to_create = [g for g in examined if g in states and group_exists(states[g]) and g not in hidden]
        room = self._max - sum(one.is_discovered for one in self._views.objects_for(namespace, name))
        await self._report_cap(cluster, view, len(new) - max(room, 0))
        created = to_create[: max(0, min(room, MAX_CREATED_PER_POLL))]
        if examined and (room <= 0 or len(created) == len(to_create)):
            view.examined_up_to = examined[-1]
        for group_id in created:
            try:
                await self._create(cluster, group_id)
            except KubeError as error:
                if error.is_passing:
                    raise
                # A rejected object (admission, quota) must not block the other groups.
                view.refused_ms[group_id] = now_ms
                log.warning(
                    "cannot create a ConsumerGroup for a group",
                    cluster=f"{namespace}/{name}",
                    group=group_id[:100],
                    why=str(error),
                )

    async def _report_cap(self, cluster: Object, view: GroupView, too_many: int) -> None:
        if too_many > 0 and not view.is_capped:
            why = (
                f"limit of {self._max} discovered consumer groups reached, {too_many} groups have no object: create a"
                " ConsumerGroup for the groups of interest, or increase --max-discovered-groups"
            )
            await self._kube.record_events(cluster, [KubeEvent("Warning", "TooManyGroups", why)])
        view.is_capped = too_many > 0

    async def _create(self, cluster: Object, group_id: str) -> None:
        namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        plain = plain_name(group_id)
        names = [hashed_name(name, group_id)]
        if plain is not None and self._objects.get(CONSUMER_GROUPS, namespace, plain) is None:
            names.insert(0, plain)
        for to_create in names:
            try:
                await self._kube.create(CONSUMER_GROUPS, namespace, discovered(cluster, to_create, group_id))
            except KubeError as error:
                if error.status == 409 and to_create != names[-1]:
                    continue  # The name is used for another group or cluster.
                if error.status == 409:
                    return  # It exists, and the watch has not reported it yet.
                raise
            self._queue.put(ObjectKey("ConsumerGroup", namespace, to_create))
            return

    async def _delete_vanished(
        self, cluster_key: ClusterKey, brokers: BrokerGateway, view: GroupView, ids: Mapping[str, str]
    ) -> None:
        winners = self._views.winners(*cluster_key)
        missing: dict[str, int] = {}
        suspects: dict[str, ParsedGroup] = {}
        for one in self._views.objects_for(*cluster_key):
            group_id, uid = one.group.group_id, one.group.metadata.uid
            if not one.is_discovered:
                continue
            if group_id in winners and winners[group_id].metadata.uid != uid:
                await self._delete(one)  # A user applied an object for the same group.
            elif group_id not in ids:
                missing[uid] = view.missing.get(uid, 0) + 1
                if missing[uid] >= LISTS_NEEDED:
                    suspects[group_id] = one
        view.missing = missing
        # While coordinators move, lists may lack a group; ask its coordinator.
        states = await brokers.groups(sorted(suspects)) if suspects else {}
        for group_id, one in suspects.items():
            if not group_exists(states.get(group_id)):
                await self._delete(one)

    async def _delete(self, one: ParsedGroup) -> None:
        """Delete a discovered object, but not if a user changed it since it was read."""
        metadata, version = one.group.metadata, str(one.body["metadata"].get("resourceVersion") or "")
        target = (CONSUMER_GROUPS, metadata.namespace, metadata.name, metadata.uid)
        try:
            await self._kube.delete(*target, resource_version=version)
        except KubeError as error:
            if error.status != 409:
                raise
            self._queue.put(
                ObjectKey("ConsumerGroup", metadata.namespace, metadata.name)
            )  # the next poll checks it again, too


def rotate(groups: Sequence[str], behind: str, at_most: int) -> Sequence[str]:
    """Return up to `at_most` of the sorted `groups`, starting after `behind` and wrapping around."""
    start = bisect_right(groups, behind)
    return [*groups[start:], *groups[:start]][:at_most]


def _record_orphans(
    view: GroupView, new: Sequence[str], examined: Sequence[str], states: Mapping[str, ObservedGroupState]
) -> None:
    """Update the orphaned groups of a view; groups not examined in this poll stay unchanged."""
    unseen = set(new).difference(examined)
    found = {g: uid for g, state in states.items() if (uid := deletion_owner(state))}
    view.orphans = {g: uid for g, uid in view.orphans.items() if g in unseen} | found
