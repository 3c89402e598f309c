"""The in-memory brokers accept and reject requests like real brokers, as the tests with them assume."""

from __future__ import annotations

from uuid import uuid4

import pytest
from doubles.broker_failures import timed_out
from doubles.brokers import DRAINING, InMemoryBrokers

from penstock_operator.ports.brokers import OWNER, BrokerGateway, BrokersError, ConfigPatch, TopicCreation


async def test_they_are_what_the_port_says() -> None:
    brokers: BrokerGateway = InMemoryBrokers()
    assert (await brokers.describe_cluster()).controller_id == 0


async def test_a_topic_is_created_once_and_others_in_the_request_do_not_mind() -> None:
    brokers = InMemoryBrokers()
    brokers.add_topic("old")
    answers = await brokers.create_topics(
        [
            TopicCreation("old", 1, 1, {}),
            TopicCreation("new", None, None, {OWNER: "me"}),
            TopicCreation("big", 1, 4, {}),
        ]
    )
    assert {name: error.code if error else None for name, error in answers.items()} == {
        "old": "TOPIC_ALREADY_EXISTS",
        "new": None,
        "big": "INVALID_REPLICATION_FACTOR",
    }
    (topic,) = (await brokers.topics(["new", "nothing"])).values()
    assert (len(topic.partitions), len(topic.partitions[0].replicas), topic.settings) == (1, 3, {OWNER: "me"})


async def test_replicas_move_when_told_to() -> None:
    brokers = InMemoryBrokers(range(4))
    brokers.add_topic("t", [(0, 1)])
    assert await brokers.reassign({("t", 0): (2, 1), ("t", 9): (0,)}) != {}
    part = brokers.topics_by_name["t"].partitions[0]
    assert (part.adding, part.removing, part.isr) == ((2,), (0,), (0, 1))
    assert brokers.progress() == 1
    assert brokers.topics_by_name["t"].partitions[0].replicas == (2, 1)


async def test_a_cancelled_move_goes_back() -> None:
    brokers = InMemoryBrokers(range(4))
    brokers.add_topic("t", [(0, 1)])
    await brokers.reassign({("t", 0): (2, 3)})
    assert (await brokers.reassign({("t", 0): None}))["t", 0] is None
    assert set(brokers.topics_by_name["t"].partitions[0].replicas) == {0, 1}
    error = (await brokers.reassign({("t", 0): None}))["t", 0]
    assert error is not None
    assert error.code == "NO_REASSIGNMENT_IN_PROGRESS"


async def test_a_draining_broker_is_removable_when_it_holds_nothing() -> None:
    brokers = InMemoryBrokers(range(3))
    brokers.add_topic("t", [(0, 1), (1, 2)])
    await brokers.change_brokers([ConfigPatch("2", {DRAINING: "true"})])
    assert not (await brokers.describe_cluster()).brokers[2].is_removable
    brokers.progress()
    assert (await brokers.describe_cluster()).brokers[2].is_removable


async def test_a_broker_that_stops_leaves_the_isr_and_leads_nothing() -> None:
    brokers = InMemoryBrokers(range(2))
    brokers.add_topic("t", [(0, 1)])
    brokers.add_topic("alone", [(0,)])
    brokers.stop(0)
    assert brokers.topics_by_name["t"].partitions[0].leader == 1
    assert brokers.topics_by_name["t"].partitions[0].isr == (1,)
    assert brokers.topics_by_name["alone"].partitions[0].leader == -1
    brokers.restart(0)
    assert brokers.topics_by_name["alone"].partitions[0].leader == 0


async def test_a_topic_is_deleted_only_by_its_own_id() -> None:
    brokers = InMemoryBrokers()
    made = brokers.add_topic("t")
    error = (await brokers.delete_topics({"t": uuid4()}))["t"]
    assert error is not None
    assert (error.code, error.is_passing) == ("UNKNOWN_TOPIC_ID", False)
    assert (await brokers.delete_topics({"t": made.topic_id})) == {"t": None}


async def test_failures_come_on_demand() -> None:
    brokers = InMemoryBrokers()
    brokers.fail_next("topics", timed_out())
    with pytest.raises(BrokersError, match="in time"):
        await brokers.topics()
    await brokers.topics()
    brokers.fail_for("create_topics", "a", times=1)
    answers = await brokers.create_topics([TopicCreation("a", 1, 1, {}), TopicCreation("b", 1, 1, {})])
    assert [name for name, error in answers.items() if error] == ["a"]
    brokers.unreachable = timed_out()
    with pytest.raises(BrokersError):
        await brokers.describe_cluster()
    assert brokers.calls["topics"] == 2


async def test_offsets_are_not_set_under_members() -> None:
    brokers = InMemoryBrokers()
    brokers.add_group("g", {("t", 0): 5}, members=2)
    brokers.log("t").end = 7
    with pytest.raises(BrokersError):
        await brokers.commit("g", {("t", 0): 0})
    brokers.groups_by_id["g"].members = 0
    await brokers.commit("g", {("t", 0): 0})
    group = (await brokers.groups(["g", "h"]))["g"]
    assert (group.state, group.offsets[0].committed, group.offsets[0].lag) == ("Empty", 0, 7)
