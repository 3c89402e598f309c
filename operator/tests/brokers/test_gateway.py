"""The gateway against three real brokers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from penstock.client import Admin, Consumer, Node, OffsetAndMetadata, Producer, RequestTimedOut, TopicPartition
from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import DOMAIN, DRAINING, Gateway
from penstock_operator.ports.brokers import (
    DEAD_LETTER_TOPIC,
    DELETION_POLICY,
    OWNER,
    RESET_ID,
    BrokersError,
    ConfigPatch,
    ObservedDeadLetters,
    ObservedOffset,
    ObservedReader,
    ObservedSeal,
    ObservedShrink,
    ObservedTopicState,
    ReplayCount,
    ReplayRequest,
    TopicCreation,
)

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.05)


async def seen(gateway: Gateway, name: str, holds: Callable[[ObservedTopicState], object] = bool) -> ObservedTopicState:
    """Return the topic, once the queried broker has it and `holds` is true."""
    found: list[ObservedTopicState] = []

    async def has_service() -> bool:
        found[:] = (await gateway.topics([name])).values()
        return bool(found) and bool(holds(found[0]))

    await until(has_service, f"topic {name}")
    return found[0]


async def created(
    gateway: Gateway, name: str, partitions: int | None = 1, replicas: int | None = 1
) -> ObservedTopicState:
    settings = {OWNER: "uid-1", DELETION_POLICY: "Delete", "retention.ms": "1000"}
    assert await gateway.create_topics([TopicCreation(name, partitions, replicas, settings)]) == {name: None}
    return await seen(gateway, name, lambda t: all(p.leader >= 0 for p in t.partitions))


async def test_min_insync_replicas_is_told_as_it_counts(gateway: Gateway) -> None:
    own, usual, never = (f"min-{uuid4().hex[:8]}" for _ in range(3))
    wanted = [TopicCreation(own, 1, 3, {"min.insync.replicas": "3"}), TopicCreation(usual, 1, 3, {})]
    assert await gateway.create_topics(wanted) == {own: None, usual: None}
    for name in (own, usual):
        await seen(gateway, name)
    assert (await gateway.min_insync([own, usual, never])).keys() == {own, usual}
    for text in ("1", "2"):
        assert await gateway.change_brokers([ConfigPatch("", {"min.insync.replicas": text})]) == {"": None}

        async def counts(text: str = text) -> bool:
            return await gateway.min_insync([own, usual]) == {own: 3, usual: int(text)}

        await until(counts, f"min.insync.replicas is {text}")
    assert await gateway.change_brokers([ConfigPatch("", {"min.insync.replicas": None})]) == {"": None}


async def test_who_is_there(gateway: Gateway) -> None:
    snapshot = await gateway.describe_cluster()
    assert [broker.broker_id for broker in snapshot.brokers] == [1, 2, 3]
    assert snapshot.controller_id in (1, 2, 3)
    assert snapshot.cluster_id
    assert all(broker.version and not broker.is_draining for broker in snapshot.brokers)


async def test_topics_are_created_with_their_settings_and_told_of_with_what_is_set_for_them(
    gateway: Gateway, name: str
) -> None:
    topic = await created(gateway, name, 3, 2)
    assert [len(p.replicas) for p in topic.partitions] == [2, 2, 2]
    assert topic.settings == {OWNER: "uid-1", DELETION_POLICY: "Delete", "retention.ms": "1000"}
    everything = await gateway.topics(settings=(OWNER,))
    assert everything[name].settings == {OWNER: "uid-1"}
    assert everything[name].topic_id == topic.topic_id
    assert (await gateway.topics([name, "nothing"], settings=False))[name].settings == {}
    assert "nothing" not in await gateway.topics([name, "nothing"])


async def test_what_is_left_out_is_the_brokers_default(gateway: Gateway, name: str) -> None:
    # An operator for another system requests -1 partitions.
    topic = await created(gateway, name, None, None)
    assert len(topic.partitions) >= 1
    assert len(topic.partitions[0].replicas) == 3


async def test_each_of_many_has_its_own_answer(gateway: Gateway, name: str) -> None:
    await created(gateway, name)
    answers = await gateway.create_topics(
        [
            TopicCreation(name, 1, 1, {}),
            TopicCreation(f"{name}-wide", 1, 9, {}),
            TopicCreation(f"{name}-odd", 1, 1, {"no.such.setting": "1"}),
            TopicCreation(f"{name}-good", 1, 1, {}),
        ]
    )
    codes = [error.code if error else None for error in answers.values()]
    assert codes == ["TOPIC_ALREADY_EXISTS", "INVALID_REPLICATION_FACTOR", "INVALID_CONFIG", None]
    assert not any(error.is_passing for error in answers.values() if error)


async def test_partitions_are_added_and_settings_changed(gateway: Gateway, name: str) -> None:
    await created(gateway, name)
    assert await gateway.grow_topics({name: 4}) == {name: None}
    change = ConfigPatch(name, {"retention.ms": None, "segment.ms": "7000"})
    assert await gateway.change_topics([change]) == {name: None}
    topic = await seen(gateway, name, lambda t: "segment.ms" in t.settings and len(t.partitions) == 4)
    assert topic.settings == {OWNER: "uid-1", DELETION_POLICY: "Delete", "segment.ms": "7000"}
    refused = (await gateway.change_topics([ConfigPatch(name, {"segment.ms": "soon"})]))[name]
    assert refused is not None
    assert (refused.code, refused.is_passing) == ("INVALID_CONFIG", False)


async def test_partitions_are_sealed_the_waiting_groups_are_told_of_and_it_is_taken_back(
    gateway: Gateway, trio: object, name: str
) -> None:
    await created(gateway, name, 4, 3)
    async with Producer(trio.bootstrap) as producer:  # type: ignore[attr-defined]
        for _ in range(3):
            await (await producer.send(name, b"value", partition=3))
    group = f"{name}-readers"
    await gateway.commit(group, {(name, 2): 0, (name, 3): 1})
    assert (await seen(gateway, name)).shrink is None
    assert await gateway.shrink_topics({name: 2}) == {name: None}
    found: list[ObservedTopicState] = []

    async def is_draining() -> bool:
        found[:] = (await gateway.topics([name], shrinks=True)).values()
        return found[0].shrink is not None and found[0].shrink.state == "draining"

    await until(is_draining, "the partitions are sealed")
    seals = (ObservedSeal(2, 0, 0, is_hidden=False), ObservedSeal(3, 3, 1, is_hidden=False))
    assert found[0].shrink == ObservedShrink(2, "draining", seals)
    assert len(found[0].partitions) == 4

    async def is_in_the_poll() -> bool:
        return (await gateway.topics(settings=False))[name].shrink == found[0].shrink

    await until(is_in_the_poll, "the poll of all topics has the seals")
    assert await gateway.waiting_readers([name]) == {name: (ObservedReader(group, 1, 2),)}
    assert (await gateway.topics([name]))[name].shrink is None, "not requested"
    assert await gateway.grow_topics({name: 4}) == {name: None}

    async def is_open() -> bool:
        return (await gateway.topics([name], shrinks=True))[name].shrink is None

    await until(is_open, "the partitions are open again")
    (refusal,) = (await gateway.shrink_topics({name: 0})).values()
    assert refusal is not None
    assert not refusal.is_passing
    assert await gateway.shrink_topics({}) == {}
    assert await gateway.waiting_readers([]) == {}


async def test_a_topic_is_deleted_only_by_its_id(gateway: Gateway, name: str) -> None:
    topic = await created(gateway, name)
    error = (await gateway.delete_topics({name: uuid4()}))[name]
    assert error is not None
    assert error.code == "UNKNOWN_TOPIC_ID"
    assert await gateway.delete_topics({name: topic.topic_id}) == {name: None}

    async def is_gone() -> bool:
        return name not in await gateway.topics([name])

    await until(is_gone, "it is gone")


async def test_replicas_move_and_the_move_is_seen(gateway: Gateway, name: str) -> None:
    topic = await created(gateway, name, 2, 1)
    targets = {(name, i): (1, 2, 3) for i in range(2)}
    assert await gateway.reassign(targets) == dict.fromkeys(targets)

    def is_done(t: ObservedTopicState) -> bool:
        return all(sorted(p.isr) == [1, 2, 3] and not p.adding and not p.removing for p in t.partitions)

    await seen(gateway, name, is_done)
    await gateway.elect_preferred([(name, 0), (name, 1)])
    await seen(gateway, name, lambda t: all(p.leader == 1 for p in t.partitions))
    error = (await gateway.reassign({(name, 0): (1, 77)}))[name, 0]
    assert error is not None
    assert not error.is_passing
    assert topic.topic_id == (await gateway.topics([name]))[name].topic_id


async def test_a_broker_is_drained_and_tells_when_it_can_go(gateway: Gateway, name: str) -> None:
    await created(gateway, name, 3, 2)
    drain = ConfigPatch("3", {DRAINING: "true"})
    assert await gateway.change_brokers([drain]) == {"3": None}

    async def is_removable() -> bool:
        return (await gateway.describe_cluster()).brokers[2].is_removable

    try:
        # Topics of other tests with three replicas cannot move.
        for other, state in (await gateway.topics(settings=False)).items():
            if other != name and any(len(p.replicas) > 2 for p in state.partitions):
                await gateway.delete_topics({other: state.topic_id})
        await until(is_removable, "broker 3 is empty")
        assert (await gateway.broker_settings([3]))[3][DRAINING] == "true"
        assert not any(3 in p.replicas for p in (await gateway.topics([name]))[name].partitions)
    finally:
        await gateway.change_brokers([ConfigPatch("3", {DRAINING: None})])
    error = (await gateway.change_brokers([ConfigPatch("9", {DRAINING: "true"})]))["9"]
    assert error is not None


async def test_a_failure_domain_is_set_and_seen(gateway: Gateway) -> None:
    assert await gateway.change_brokers([ConfigPatch("2", {DOMAIN: "zone-b/node-2"})]) == {"2": None}

    async def is_seen() -> bool:
        return (await gateway.describe_cluster()).brokers[1].failure_domain == "zone-b/node-2"

    await until(is_seen, "the failure domain")
    assert await gateway.change_brokers([ConfigPatch("2", {DOMAIN: None})]) == {"2": None}


async def test_sizes_are_those_of_the_largest_replica(gateway: Gateway, trio: object, name: str) -> None:
    await created(gateway, name, 1, 3)
    async with Producer(trio.bootstrap) as producer:  # type: ignore[attr-defined]
        await producer.send(name, b"x" * 10_000)
        await producer.flush()
    assert (await gateway.replica_sizes())[name, 0] > 10_000


async def test_groups_are_told_of_with_lag_and_settings(gateway: Gateway, trio: object, name: str) -> None:
    await created(gateway, name, 1, 1)
    bootstrap = trio.bootstrap  # type: ignore[attr-defined]
    async with Producer(bootstrap) as producer:
        for number in range(5):
            await producer.send(name, str(number).encode())
        await producer.flush()
    group = f"g-{name}"
    await gateway.commit(group, {(name, 0): 2})
    assert await gateway.change_groups([ConfigPatch(group, {RESET_ID: "r1", OWNER: "uid-2"})]) == {group: None}

    async def is_told() -> bool:
        found = (await gateway.groups([group])).get(group)
        return found is not None and bool(found.settings) and bool(found.offsets)

    await until(is_told, "the group with its settings")
    state = (await gateway.groups([group, "unknown"]))[group]
    assert (state.state, state.members) == ("Empty", 0)
    assert state.settings == {RESET_ID: "r1", OWNER: "uid-2"}
    (offset,) = state.offsets
    assert (offset.committed, offset.lag) == (2, 3)
    assert offset.lag_ms is not None
    assert group in await gateway.group_ids()
    assert "unknown" not in await gateway.groups(["unknown"])
    assert await gateway.offsets_at({(name, 0): -2}) == {(name, 0): 0}
    assert await gateway.offsets_at({(name, 0): 1 << 50}) == {(name, 0): 5}
    answers = await gateway.delete_groups([group, "unknown"])
    assert answers[group] is None
    assert answers["unknown"] is not None


async def test_offsets_of_a_group_with_members_are_refused(gateway: Gateway, trio: object, name: str) -> None:
    await created(gateway, name, 1, 1)
    async with Consumer(trio.bootstrap, group_id=f"g-{name}") as consumer:  # type: ignore[attr-defined]
        consumer.subscribe([name])
        while set(consumer.assignment) != {TopicPartition(name, 0)}:
            await consumer.getmany(timeout_ms=100)
        with pytest.raises(BrokersError) as raised:
            await gateway.commit(f"g-{name}", {(name, 0): 0})
        assert not raised.value.is_passing
        assert (await gateway.groups([f"g-{name}"]))[f"g-{name}"].members == 1


async def test_nobody_answering_is_an_error_that_passes_and_ends() -> None:
    with socket.socket() as reserved:  # Reserves the port without listening.
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        gateway = Gateway(AdminConnection(f"127.0.0.1:{port}"))
        with pytest.raises(BrokersError, match=str(port)) as raised:
            await gateway.topics()
        assert raised.value.is_passing
        await gateway.close()


async def test_a_listener_that_says_nothing_does_not_hold_anybody_up_for_ever() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        gateway = Gateway(AdminConnection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", request_timeout_ms=300))
        with pytest.raises(BrokersError) as raised:
            await gateway.describe_cluster()
        assert raised.value.is_passing
        await gateway.close()


async def test_a_broker_that_does_not_answer_is_taken_for_what_it_told_last(gateway: Gateway) -> None:
    class Silence:
        async def broker_configs(self, broker_id: int, names: object) -> None:
            raise RequestTimedOut(f"broker {broker_id} is silent")

    there = (await gateway.describe_cluster()).brokers
    assert all(broker.answers for broker in there)
    node = Node(there[0].broker_id, there[0].host, there[0].port, None)
    assert await gateway._broker(Silence(), node) == replace(there[0], answers=False)  # type: ignore[arg-type]
    unknown = await gateway._broker(Silence(), replace(node, node_id=77))  # type: ignore[arg-type]
    assert not unknown.answers, "nothing is known of one that has only just come"


async def test_it_goes_on_when_the_controller_dies(gateway: Gateway, trio: object, name: str) -> None:
    await created(gateway, name, 1, 3)
    controller = (await gateway.describe_cluster()).controller_id
    trio.brokers[controller].kill()  # type: ignore[attr-defined]

    async def can_change() -> bool:
        try:
            answers = await gateway.change_topics([ConfigPatch(name, {"segment.ms": "9000"})])
        except BrokersError as e:
            if not e.is_passing:
                raise
            return False
        return answers == {name: None}

    await until(can_change, "another controller")
    await seen(gateway, name, lambda t: t.settings.get("segment.ms") == "9000")
    assert (await gateway.describe_cluster()).controller_id != controller
    trio.begin(controller).ready()  # type: ignore[attr-defined]
    await seen(gateway, name, lambda t: len(t.partitions[0].isr) == 3)


async def test_share_groups_have_their_type_start_offsets_and_dead_letters(
    gateway: Gateway, trio: object, name: str
) -> None:
    group, letters = f"g-{name}", f"dlq.{name}"
    await created(gateway, name, 1, 1)
    await created(gateway, letters, 2, 1)
    async with Producer(trio.bootstrap) as producer:  # type: ignore[attr-defined]
        for number in range(5):
            await (await producer.send(name, b"%d" % number))
        for number in range(3):
            at_ms = 1_795_000_000_000 + 1_000 * number
            await (await producer.send(letters, b"letter", partition=number % 2, timestamp_ms=at_ms))
    await gateway.commit(group, {(name, 0): 2}, is_share=True)
    assert await gateway.change_groups([ConfigPatch(group, {DEAD_LETTER_TOPIC: letters})]) == {group: None}

    async def is_complete() -> bool:
        found = (await gateway.groups([group])).get(group)
        return found is not None and found.dead_letters is not None and bool(found.offsets)

    await until(is_complete, "the share group with its dead letters")
    state = (await gateway.groups([group]))[group]
    assert (state.group_type, state.state, state.members) == ("share", "Empty", 0)
    assert state.offsets == (ObservedOffset(name, 0, 2, 3),)
    assert state.dead_letters == ObservedDeadLetters(letters, 3, 1_795_000_000_000)
    assert await gateway.delete_groups([group]) == {group: None}


async def test_dead_letters_of_a_group_are_replayed_up_to_the_ends_and_counted_through_interruptions(
    gateway: Gateway, trio: object, name: str
) -> None:
    letters = f"dlq.{name}"
    await created(gateway, name, 1, 3)
    await created(gateway, letters, 2, 3)
    async with Producer(trio.bootstrap) as producer:  # type: ignore[attr-defined]
        for number in range(12):
            group = b"other" if number >= 8 else b"workers"
            headers = [("__dlq.errors.topic", name.encode()), ("__dlq.errors.group", group)]
            await producer.send(letters, b"%d" % number, partition=number % 2, headers=headers)
    request = ReplayRequest("r1", letters, "workers", (5, 6), 1)
    seen: asyncio.Queue[ReplayCount] = asyncio.Queue()
    task = asyncio.ensure_future(gateway.replay_letters(request, seen.put_nowait))
    first = await seen.get()
    assert 0 < first.replayed < 8
    assert first.remaining == 11 - first.replayed
    task.cancel()
    await asyncio.wait([task])
    rest = replace(request, rate_per_s=1000)
    assert await gateway.replay_letters(rest, seen.put_nowait) == ReplayCount(replayed=8, skipped=3)
    assert await gateway.replay_letters(replace(rest, run="r2"), seen.put_nowait) == ReplayCount(skipped=3)


async def test_a_replay_to_a_missing_topic_may_be_repeated_and_foreign_progress_is_final(
    gateway: Gateway, trio: object, name: str
) -> None:
    letters = f"dlq.{name}"
    await created(gateway, letters, 1, 1)
    async with Producer(trio.bootstrap) as producer:  # type: ignore[attr-defined]
        await producer.send(letters, b"x", headers=[("__dlq.errors.group", b"g")])
    request = ReplayRequest("r1", letters, "g", (1,), 10, target=f"{name}-gone")
    with pytest.raises(BrokersError, match=f"replaying dead letters of topic {letters}.*{name}-gone") as missing:
        await gateway.replay_letters(request, lambda _: None)
    assert missing.value.is_passing
    async with Admin(trio.bootstrap) as admin:  # type: ignore[attr-defined]
        offset = OffsetAndMetadata(0, "someone else's")
        await admin.alter_offsets(f"penstock-dlq-replay-{letters}", {TopicPartition(letters, 0): offset})
    with pytest.raises(BrokersError, match="committed offsets of another kind") as foreign:
        await gateway.replay_letters(request, lambda _: None)
    assert not foreign.value.is_passing


async def test_groups_of_the_consumer_protocol_have_their_members(gateway: Gateway, trio: object, name: str) -> None:
    await created(gateway, name, 1, 1)
    bootstrap: str = trio.bootstrap  # type: ignore[attr-defined]
    async with Consumer(bootstrap, group_id=f"g-{name}", group_protocol="consumer") as consumer:
        consumer.subscribe([name])
        while set(consumer.assignment) != {TopicPartition(name, 0)}:
            await consumer.getmany(timeout_ms=100)
        state = (await gateway.groups([f"g-{name}"]))[f"g-{name}"]
        assert (state.group_type, state.state, state.members) == ("consumer", "Stable", 1)
