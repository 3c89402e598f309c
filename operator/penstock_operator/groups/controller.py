"""Looks at `ConsumerGroup` objects. The engine's runner calls it with batches of keys; `groups.discovery` puts keys in
for what no event tells."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.runtime.clock import Clock
from penstock_operator.engine.ports import ConnectionPool, Objects, ReconcileResult
from penstock_operator.engine.refusals import tell_refused
from penstock_operator.groups.deletions import GroupDeletions
from penstock_operator.groups.pacing import Pacing
from penstock_operator.groups.views import GroupViews
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ConfigPatch, ObservedGroupState
from penstock_operator.ports.kube import CONSUMER_GROUPS, Kube, KubeError, Object
from penstock_operator.reconcile.group.names import DISCOVERED, is_taken_over
from penstock_operator.reconcile.group.reconcile import reconcile
from penstock_operator.reconcile.group.reset import questions, ranges_asked, topics_asked
from penstock_operator.reconcile.group.types import Action, CommitOffsets, ObservedGroup

WRITES_AT_ONCE = 8
UNSEEN_S = 15.0
EARLIEST, LATEST = -2, -1
Place = tuple[str, str]


class GroupController:
    """Of all clusters. `resync` is `GroupDeletions.resync`: groups whose object went while nobody looked."""

    batch = 200

    def __init__(
        self, kube: Kube, objects: Objects, connections: ConnectionPool, clock: Clock, views: GroupViews, pacing: Pacing
    ) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections
        self._clock, self._views, self._pacing = clock, views, pacing
        self._endings = GroupDeletions(kube, objects, connections, clock, views)
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        verdicts: dict[ObjectKey, ReconcileResult] = {}
        by_cluster: dict[Place, list[tuple[ObjectKey, Object, ConsumerGroup]]] = {}
        gone: list[ObjectKey] = []
        for key in keys:
            body = self._objects.get(CONSUMER_GROUPS, key.namespace, key.name)
            if body is None:
                gone.append(key)
                self._pacing.forget(key)
                continue
            try:
                group = parse("ConsumerGroup", body)
            except InvalidResource as error:
                verdicts[key] = await tell_refused(self._kube, CONSUMER_GROUPS, body, error, self._now())
                continue
            if group.metadata.deletion_timestamp is None:
                by_cluster.setdefault((key.namespace, group.spec.cluster_ref.name), []).append((key, body, group))
            else:
                verdicts[key] = ReconcileResult()
        await asyncio.gather(*(self._look_at(place, looks, verdicts) for place, looks in by_cluster.items()))
        ends = await asyncio.gather(*(self._gone(key) for key in gone))
        verdicts.update(zip(gone, ends, strict=True))
        return verdicts

    async def _gone(self, key: ObjectKey) -> ReconcileResult:
        async with self._slots:
            return await self._endings.gone(key)

    async def resync(self) -> None:
        await self._endings.resync()

    async def _look_at(
        self,
        place: Place,
        looks: Sequence[tuple[ObjectKey, Object, ConsumerGroup]],
        verdicts: dict[ObjectKey, ReconcileResult],
    ) -> None:
        """All objects of one cluster that are in a batch: groups are asked for together."""
        brokers = self._connections.of(*place)
        if brokers is None:
            seen = ObservedGroup(is_cluster_known=False)
            done = [self._carry_out(*look, None, seen) for look in looks]
        else:
            try:
                states = await self._states(place, brokers, looks)
            except BrokersError as error:
                unseen = ObservedGroup(error=str(error))
                done = [self._carry_out(*look, None, unseen) for look in looks]
            else:
                winners = self._views.winners(*place)
                done = [self._see(brokers, look, states.get(look[2].group_id), winners) for look in looks]
        outcomes = await asyncio.gather(*done)
        verdicts.update(zip((look[0] for look in looks), outcomes, strict=True))

    async def _states(
        self, place: Place, brokers: BrokerGateway, looks: Sequence[tuple[ObjectKey, Object, ConsumerGroup]]
    ) -> Mapping[str, ObservedGroupState]:
        """From the last poll where it is new enough and nothing is to be changed, otherwise from the brokers."""
        now_ms = self._clock.boot_ms()
        known, asked = self._views.known(place, now_ms), []
        for _, _, group in looks:
            is_still = group.spec.reset is None and group.spec.starting_offsets is None
            if known is None or not is_still or group.group_id not in known:
                asked.append(group.group_id)
        fresh = await brokers.groups(sorted(set(asked))) if asked else {}
        if known is None:
            return fresh
        return {**{group_id: state for group_id, state in known.items() if group_id not in set(asked)}, **fresh}

    async def _see(
        self,
        brokers: BrokerGateway,
        look: tuple[ObjectKey, Object, ConsumerGroup],
        state: ObservedGroupState | None,
        winners: Mapping[str, ConsumerGroup],
    ) -> ReconcileResult:
        group = look[2]
        winner = winners.get(group.group_id, group)
        if winner.metadata.uid != group.metadata.uid:
            return await self._carry_out(*look, brokers, ObservedGroup(group=state, winner=winner.metadata.name))
        try:
            seen = await self._ask(brokers, group, state)
        except BrokersError as error:
            return await self._carry_out(*look, brokers, ObservedGroup(error=str(error)))
        except ValueError as error:  # A timestamp that is none: the schema refuses most of them.
            return ReconcileResult(error=f"spec.reset: {error}")
        return await self._carry_out(*look, brokers, seen)

    async def _ask(
        self, brokers: BrokerGateway, group: ConsumerGroup, state: ObservedGroupState | None
    ) -> ObservedGroup:
        topics = topics_asked(group, state)
        partitions: dict[str, int] = {}
        if topics:
            found = await brokers.topics(sorted(topics), settings=False)
            partitions = {name: len(topic.partitions) for name, topic in found.items()}
        wanted = questions(group, state, partitions)
        offsets = await brokers.offsets_at(wanted) if wanted else {}
        asked = ranges_asked(group, state, partitions)
        ranges: dict[tuple[str, int], tuple[int, int]] = {}
        if asked:
            first = await brokers.offsets_at(dict.fromkeys(asked, EARLIEST))
            end = await brokers.offsets_at(dict.fromkeys(asked, LATEST))
            ranges = {at: (first[at], end[at]) for at in asked if at in first and at in end}
        return ObservedGroup(state, partitions=partitions, offsets=offsets, ranges=ranges)

    async def _carry_out(
        self, key: ObjectKey, body: Object, group: ConsumerGroup, brokers: BrokerGateway | None, seen: ObservedGroup
    ) -> ReconcileResult:
        plan = reconcile(group, seen, self._now())
        try:
            async with self._slots:
                if is_taken_over(body):
                    await self._take_over(key, body)
                for action in plan.actions:
                    assert brokers is not None, "an action without brokers"
                    await _do(brokers, group.group_id, action)
                    self._views.forget((key.namespace, group.spec.cluster_ref.name), group.group_id)
                wait_s = await self._write(key, group, plan.status)
                if plan.happenings:
                    await self._kube.tell(body, plan.happenings)
        except (BrokersError, KubeError) as error:
            return ReconcileResult(error=str(error))
        if seen.error is not None:
            return ReconcileResult(
                look_again_s=UNSEEN_S
            )  # Or sooner: `groups.discovery` calls when the brokers answer again.
        if plan.look_again_s is not None:
            return ReconcileResult(look_again_s=plan.look_again_s)
        return ReconcileResult(look_again_s=wait_s)

    async def _write(self, key: ObjectKey, group: ConsumerGroup, status: ConsumerGroupStatus) -> float | None:
        """Writes what is new, now or when it is this object's turn: the answer is how long that is."""
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
        return datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _do(brokers: BrokerGateway, group_id: str, action: Action) -> None:
    if isinstance(action, CommitOffsets):
        await brokers.commit(group_id, action.offsets)
        return
    refused = (await brokers.change_groups([ConfigPatch(group_id, action.settings)])).get(group_id)
    if refused is not None:
        raise refused


def _stripped(status: ConsumerGroupStatus) -> ConsumerGroupStatus:
    """Without the numbers that change all the time."""
    return msgspec.structs.replace(status, lag=None, lag_seconds=None, topics=())
