"""The brokers of one cluster in memory: a double of `ports.brokers.BrokerGateway` for controller tests.

It returns the errors of real brokers, moves replicas only in `progress`, fails on demand, and counts calls.
`doubles.broker_groups` implements groups.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from uuid import UUID

from doubles.broker_failures import refused
from doubles.broker_groups import Groups

from penstock.config.topic import TOPIC_SETTINGS
from penstock.placement.model import PartitionKey, PlacementBroker, PlacementError
from penstock.placement.place import place_partitions
from penstock.placement.plan import plan_feasible_moves
from penstock_operator.ports.brokers import (
    BrokersError,
    BrokerSnapshot,
    ConfigPatch,
    ObservedBrokerState,
    ObservedPartition,
    ObservedReader,
    ObservedSeal,
    ObservedShrink,
    ObservedTopicState,
    TopicCreation,
)

DRAINING, DOMAIN, RACK = "broker.draining", "broker.failure.domain", "broker.rack"
MIN_INSYNC = "min.insync.replicas"
Answers = dict[str, BrokersError | None]


class InMemoryBrokers(Groups):
    """In-memory brokers. `brokers` are ids, or ids with failure domains ("zone/node"). A stopped broker stays
    registered until `forget`.

    Tests read and change `topics_by_name`, `registered`, `settings_of_brokers` and the attributes of `Groups` directly.
    """

    def __init__(
        self,
        brokers: Iterable[int] | Mapping[int, str] = (0, 1, 2),
        *,
        default_partitions: int = 1,
        default_replicas: int | None = None,
        seed: int = 1,
        cluster_id: str = "in-memory",
    ) -> None:
        domains = dict(brokers) if isinstance(brokers, Mapping) else dict.fromkeys(brokers, "")
        super().__init__()
        self.registered = {number: made_broker(number, domain) for number, domain in domains.items()}
        self.settings_of_brokers: dict[str, dict[str, str]] = {}
        """Settings by broker id as text; "": cluster-wide."""
        self.topics_by_name: dict[str, ObservedTopicState] = {}
        self.waiting: dict[str, tuple[ObservedReader, ...]] = {}
        """Groups that draining topics wait for."""
        self._hidden: dict[str, tuple[ObservedPartition, ...]] = {}
        self.down: set[int] = set()
        self.calls: Counter[str] = Counter()
        """Number of calls by method."""
        self.items: Counter[str] = Counter()
        """Number of items by method, over all calls."""
        self.is_closed = False
        self.default_partitions = default_partitions
        self.default_replicas = default_replicas
        self.default_min_insync = 2
        self.bytes_of_partitions = 1_000
        self.cluster_id = cluster_id
        self.moves_at_once = False
        """Whether replicas move without `progress`."""
        self._random = random.Random(seed)
        self._stale: dict[str, ObservedTopicState] | None = None

    def add_topic(
        self,
        name: str,
        partitions: int | Sequence[Sequence[int]] = 1,
        replicas: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> ObservedTopicState:
        """Add an existing topic; `partitions` may list the replicas of each."""
        if isinstance(partitions, int):
            wanted = replicas if replicas is not None else min(3, len(self.registered))
            placed: Sequence[Sequence[int]] = place_partitions(self._placement(), self._existing(), partitions, wanted)
        else:
            placed = partitions
        made = ObservedTopicState(name, self._new_id(), tuple(self._fresh(p) for p in placed), dict(settings or {}))
        self.topics_by_name[name] = made
        return made

    def recreate(self, name: str) -> ObservedTopicState:
        """Simulate that another client deletes and recreates the topic: another id, no settings."""
        made = replace(self.topics_by_name[name], topic_id=self._new_id(), settings={})
        self.topics_by_name[name] = made
        return made

    def stop(self, broker_id: int) -> None:
        """Stop a broker: it leaves every ISR with other replicas, which elect another leader."""
        self.down.add(broker_id)
        self._see_to_leaders()

    def restart(self, broker_id: int) -> None:
        """Restart a broker; its replicas are in sync."""
        self.down.discard(broker_id)
        self._see_to_leaders()

    def add_broker(self, broker_id: int, domain: str = "") -> None:
        self.registered[broker_id] = made_broker(broker_id, domain)

    def forget(self, broker_id: int) -> None:
        """Remove the registration of a broker."""
        del self.registered[broker_id]
        self.down.add(broker_id)
        self._see_to_leaders()

    def progress(self, partitions: int | None = None) -> int:
        """Complete moves (None: all), including those of draining brokers. Return their number."""
        self._begin_drains()
        ended = 0
        for name, topic in list(self.topics_by_name.items()):
            parts = list(topic.partitions)
            for index, part in enumerate(parts):
                if (part.adding or part.removing) and (partitions is None or ended < partitions):
                    parts[index] = self._settled(part)
                    ended += 1
            if parts != list(topic.partitions):
                self.topics_by_name[name] = replace(topic, partitions=tuple(parts))
        return ended

    def answer_as_of_now(self) -> None:
        """Make `topics` return the current state from now on, like a broker that lags; `catch_up` ends it."""
        self._stale = dict(self.topics_by_name)

    def catch_up(self) -> None:
        self._stale = None

    @property
    def moving(self) -> int:
        return sum(bool(p.adding or p.removing) for t in self.topics_by_name.values() for p in t.partitions)

    # Methods of the port

    async def describe_cluster(self) -> BrokerSnapshot:
        self._called("describe_cluster")
        alive = [number for number in sorted(self.registered) if number not in self.down]
        return BrokerSnapshot(
            self.cluster_id, alive[0] if alive else -1, tuple(self._broker(n) for n in sorted(self.registered))
        )

    async def topics(
        self, names: Sequence[str] | None = None, *, settings: bool | Collection[str] = True, shrinks: bool = False
    ) -> dict[str, ObservedTopicState]:
        there = self.topics_by_name if self._stale is None else self._stale
        wanted = sorted(there) if names is None else [name for name in names if name in there]
        self._called("topics", len(wanted))

        def shown(topic: ObservedTopicState) -> dict[str, str]:
            if isinstance(settings, bool):
                return dict(topic.settings) if settings else {}
            return {name: value for name, value in topic.settings.items() if name in settings}

        has_shrinks = shrinks or names is None
        return {
            name: replace(there[name], settings=shown(there[name]), shrink=there[name].shrink if has_shrinks else None)
            for name in wanted
        }

    async def min_insync(self, names: Collection[str]) -> dict[str, int]:
        self._called("min_insync", len(names))
        usual = self.settings_of_brokers.get("", {}).get(MIN_INSYNC, self.default_min_insync)
        there = {name: self.topics_by_name[name] for name in names if name in self.topics_by_name}
        return {name: int(topic.settings.get(MIN_INSYNC, usual)) for name, topic in there.items()}

    async def create_topics(self, topics: Sequence[TopicCreation]) -> Answers:
        self._called("create_topics", len(topics))
        return {topic.name: self._outcome("create_topics", topic.name, self._create, topic) for topic in topics}

    async def grow_topics(self, partitions: Mapping[str, int]) -> Answers:
        self._called("grow_topics", len(partitions))
        return {name: self._outcome("grow_topics", name, self._grow, name, n) for name, n in partitions.items()}

    async def shrink_topics(self, partitions: Mapping[str, int]) -> Answers:
        self._called("shrink_topics", len(partitions))
        return {name: self._outcome("shrink_topics", name, self._shrink, name, n) for name, n in partitions.items()}

    async def waiting_readers(self, names: Collection[str]) -> dict[str, tuple[ObservedReader, ...]]:
        self._called("waiting_readers", len(names))
        return {name: self.waiting.get(name, ()) for name in names}

    async def delete_topics(self, topics: Mapping[str, UUID]) -> Answers:
        self._called("delete_topics", len(topics))
        return {name: self._outcome("delete_topics", name, self._delete, name, of) for name, of in topics.items()}

    async def change_topics(self, changes: Sequence[ConfigPatch]) -> Answers:
        self._called("change_topics", len(changes))
        return {c.name: self._outcome("change_topics", c.name, self._change, c) for c in changes}

    async def change_brokers(self, changes: Sequence[ConfigPatch]) -> Answers:
        self._called("change_brokers", len(changes))
        return {c.name: self._outcome("change_brokers", c.name, self._change_broker, c) for c in changes}

    async def broker_settings(self, broker_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        self._called("broker_settings", len(broker_ids))
        return {
            n: {**self.settings_of_brokers.get("", {}), **self.settings_of_brokers.get(str(n), {})}
            for n in broker_ids
            if n in self.registered and n not in self.down
        }

    async def reassign(
        self, targets: Mapping[tuple[str, int], tuple[int, ...] | None]
    ) -> dict[tuple[str, int], BrokersError | None]:
        self._called("reassign", len(targets))
        return {
            at: self._outcome("reassign", f"{at[0]}-{at[1]}", self._reassign, at, wanted)
            for at, wanted in targets.items()
        }

    async def replica_sizes(self) -> dict[tuple[str, int], int]:
        self._called("replica_sizes")
        return {
            (name, index): self.bytes_of_partitions
            for name, topic in self.topics_by_name.items()
            for index in range(len(topic.partitions))
        }

    async def elect_preferred(self, partitions: Sequence[tuple[str, int]] | None = None) -> None:
        self._called("elect_preferred", 0 if partitions is None else len(partitions))
        chosen = None if partitions is None else set(partitions)
        for name, topic in list(self.topics_by_name.items()):
            parts = [
                replace(p, leader=p.replicas[0])
                if (chosen is None or (name, i) in chosen) and p.replicas[0] in p.isr and p.replicas[0] not in self.down
                else p
                for i, p in enumerate(topic.partitions)
            ]
            self.topics_by_name[name] = replace(topic, partitions=tuple(parts))

    async def close(self) -> None:
        self.is_closed = True

    # Implementation

    def _called(self, call: str, items: int = 0) -> None:
        self.calls[call] += 1
        self.items[call] += items
        self._fail_if_told(call)
        if not self.registered.keys() - self.down:
            raise BrokersError("no broker can be reached", code="NoBrokerAvailable")

    def _create(self, topic: TopicCreation) -> None:
        if topic.name in self.topics_by_name:
            raise refused("TOPIC_ALREADY_EXISTS", f"topic {topic.name!r} exists")
        self._check_settings(topic.settings)
        count = topic.partitions if topic.partitions is not None else self.default_partitions
        usual = self.default_replicas if self.default_replicas is not None else min(3, len(self._usable()))
        factor = topic.replicas if topic.replicas is not None else usual
        if count < 1:
            raise refused("INVALID_PARTITIONS", f"{count} partitions")
        try:
            placed = place_partitions(self._placement(), self._existing(), count, factor)
        except PlacementError as e:
            raise refused("INVALID_REPLICATION_FACTOR", str(e)) from None
        parts = tuple(self._fresh(p) for p in placed)
        self.topics_by_name[topic.name] = ObservedTopicState(topic.name, self._new_id(), parts, dict(topic.settings))

    def _grow(self, name: str, count: int) -> None:
        topic = self._topic(name)
        present = len(topic.partitions) if topic.shrink is None else topic.shrink.remaining
        if count <= present:
            raise refused("INVALID_PARTITIONS", f"topic {name!r} has {present} partitions")
        if topic.shrink is not None:
            topic = self._reopen(topic, count)
        more = count - len(topic.partitions)
        if more <= 0:
            return
        try:
            placed = place_partitions(
                self._placement(), self._existing(), more, len(topic.partitions[0].replicas), topic=name
            )
        except PlacementError as e:
            raise refused("INVALID_REPLICATION_FACTOR", str(e)) from None
        parts = topic.partitions + tuple(self._fresh(p) for p in placed)
        self.topics_by_name[name] = replace(topic, partitions=parts)

    def _reopen(self, topic: ObservedTopicState, count: int) -> ObservedTopicState:
        assert topic.shrink is not None
        hidden = self._hidden.pop(topic.name, ())
        back = max(count - len(topic.partitions), 0)
        partitions = topic.partitions + hidden[:back]
        if hidden[back:]:
            self._hidden[topic.name] = hidden[back:]
        shrink = replace(topic.shrink, remaining=count, state="opening")
        reopened = self.topics_by_name[topic.name] = replace(topic, partitions=partitions, shrink=shrink)
        return reopened

    def _shrink(self, name: str, count: int) -> None:
        topic = self._topic(name)
        if "compact" in topic.settings.get("cleanup.policy", ""):
            raise refused("INVALID_PARTITIONS", f'Fewer partitions are refused: topic "{name}" is compacted.')
        seals = () if topic.shrink is None else topic.shrink.seals
        self.topics_by_name[name] = replace(topic, shrink=ObservedShrink(count, "sealing", seals))

    def seal(self, name: str) -> None:
        """Seal the surplus partitions of a topic at offset 10."""
        topic = self._topic(name)
        assert topic.shrink is not None
        remaining = topic.shrink.remaining
        seals = [ObservedSeal(n, 10, n % remaining, False) for n in range(remaining, len(topic.partitions))]
        self.topics_by_name[name] = replace(topic, shrink=ObservedShrink(remaining, "draining", tuple(seals)))

    def hide(self, name: str) -> None:
        """Hide the sealed partitions of a topic: they are read."""
        topic = self._topic(name)
        assert topic.shrink is not None
        remaining = topic.shrink.remaining
        self._hidden[name] = topic.partitions[remaining:] + self._hidden.get(name, ())
        seals = tuple(seal._replace(is_hidden=True) for seal in topic.shrink.seals)
        shrink = ObservedShrink(remaining, "retired", seals)
        self.topics_by_name[name] = replace(topic, partitions=topic.partitions[:remaining], shrink=shrink)

    def open(self, name: str) -> None:
        """Complete the opening of a topic's sealed partitions."""
        self.topics_by_name[name] = replace(self._topic(name), shrink=None)

    def _delete(self, name: str, topic_id: UUID) -> None:
        found = self.topics_by_name.get(name)
        if found is None or found.topic_id != topic_id:
            raise refused("UNKNOWN_TOPIC_ID", f"topic {name!r} of id {topic_id}")
        del self.topics_by_name[name]

    def _change(self, change: ConfigPatch) -> None:
        topic = self._topic(change.name)
        self._check_settings({k: v for k, v in change.settings.items() if v is not None})
        self.topics_by_name[change.name] = replace(topic, settings=changed(topic.settings, change.settings))

    def _change_broker(self, change: ConfigPatch) -> None:
        if change.name and (int(change.name) not in self.registered or int(change.name) in self.down):
            raise BrokersError(f"broker {change.name} does not answer", code="NoBrokerAvailable")
        before = self.settings_of_brokers.get(change.name, {})
        self.settings_of_brokers[change.name] = changed(before, change.settings)

    def _reassign(self, at: tuple[str, int], wanted: tuple[int, ...] | None) -> None:
        topic = self._topic(at[0])
        if at[1] >= len(topic.partitions):
            raise refused("UNKNOWN_TOPIC_OR_PARTITION", f"{at[0]}-{at[1]}")
        part = topic.partitions[at[1]]
        original = tuple(b for b in part.replicas if b not in part.adding)
        if wanted is None:
            if not (part.adding or part.removing):
                raise refused("NO_REASSIGNMENT_IN_PROGRESS", f"{at[0]}-{at[1]}")
            now = replace(part, replicas=original, adding=(), removing=())
        else:
            if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= self.registered.keys():
                raise refused("INVALID_REPLICA_ASSIGNMENT", f"{list(wanted)}")
            adding = tuple(b for b in wanted if b not in original)
            removing = tuple(b for b in original if b not in wanted)
            now = replace(part, replicas=(*wanted, *removing), adding=adding, removing=removing)
            if self.moves_at_once or not adding:
                now = self._settled(now)
        parts = (*topic.partitions[: at[1]], now, *topic.partitions[at[1] + 1 :])
        self.topics_by_name[at[0]] = replace(topic, partitions=parts)

    def _settled(self, part: ObservedPartition) -> ObservedPartition:
        wanted = tuple(b for b in part.replicas if b not in part.removing)
        return self._led(ObservedPartition(part.leader, wanted, wanted))

    def _fresh(self, replicas: Sequence[int]) -> ObservedPartition:
        return self._led(ObservedPartition(-1, tuple(replicas), tuple(replicas)))

    def _led(self, part: ObservedPartition) -> ObservedPartition:
        """Return the partition with running brokers in sync; keeps the leader if it is in sync."""
        up = tuple(b for b in part.replicas if b not in self.down and (b not in part.adding))
        isr = up or part.isr[:1]
        leader = part.leader if part.leader in up else (up[0] if up else -1)
        return replace(part, leader=leader, isr=isr)

    def _see_to_leaders(self) -> None:
        for name, topic in list(self.topics_by_name.items()):
            self.topics_by_name[name] = replace(topic, partitions=tuple(self._led(p) for p in topic.partitions))

    def _begin_drains(self) -> None:
        draining = {number for number in self.registered if self._is_draining(number)}
        if not draining:
            return
        existing = {
            PartitionKey(name, i): tuple(b for b in p.replicas if b not in p.removing)
            for name, topic in self.topics_by_name.items()
            for i, p in enumerate(topic.partitions)
        }
        moves, _ = plan_feasible_moves(self._placement(), existing)
        for move in moves:
            if draining & set(move.before):
                self._reassign((move.key.topic, move.key.partition), move.after)

    def _settings_of(self, number: int) -> dict[str, str]:
        return {**self.settings_of_brokers.get("", {}), **self.settings_of_brokers.get(str(number), {})}

    def _is_draining(self, number: int) -> bool:
        return self._settings_of(number).get(DRAINING) == "true"

    def _broker(self, number: int) -> ObservedBrokerState:
        broker = self.registered[number]
        settings = self._settings_of(number)
        is_draining = self._is_draining(number)
        holds = any(number in p.replicas for t in self.topics_by_name.values() for p in t.partitions)
        rack = settings.get(RACK) or broker.rack
        return replace(
            broker,
            rack=rack,
            failure_domain=settings.get(DOMAIN) or broker.failure_domain or rack or "",
            is_draining=is_draining,
            is_removable=is_draining and not holds,
        )

    def _usable(self) -> list[int]:
        return [n for n in sorted(self.registered) if n not in self.down and not self._is_draining(n)]

    def _placement(self) -> list[PlacementBroker]:
        usable = set(self._usable())
        return [
            PlacementBroker(
                n, tuple(part for part in self._broker(n).failure_domain.split("/") if part), n not in usable
            )
            for n in sorted(self.registered)
        ]

    def _existing(self) -> dict[PartitionKey, tuple[int, ...]]:
        return {
            PartitionKey(topic.name, index): tuple(b for b in part.replicas if b not in part.removing)
            for topic in self._counted()
            for index, part in enumerate(topic.partitions)
        }

    def _counted(self) -> Iterable[ObservedTopicState]:
        """Return the partitions for balancing new replicas: for many topics only the newest, because thousands would
        take minutes."""
        there = self.topics_by_name
        return there.values() if len(there) <= 100 else (there[n] for n in list(islice(reversed(there), 5)))

    def _topic(self, name: str) -> ObservedTopicState:
        found = self.topics_by_name.get(name)
        if found is None:
            message = f"topic {name!r} does not exist"
            raise BrokersError(message, code="UNKNOWN_TOPIC_OR_PARTITION")  # as in the protocol: it may be new
        return found

    def _check_settings(self, settings: Mapping[str, str]) -> None:
        for name in settings:
            if name not in TOPIC_SETTINGS and not name.startswith("penstock."):
                raise refused("INVALID_CONFIG", f"there is no setting {name!r}")

    def _new_id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def made_broker(number: int, domain: str) -> ObservedBrokerState:
    parts: Collection[str] = domain.split("/")
    rack = next(iter(parts)) or None
    return ObservedBrokerState(number, f"broker-{number}", 9092, rack, domain, False, False, "0.1.0")


def changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    after = dict(before)
    for name, value in changes.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after
