"""Finds groups, and what changed with those that are shown: polls each cluster's brokers every few seconds.

The engine runs it beside the runners, in the leader alone. A group without an object gets one, which is the Cluster's
and goes with the group: when two complete lists of groups in a row lack it. A request to one broker that fails fails
the list, so that a broker that is down takes no object away.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue
from penstock_operator.groups.deletions import owner_of_ended
from penstock_operator.groups.views import FRESH_MS, GroupView, GroupViews, Parsed, Place
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedGroupState
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, Kube, KubeError, KubeEvent, Object
from penstock_operator.reconcile.group.names import discovered, hashed_name, plain_name
from penstock_operator.reconcile.group.types import is_there

POLL_S = 4.0
MAX_DISCOVERED = 1_000
CREATED_A_POLL = 100
LOOKED_AT_A_POLL = 100
"""Groups without an object, at least: some of them are to be deleted, however few may be shown."""
LISTS_NEEDED = 2
POLL_TIMEOUT_S = 60.0
REFUSED_MS = 300_000
"""After which an object that the API server refused is tried again."""

log = get_logger("operator")


class Discovery:
    """`max_discovered` bounds the discovered objects of each cluster: beyond it an Event on the Cluster tells."""

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
        self._under_way: dict[Place, asyncio.Task[None]] = {}

    async def run(self, poll_s: float = POLL_S) -> None:
        """Until cancelled. A cluster that does not answer keeps no other waiting."""
        try:
            while True:
                self._begin()
                await asyncio.sleep(poll_s)
        finally:
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def poll(self) -> None:
        """All clusters, once, and to the end."""
        self._begin()
        await asyncio.gather(*self._under_way.values())

    def _begin(self) -> None:
        """Begins to poll each cluster whose last poll has ended."""
        if not self._objects.is_listed(CONSUMER_GROUPS) or not self._objects.is_listed(CLUSTERS):
            return
        clusters = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in self._objects.of(CLUSTERS)}
        for place in [place for place in self._views.all() if place not in clusters]:
            self._views.drop(place)
        for place, cluster in clusters.items():
            if place not in self._under_way:
                task = asyncio.create_task(self._poll_safely(cluster), name=f"groups of {'/'.join(place)}")
                self._under_way[place] = task
                task.add_done_callback(partial(self._ended, place))

    def _ended(self, place: Place, task: asyncio.Task[None]) -> None:
        del self._under_way[place]
        if not task.cancelled() and task.exception() is not None:
            log.error("a poll of groups raised", cluster="/".join(place), exc_info=task.exception())

    async def _poll_safely(self, cluster: Object) -> None:
        metadata = cluster["metadata"]
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                await self._poll(cluster)
        except (BrokersError, KubeError, TimeoutError) as error:
            log.debug("groups not seen", cluster=f"{metadata['namespace']}/{metadata['name']}", why=str(error))
            self._went_blind(metadata["namespace"], metadata["name"])

    def _went_blind(self, *place: str) -> None:
        view = self._views.of((place[0], place[1]))
        if not view.is_blind and self._clock.boot_ms() - view.at_ms > FRESH_MS:
            view.is_blind = True
            self._call_all((place[0], place[1]))

    def _call_all(self, place: Place) -> None:
        for one in self._views.objects_of(*place):
            self._queue.put(ObjectKey("ConsumerGroup", place[0], one.group.metadata.name))

    async def _poll(self, cluster: Object) -> None:
        place = (cluster["metadata"]["namespace"], cluster["metadata"]["name"])
        brokers = self._connections.of(*place)
        if brokers is None or cluster["metadata"].get("deletionTimestamp"):
            return
        view = self._views.of(place)
        # Who commits without a member may do so for a group without a name, which nobody can ask for.
        ids = {group_id: state for group_id, state in (await brokers.group_ids()).items() if group_id}
        winners = self._views.winners(*place)
        # First: what is shown stays true, whatever becomes of what is not shown yet.
        await self._notice(place, brokers, view, winners)
        if not (cluster.get("spec") or {}).get("paused"):
            await self._show_new(cluster, brokers, view, sorted(ids.keys() - winners.keys()))
            await self._take_away(place, brokers, view, ids)

    async def _notice(
        self, place: tuple[str, str], brokers: BrokerGateway, view: GroupView, winners: Mapping[str, ConsumerGroup]
    ) -> None:
        """Puts in the keys of those whose state is another than before."""
        states = await brokers.groups(sorted(winners)) if winners else {}
        before, view.states, view.at_ms = view.states, dict(states), self._clock.boot_ms()
        if view.is_blind:
            view.is_blind = False
            self._call_all(place)
        for group_id, group in winners.items():
            if states.get(group_id) != before.get(group_id):
                self._queue.put(ObjectKey("ConsumerGroup", place[0], group.metadata.name))

    async def _show_new(self, cluster: Object, brokers: BrokerGateway, view: GroupView, new: Sequence[str]) -> None:
        metadata = cluster["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        looked_at = in_turn(new, view.looked_up_to, max(self._max, LOOKED_AT_A_POLL))
        states = await brokers.groups(looked_at) if looked_at else {}
        _note_orphans(view, new, looked_at, states)
        now_ms = self._clock.boot_ms()
        view.refused_ms = {g: at for g, at in view.refused_ms.items() if now_ms - at < REFUSED_MS}
        hidden = view.orphans.keys() | view.refused_ms.keys()
        wanted = [g for g in looked_at if g in states and is_there(states[g]) and g not in hidden]
        room = self._max - sum(one.is_discovered for one in self._views.objects_of(namespace, name))
        await self._tell_of_cap(cluster, view, len(new) - max(room, 0))
        created = wanted[: max(0, min(room, CREATED_A_POLL))]
        if looked_at and (room <= 0 or len(created) == len(wanted)):
            view.looked_up_to = looked_at[-1]
        for group_id in created:
            try:
                await self._create(cluster, group_id)
            except KubeError as error:
                if error.is_passing:
                    raise
                # One that the API server does not take (its rules, a quota) keeps no other from being shown.
                view.refused_ms[group_id] = now_ms
                log.warning("a group is not shown", cluster=f"{namespace}/{name}", group=group_id[:100], why=str(error))

    async def _tell_of_cap(self, cluster: Object, view: GroupView, too_many: int) -> None:
        if too_many > 0 and not view.is_capped:
            why = (
                f"{self._max} consumer groups are shown and {too_many} more are not: apply a ConsumerGroup for those"
                " that you want to see, or start the operator with a higher --max-discovered-groups"
            )
            await self._kube.tell(cluster, [KubeEvent("Warning", "TooManyGroups", why)])
        view.is_capped = too_many > 0

    async def _create(self, cluster: Object, group_id: str) -> None:
        namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
        plain = plain_name(group_id)
        names = [hashed_name(name, group_id)]
        if plain is not None and self._objects.get(CONSUMER_GROUPS, namespace, plain) is None:
            names.insert(0, plain)
        for wanted in names:
            try:
                await self._kube.create(CONSUMER_GROUPS, namespace, discovered(cluster, wanted, group_id))
            except KubeError as error:
                if error.status == 409 and wanted != names[-1]:
                    continue  # Somebody has that name, for another group or another cluster.
                if error.status == 409:
                    return  # It is there already, and the watch has not told.
                raise
            self._queue.put(ObjectKey("ConsumerGroup", namespace, wanted))
            return

    async def _take_away(self, place: Place, brokers: BrokerGateway, view: GroupView, ids: Mapping[str, str]) -> None:
        winners = self._views.winners(*place)
        missing: dict[str, int] = {}
        suspects: dict[str, Parsed] = {}
        for one in self._views.objects_of(*place):
            group_id, uid = one.group.group_id, one.group.metadata.uid
            if not one.is_discovered:
                continue
            if group_id in winners and winners[group_id].metadata.uid != uid:
                await self._delete(one)  # One that somebody applied for the same group takes its place.
            elif group_id not in ids:
                missing[uid] = view.missing.get(uid, 0) + 1
                if missing[uid] >= LISTS_NEEDED:
                    suspects[group_id] = one
        view.missing = missing
        # While coordinators move, lists may lack a group that its new coordinator has: that one is asked.
        states = await brokers.groups(sorted(suspects)) if suspects else {}
        for group_id, one in suspects.items():
            if not is_there(states.get(group_id)):
                await self._delete(one)

    async def _delete(self, one: Parsed) -> None:
        """As it was looked at: one that somebody has taken over since then is theirs."""
        metadata, version = one.group.metadata, str(one.body["metadata"].get("resourceVersion") or "")
        place = (CONSUMER_GROUPS, metadata.namespace, metadata.name, metadata.uid)
        try:
            await self._kube.delete(*place, resource_version=version)
        except KubeError as error:
            if error.status != 409:
                raise
            self._queue.put(
                ObjectKey("ConsumerGroup", metadata.namespace, metadata.name)
            )  # the next poll looks again, too


def in_turn(groups: Sequence[str], behind: str, at_most: int) -> Sequence[str]:
    """So many of `groups`, which are in order, from the first one behind `behind` on and around."""
    start = bisect_right(groups, behind)
    return [*groups[start:], *groups[:start]][:at_most]


def _note_orphans(
    view: GroupView, new: Sequence[str], looked_at: Sequence[str], states: Mapping[str, ObservedGroupState]
) -> None:
    """Those that were not looked at this time stay as they were found."""
    unseen = set(new).difference(looked_at)
    found = {g: uid for g, state in states.items() if (uid := owner_of_ended(state))}
    view.orphans = {g: uid for g, uid in view.orphans.items() if g in unseen} | found
