"""Reconciles `ConsumerGroup` objects. The engine's runner calls it with batches of keys; `groups.discovery` queues keys
for changes at the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from penstock.runtime.clock import Clock
from penstock_operator.engine.invalid_objects import report_invalid
from penstock_operator.engine.ports import ConnectionPool, Objects, ReconcileResult
from penstock_operator.groups.deletions import GroupDeletions
from penstock_operator.groups.pacing import StatusPacing
from penstock_operator.groups.replays import GroupReplays
from penstock_operator.groups.views import GroupViews
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.replay import ReplayStatus
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ConfigPatch, ObservedGroupState
from penstock_operator.ports.kube import CONSUMER_GROUPS, Kube, KubeError, Object
from penstock_operator.reconcile.group.names import DISCOVERED, is_taken_over
from penstock_operator.reconcile.group.reconcile import reconcile, rejected, utc_time
from penstock_operator.reconcile.group.replay import topic_to_query
from penstock_operator.reconcile.group.reset import offset_queries, range_partitions, topics_to_describe
from penstock_operator.reconcile.group.types import (
    At,
    CommitOffsets,
    GroupPlan,
    GroupSettingsPatch,
    ObservedGroup,
    ReplayLetters,
)

MAX_CONCURRENT_WRITES = 8
UNREACHABLE_RETRY_S = 15.0
REJECTED_RETRY_S = 60.0
"""Pause before settings that the brokers rejected are tried again."""
EARLIEST, LATEST = -2, -1
ClusterKey = tuple[str, str]


class GroupController:
    """The `engine.ports.ResourceController` of ConsumerGroups."""

    batch = 200

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        clock: Clock,
        views: GroupViews,
        pacing: StatusPacing,
        replays: GroupReplays,
    ) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections
        self._clock, self._views, self._pacing, self._replays = clock, views, pacing, replays
        self._deletions = GroupDeletions(kube, objects, connections, clock, views)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        """Reconcile a batch, one broker request per cluster for its groups."""
        results: dict[ObjectKey, ReconcileResult] = {}
        by_cluster: dict[ClusterKey, list[tuple[ObjectKey, Object, ConsumerGroup]]] = {}
        deleted_keys: list[ObjectKey] = []
        for key in keys:
            body = self._objects.get(CONSUMER_GROUPS, key.namespace, key.name)
            if body is None:
                deleted_keys.append(key)
                self._pacing.forget(key)
                self._replays.stop(key)
                continue
            try:
                group = parse("ConsumerGroup", body)
            except InvalidResource as error:
                results[key] = await report_invalid(self._kube, CONSUMER_GROUPS, body, error, self._now())
                continue
            if group.metadata.deletion_timestamp is None:
                by_cluster.setdefault((key.namespace, group.spec.cluster_ref.name), []).append((key, body, group))
            else:
                results[key] = ReconcileResult()
        await asyncio.gather(
            *(self._reconcile_cluster(cluster_key, entries, results) for cluster_key, entries in by_cluster.items())
        )
        outcomes = await asyncio.gather(*(self._handle_deleted(key) for key in deleted_keys))
        results.update(zip(deleted_keys, outcomes, strict=True))
        return results

    async def _handle_deleted(self, key: ObjectKey) -> ReconcileResult:
        async with self._slots:
            return await self._deletions.handle_deleted(key)

    async def resync(self) -> None:
        """Find groups whose object was deleted while no operator ran: see `GroupDeletions.resync`."""
        await self._deletions.resync()

    async def _reconcile_cluster(
        self,
        cluster_key: ClusterKey,
        entries: Sequence[tuple[ObjectKey, Object, ConsumerGroup]],
        results: dict[ObjectKey, ReconcileResult],
    ) -> None:
        """Reconcile the objects of one cluster; fetches their groups together."""
        brokers = self._connections.gateway_for(*cluster_key)
        if brokers is None:
            observed = ObservedGroup(is_cluster_known=False)
            done = [self._apply_plan(*entry, None, observed) for entry in entries]
        else:
            try:
                states = await self._states(cluster_key, brokers, entries)
            except BrokersError as error:
                unreachable = ObservedGroup(error=str(error), is_hibernated=error.is_hibernated)
                done = [self._apply_plan(*entry, None, unreachable) for entry in entries]
            else:
                winners = self._views.winners(*cluster_key)
                done = [
                    self._reconcile_group(brokers, entry, states.get(entry[2].group_id), winners) for entry in entries
                ]
        outcomes = await asyncio.gather(*done)
        results.update(zip((entry[0] for entry in entries), outcomes, strict=True))

    async def _states(
        self,
        cluster_key: ClusterKey,
        brokers: BrokerGateway,
        entries: Sequence[tuple[ObjectKey, Object, ConsumerGroup]],
    ) -> Mapping[str, ObservedGroupState]:
        """Return group states: from the last poll if it is recent and nothing is to be changed, else from the
        brokers."""
        now_ms = self._clock.boot_ms()
        known, group_ids = self._views.known(cluster_key, now_ms), []
        for _, _, group in entries:
            spec = group.spec
            is_still = spec.reset is None and spec.starting_offsets is None and spec.replay_dead_letters is None
            if known is None or not is_still or group.group_id not in known:
                group_ids.append(group.group_id)
        fresh = await brokers.groups(sorted(set(group_ids))) if group_ids else {}
        if known is None:
            return fresh
        return {**{group_id: state for group_id, state in known.items() if group_id not in set(group_ids)}, **fresh}

    async def _reconcile_group(
        self,
        brokers: BrokerGateway,
        entry: tuple[ObjectKey, Object, ConsumerGroup],
        state: ObservedGroupState | None,
        winners: Mapping[str, ConsumerGroup],
    ) -> ReconcileResult:
        group = entry[2]
        winner = winners.get(group.group_id, group)
        if winner.metadata.uid != group.metadata.uid:
            return await self._apply_plan(*entry, brokers, ObservedGroup(group=state, winner=winner.metadata.name))
        try:
            observed = await self._observe(brokers, entry[0], group, state)
        except BrokersError as error:
            unreachable = ObservedGroup(error=str(error), is_hibernated=error.is_hibernated)
            return await self._apply_plan(*entry, brokers, unreachable)
        except ValueError as error:  # An invalid timestamp that the schema does not reject.
            return ReconcileResult(error=f"spec.reset: {error}")
        return await self._apply_plan(*entry, brokers, observed)

    async def _observe(
        self, brokers: BrokerGateway, key: ObjectKey, group: ConsumerGroup, state: ObservedGroupState | None
    ) -> ObservedGroup:
        topics = topics_to_describe(group, state)
        partitions: dict[str, int] = {}
        if topics:
            found = await brokers.topics(sorted(topics), settings=False)
            partitions = {name: len(topic.partitions) for name, topic in found.items()}
        queries = offset_queries(group, state, partitions)
        offsets = await brokers.offsets_at(queries) if queries else {}
        at_ends = range_partitions(group, state, partitions)
        ranges: dict[tuple[str, int], tuple[int, int]] = {}
        if at_ends:
            ranges = await _ranges(brokers, at_ends)
        letter_topic = topic_to_query(group, state)
        letters = await _topic_ranges(brokers, letter_topic) if letter_topic else ()
        return ObservedGroup(
            state,
            partitions=partitions,
            offsets=offsets,
            ranges=ranges,
            letters=letters,
            replay=self._replays.find(key),
        )

    async def _apply_plan(
        self, key: ObjectKey, body: Object, group: ConsumerGroup, brokers: BrokerGateway | None, observed: ObservedGroup
    ) -> ReconcileResult:
        plan = reconcile(group, observed, self._now())
        try:
            async with self._slots:
                if is_taken_over(body):
                    await self._take_over(key, body)
                status = await self._run_actions(key, group, brokers, plan)
                if observed.error is None:
                    self._direct_replay(key, group, plan)
                wait_s = await self._write(key, group, status)
                if plan.events:
                    await self._kube.record_events(body, plan.events)
        except (BrokersError, KubeError) as error:
            return ReconcileResult(error=str(error))
        if status is not plan.status:
            return ReconcileResult(requeue_after_s=REJECTED_RETRY_S)
        if observed.is_hibernated:
            return ReconcileResult()
        if observed.error is not None:
            return ReconcileResult(
                requeue_after_s=UNREACHABLE_RETRY_S
            )  # `groups.discovery` queues the key earlier if the brokers answer again.
        if plan.requeue_after_s is not None:
            return ReconcileResult(requeue_after_s=plan.requeue_after_s)
        return ReconcileResult(requeue_after_s=wait_s)

    async def _run_actions(
        self, key: ObjectKey, group: ConsumerGroup, brokers: BrokerGateway | None, plan: GroupPlan
    ) -> ConsumerGroupStatus:
        """Run the actions of a plan. Returns the status, with the reason if the brokers reject an action. Raises
        `BrokersError` for errors that may pass."""
        for action in plan.actions:
            if isinstance(action, ReplayLetters):
                continue  # `_direct_replay` starts it.
            assert brokers is not None, "an action without brokers"
            try:
                await _run_action(brokers, group.group_id, action)
            except BrokersError as error:
                if error.is_passing or isinstance(action, CommitOffsets):
                    raise
                return rejected(group, plan.status, str(error), self._now())
            finally:
                self._views.forget((key.namespace, group.spec.cluster_ref.name), group.group_id)
        return plan.status

    def _direct_replay(self, key: ObjectKey, group: ConsumerGroup, plan: GroupPlan) -> None:
        """Start the replay of a plan; stop any other one of the object."""
        request = next((action.request for action in plan.actions if isinstance(action, ReplayLetters)), None)
        if request is None:
            self._replays.stop(key)
        else:
            self._replays.start(key, (key.namespace, group.spec.cluster_ref.name), request)

    async def _write(self, key: ObjectKey, group: ConsumerGroup, status: ConsumerGroupStatus) -> float | None:
        """Write a changed status, or return the time in seconds until `pacing` allows the write."""
        before = group.status
        if status == before:
            return None
        cluster = (key.namespace, group.spec.cluster_ref.name)
        wait_s = self._pacing.wait_s(key, cluster, is_urgent=_stripped(status) != _stripped(before))
        if wait_s > 0:
            return wait_s
        body, uid = msgspec.to_builtins(status), group.metadata.uid
        await self._kube.patch_status(CONSUMER_GROUPS, key.namespace, key.name, body, uid)
        self._pacing.written(key)
        return None

    async def _take_over(self, key: ObjectKey, body: Object) -> None:
        patch = {"metadata": {"labels": {DISCOVERED: None}, "ownerReferences": None, "uid": body["metadata"]["uid"]}}
        await self._kube.patch(CONSUMER_GROUPS, key.namespace, key.name, patch)

    def _now(self) -> str:
        return utc_time(self._clock.wall_ms())


async def _run_action(brokers: BrokerGateway, group_id: str, action: CommitOffsets | GroupSettingsPatch) -> None:
    if isinstance(action, CommitOffsets):
        await brokers.commit(group_id, action.offsets, is_share=action.is_share)
        return
    refused = (await brokers.change_groups([ConfigPatch(group_id, action.settings)])).get(group_id)
    if refused is not None:
        raise refused


async def _ranges(brokers: BrokerGateway, partitions: Sequence[At]) -> dict[At, tuple[int, int]]:
    """Return start and end offsets."""
    first = await brokers.offsets_at(dict.fromkeys(partitions, EARLIEST))
    end = await brokers.offsets_at(dict.fromkeys(partitions, LATEST))
    return {at: (first[at], end[at]) for at in partitions if at in first and at in end}


async def _topic_ranges(brokers: BrokerGateway, topic: str) -> tuple[tuple[int, int], ...]:
    """Return start and end offsets by partition of a topic; empty if it does not exist."""
    found = (await brokers.topics([topic], settings=False)).get(topic)
    partitions = [(topic, index) for index in range(len(found.partitions))] if found is not None else []
    ranges = await _ranges(brokers, partitions) if partitions else {}
    return tuple(ranges[at] for at in partitions) if len(ranges) == len(partitions) else ()


def _stripped(status: ConsumerGroupStatus) -> ConsumerGroupStatus:
    """Return the status without lag, dead letters and counts of a running replay, which change constantly."""
    replay = status.replay
    if replay is not None and replay.phase == "Running" and replay.remaining:
        replay = ReplayStatus(id=replay.id, phase=replay.phase, message=replay.message, end_offsets=replay.end_offsets)
    return msgspec.structs.replace(status, lag=None, lag_seconds=None, topics=(), dead_letters=None, replay=replay)
