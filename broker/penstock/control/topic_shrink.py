"""Reduces the number of partitions of topics, and takes that back. Called by `topic_admin`.

The request only writes the topic's `ShrinkRecord`; the brokers that lead the surplus partitions do the rest (`shrink`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.internal_topics import INTERNAL_TOPICS
from penstock.control.features import FEWER_PARTITIONS_LEVEL
from penstock.control.results import VIEW_TIMEOUT_S, AdminError
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import encode
from penstock.state.shrink_records import MAX_GAPS, ShrinkRecord
from penstock.state.store import Compare, CompareTarget, PutOp, Store
from penstock.state.view import ClusterView, TopicView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode

MAX_SURPLUS = 1_000
"""Maximum number of sealed partitions of a topic."""


class TopicShrinking:
    """Changes the number of remaining partitions. All methods raise AdminError and StoreError."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher, clock: Clock) -> None:
        self._store, self._view, self._watcher, self._clock = store, view, watcher, clock

    async def change(self, name: str, count: int, validate_only: bool, may_shrink: bool) -> bool:
        """Seal partitions, or open those that were surplus, up to `count`. Returns whether no new ones are needed."""
        topic = self._view.topics.get(name)
        if topic is None:
            return False
        total = len(topic.partitions)
        present = total if topic.shrink is None else min(topic.shrink.remaining, total)
        if count < present and may_shrink:
            await self.shrink(topic, count, validate_only)
            return True
        if topic.shrink is None:
            return False
        if count <= present:
            raise not_more(topic, count, present)
        if present < total:
            await self.reopen(topic, count, validate_only)
        return count <= total

    async def shrink(self, topic: TopicView, count: int, validate_only: bool = False) -> None:
        """Reduce a topic's partitions to `count`, and return when the view has that."""
        await self._check(topic, count)
        if not validate_only:
            await self._write(topic, count, max(topic.shown_count, count))

    async def reopen(self, topic: TopicView, count: int, validate_only: bool = False) -> None:
        """Open surplus partitions again: those below `count`, which may be more than there are. Clients see them at
        once."""
        if not validate_only:
            await self._write(topic, count, max(topic.shown_count, count))

    async def _write(self, topic: TopicView, remaining: int, shown: int) -> None:
        """Write the record if the topic exists and its number of partitions has not changed meanwhile."""
        key = keys.shrink(topic.topic_id)
        record = ShrinkRecord(remaining=remaining, shown=shown, changed_ms=self._clock.wall_ms())
        conditions = [
            Compare(keys.topic_name(topic.name), CompareTarget.VERSION, 0, ">"),
            Compare(keys.partition(topic.topic_id, 0), CompareTarget.VERSION, 0, ">"),
            Compare(key, CompareTarget.MOD_REVISION, 0 if topic.shrink is None else topic.shrink.revision),
        ]
        result = await self._store.txn(conditions, [PutOp(key, encode(record))])
        if not result.succeeded:
            raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f'Topic "{topic.name}" was changed concurrently; try again.')
        await self._watcher.applied(result.revision, VIEW_TIMEOUT_S)

    async def _check(self, topic: TopicView, count: int) -> None:
        """Raise `AdminError` if the topic cannot have so few partitions."""
        if self._view.feature_level < FEWER_PARTITIONS_LEVEL:
            raise refusal(
                f"fewer partitions require level {FEWER_PARTITIONS_LEVEL} of penstock.version, which is"
                f" {self._view.feature_level}; upgrade all brokers, then raise it"
            )
        if count < 1:
            raise refusal(f"the number of partitions must be positive, not {count}")
        if topic.name in INTERNAL_TOPICS:
            raise refusal(f'topic "{topic.name}" belongs to Kafka itself')
        if len(topic.partitions) - count > MAX_SURPLUS:
            surplus = len(topic.partitions) - count
            raise refusal(f"{surplus:,} surplus partitions exceed the limit of {MAX_SURPLUS:,}; use a larger number")
        if topic.config.cleanup_compact:
            raise refusal(
                f'topic "{topic.name}" is compacted: a key would be in two partitions, and its older value would'
                " never be removed; create a topic with fewer partitions and copy the records"
            )
        if topic.config.delivery_delay_ms:
            raise refusal(
                f'topic "{topic.name}" has delivery.delay.ms: relayed records would be delayed twice; remove the'
                " setting, or create a topic with fewer partitions"
            )
        if topic.config.delivery_schedule_enable:
            raise refusal(
                f'topic "{topic.name}" has delivery.schedule.enable: scheduled records wait in their partitions; remove'
                " the setting once all are delivered, or create a topic with fewer partitions"
            )
        if any(len(seal.gaps) >= MAX_GAPS for seal in topic.seals.values()):
            raise refusal(f"a partition was sealed and opened {MAX_GAPS} times; wait until retention has deleted it")
        if groups := await self._share_groups(topic):
            names = ", ".join(f'"{name}"' for name in groups[:5])
            raise refusal(f'share groups read topic "{topic.name}": {names}; delete their offsets first')

    async def _share_groups(self, topic: TopicView) -> Sequence[str]:
        """Return the share groups that have state of the topic."""
        found: dict[str, None] = {}
        for number in range(keys.SHARD_COUNT):
            for entry in (await self._store.range(f"{keys.SHARE_STATES}{number}/")).entries:
                if f"/{topic.topic_id}/" in entry.key:
                    found[keys.parse_share_state(entry.key)[0]] = None
        return sorted(found)


def not_more(topic: TopicView, count: int, present: int) -> AdminError:
    """Return the error for a number of partitions that is not an increase."""
    if count == present:
        return AdminError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    return AdminError(
        ErrorCode.INVALID_PARTITIONS,
        f"The topic {topic.name} has {present} partition(s), so {count} would not be an increase; to reduce them, use"
        f" `penstock topic alter {topic.name} --partitions {count}`.",
    )


def refusal(reason: str) -> AdminError:
    """Return the error for a number of partitions that is refused."""
    return AdminError(ErrorCode.INVALID_PARTITIONS, f"Fewer partitions are refused: {reason}.")
