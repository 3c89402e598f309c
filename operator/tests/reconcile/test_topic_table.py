"""`Topic`: desired × observed → actions and status. One row per transition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from penstock_operator.model.common import ClusterRef, ObjectMeta
from penstock_operator.model.topic import Topic, TopicSpec, TopicStatus
from penstock_operator.ports.brokers import (
    DELETION_POLICY,
    OWNER,
    BrokersError,
    ObservedBrokerState,
    ObservedPartition,
    ObservedReader,
    ObservedSeal,
    ObservedShrink,
    ObservedTopicState,
    ShrinkState,
)
from penstock_operator.reconcile.topic.reconcile import reconcile
from penstock_operator.reconcile.topic.status import unknown
from penstock_operator.reconcile.topic.types import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DecreasePartitions,
    DeleteTopic,
    ObservedTopic,
    OwnerAbsence,
    ReassignTopic,
)

ID, OTHER_ID = UUID(int=1), UUID(int=2)
MINE = {OWNER: "me", DELETION_POLICY: "Retain"}


def part(
    *replicas: int, isr: tuple[int, ...] | None = None, leader: int | None = None, **more: Any
) -> ObservedPartition:
    isr = replicas if isr is None else isr
    return ObservedPartition(isr[0] if leader is None else leader, replicas, isr, **more)


def state(
    *partitions: ObservedPartition, settings: Mapping[str, str] | None = None, topic_id: UUID = ID
) -> ObservedTopicState:
    return ObservedTopicState("t", topic_id, partitions, {**MINE, **(settings or {})})


def brokers(*domains: str, draining: tuple[int, ...] = ()) -> tuple[ObservedBrokerState, ...]:
    return tuple(
        ObservedBrokerState(n, "h", 9092, None, domain, n in draining, False, "") for n, domain in enumerate(domains)
    )


def topic(*, name: str = "t", uid: str = "me", born: str = "2026-01-01", status: TopicStatus | None = None,
          meta: Mapping[str, Any] | None = None, **spec: Any) -> Topic:  # fmt: skip
    return Topic(
        metadata=ObjectMeta(name=name, namespace="ns", uid=uid, generation=7, creation_timestamp=born, **(meta or {})),
        spec=TopicSpec(cluster_ref=ClusterRef(name="c"), **spec),
        status=status or TopicStatus(),
    )


def seen(found: ObservedTopicState | None = None, **more: Any) -> ObservedTopic:
    return ObservedTopic("t", found, more.pop("brokers", brokers("", "", "")), **more)


def known(**status: Any) -> TopicStatus:
    return TopicStatus(topic_id=str(ID), **status)


@dataclass
class Row:
    """A transition. `reasons` are those of Ready and Synced; `says` is a part of Synced's message."""

    what: str
    desired: Topic
    observed: ObservedTopic
    actions: tuple[type, ...] = ()
    ready: tuple[str, str] = ("True", "Ready")
    synced: tuple[str, str] = ("True", "Synced")
    healthy: str = "InSync"
    progressing: str = "False"
    says: str = ""
    tells: list[str] = field(default_factory=list)


FALSE_APPLYING = ("False", "Applying")
TWO = state(part(0, 1), part(1, 2))
OFFLINE = state(part(0, 1, isr=(0,), leader=-1), part(1, 2))
MOVING = state(part(0, 1, 2, isr=(0, 1), adding=(2,), removing=(1,)))
HIBERNATED = unknown(topic(status=known()), "ClusterHibernated", "the cluster is hibernated")
REFUSED = BrokersError("no such setting", code="INVALID_CONFIG", is_passing=False)
LATER = BrokersError("too busy", code="REQUEST_TIMED_OUT")

CONFIRMED = topic(partitions=1, decrease_partitions_to=1)


def shrunk(how: ShrinkState, found: ObservedTopicState = TWO, remaining: int = 1) -> ObservedTopicState:
    """Return a topic whose number of partitions was reduced; partition 1 is sealed unless it is being sealed."""
    seals = () if how == "sealing" else (ObservedSeal(1, 10, 0, how == "retired"),)
    return replace(found, shrink=ObservedShrink(remaining, how, seals))


ROWS = [
    Row("nothing is asked for and nothing is there", topic(), seen(), (CreateTopic,),
        ("False", "Creating"), ("False", "Creating"), "Creating", "True"),
    Row("as wanted", topic(partitions=2, replicas=2), seen(TWO)),
    Row("nothing said, whatever is there is right", topic(), seen(TWO)),
    Row("more partitions", topic(partitions=3), seen(TWO), (AddPartitions,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True", says="up to 3"),
    Row("fewer partitions", topic(partitions=1), seen(TWO), (), ("False", "DecreaseNotConfirmed"),
        ("False", "DecreaseNotConfirmed"), says="set decreasePartitionsTo to 1, too", tells=["DecreaseNotConfirmed"]),
    Row("fewer partitions, confirmed for another number", topic(partitions=1, decrease_partitions_to=2), seen(TWO), (),
        ("False", "DecreaseNotConfirmed"), ("False", "DecreaseNotConfirmed"), tells=["DecreaseNotConfirmed"]),
    Row("fewer partitions, confirmed", topic(partitions=1, decrease_partitions_to=1), seen(TWO), (DecreasePartitions,),
        FALSE_APPLYING, FALSE_APPLYING, progressing="True", says="decrease partitions to 1"),
    Row("fewer partitions, confirmed and paused", topic(partitions=1, decrease_partitions_to=1, paused=True),
        seen(TWO), (), ("False", "Paused"), ("False", "Paused"), says="decrease partitions to 1"),
    Row("a confirmation of the number that is there, or of one that was", topic(partitions=2, decrease_partitions_to=1),
        seen(TWO)),
    Row("partitions are being sealed", CONFIRMED, seen(shrunk("sealing")), (), ("True", "Sealing"),
        ("False", "Sealing"), progressing="True", says="0 of 1 surplus partitions are sealed"),
    Row("paused while partitions are being sealed", msgspec.structs.replace(CONFIRMED, spec=msgspec.structs.replace(
        CONFIRMED.spec, paused=True)), seen(shrunk("sealing")), (), ("True", "Sealing"), ("False", "Sealing"),
        progressing="True"),
    Row("sealed partitions are read", CONFIRMED, seen(shrunk("draining"), readers=(ObservedReader("slow", 1, 7),)), (),
        ("True", "Draining"), ("False", "Draining"), progressing="True", says='"slow" (7 records)'),
    Row("sealed partitions that no group reads", CONFIRMED, seen(shrunk("draining"), readers=()), (),
        ("True", "Draining"), ("False", "Draining"), progressing="True", says="or retention has deleted"),
    Row("sealed partitions are read, and one has no leader", CONFIRMED,
        seen(shrunk("draining", OFFLINE), readers=()), (), ("False", "Offline"), ("False", "Draining"),
        healthy="Offline", progressing="True", tells=["Offline"]),
    Row("sealed partitions are hidden", CONFIRMED, seen(shrunk("retired", state(part(0, 1))))),
    Row("sealed partitions are hidden, and the number is unmanaged", topic(), seen(shrunk("retired", state(part(0))))),
    Row("a decrease is taken back", topic(partitions=2, decrease_partitions_to=1), seen(shrunk("draining")),
        (AddPartitions,), FALSE_APPLYING, FALSE_APPLYING, progressing="True", says="up to 2"),
    Row("a decrease by another client is reverted", topic(partitions=2), seen(shrunk("sealing")), (AddPartitions,),
        FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("partitions are being opened again", topic(partitions=2), seen(shrunk("opening", remaining=2)), (),
        ("True", "Opening"), ("False", "Opening"), progressing="True", says="opened again"),
    Row("an increase of a decreased topic was interrupted", topic(partitions=9), seen(shrunk("retired", remaining=9)),
        (AddPartitions,), FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("a further decrease", topic(partitions=1, decrease_partitions_to=1),
        seen(shrunk("draining", state(part(0), part(1), part(2)), remaining=2)), (DecreasePartitions,),
        FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("fewer partitions, and a setting", topic(partitions=1, config={"a": "1"}), seen(TWO), (AlterTopicConfig,),
        FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("a setting", topic(config={"retention.ms": "1"}), seen(TWO), (AlterTopicConfig,), FALSE_APPLYING,
        FALSE_APPLYING,
        progressing="True", says="retention.ms"),
    Row("a setting that is so already", topic(config={"retention.ms": "1"}),
        seen(state(part(0), settings={"retention.ms": "1"}))),
    Row("a setting that means the same", topic(config={"cleanup.policy": "compact, delete"}),
        seen(state(part(0), settings={"cleanup.policy": "compact,delete"}))),
    Row("a setting that is no longer wanted", topic(status=known()),
        seen(state(part(0), settings={"retention.ms": "1"})), (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True"),
    Row("a setting that is not named, and the status that would tell whose it is was lost", topic(),
        seen(state(part(0), settings={"retention.ms": "-1"}))),
    Row("settings of movers and of others are not its own", topic(),
        seen(state(part(0), settings={"leader.replication.throttled.replicas": "*", "penstock.other": "x"}))),
    Row("more replicas", topic(replicas=3), seen(TWO), (ReassignTopic,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True"),
    Row("fewer replicas", topic(replicas=1), seen(TWO), (ReassignTopic,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True"),
    Row("replicas on their way", topic(replicas=2), seen(MOVING), progressing="True"),
    Row("replicas on their way to a number that is not there yet", topic(replicas=3),
        seen(state(part(0, 1, 2, isr=(0, 1), adding=(2,)))), (), ("False", "ReplicasMoving"),
        ("False", "ReplicasMoving"), progressing="True"),
    Row("no room to move", topic(replicas=3), seen(TWO, room=0), (), ("False", "ReplicasMoving"),
        ("False", "ReplicasMoving")),
    Row("more replicas than brokers", topic(replicas=4), seen(TWO), (), ("False", "TooFewBrokers"),
        ("False", "TooFewBrokers"), says="at most 3", tells=["TooFewBrokers"]),
    Row("more replicas than brokers that do not drain", topic(replicas=3),
        seen(TWO, brokers=brokers("", "", "", draining=(2,))), (), ("False", "TooFewBrokers"),
        ("False", "TooFewBrokers"), says="at most 2", tells=["TooFewBrokers"]),
    Row("a new topic with more replicas than brokers that answer", topic(replicas=4), seen(), (CreateTopic,),
        ("False", "Creating"), ("False", "Creating"), "Creating", "True"),
    Row("a new topic with more replicas than brokers", topic(replicas=4), seen(failure=REFUSED), (),
        ("False", "TooFewBrokers"), ("False", "TooFewBrokers"), "TooFewBrokers", tells=["TooFewBrokers"]),
    Row("badly spread", topic(), seen(TWO, brokers=brokers("a/1", "a/2", "b/3")), (ReassignTopic,), FALSE_APPLYING,
        FALSE_APPLYING, progressing="True"),
    Row("badly spread, and nothing moves by itself", topic(),
        seen(TWO, brokers=brokers("a/1", "a/2", "b/3"), may_move=False)),
    Row("badly spread only until the domain of a new broker is known", topic(),
        seen(state(part(0, 2, 1)), brokers=brokers("a/1", "b/2", "a/3", "b/4", "")), ready=("True", "Ready")),
    Row("badly spread, and a replica is behind", topic(),
        seen(state(part(0, 1, isr=(0,))), brokers=brokers("a/1", "a/2", "b/3")), healthy="UnderReplicated"),
    Row("badly spread, and a broker is away", topic(),
        seen(state(part(0, 7)), brokers=brokers("a/1", "a/2", "b/3"))),
    Row("without a leader", topic(), seen(OFFLINE), (), ("False", "Offline"), healthy="Offline", tells=["Offline"]),
    Row("without a leader, for the cluster was hibernated and wakes", topic(status=HIBERNATED), seen(OFFLINE), (),
        ("False", "Offline"), healthy="Offline"),
    Row("behind", topic(), seen(state(part(0, 1, isr=(0,)))), healthy="UnderReplicated"),
    Row("paused and as wanted", topic(partitions=2, paused=True), seen(TWO)),
    Row("paused and other than wanted", topic(partitions=3, paused=True), seen(TWO), (), ("False", "Paused"),
        ("False", "Paused"), says="up to 3"),
    Row("paused and not there", topic(paused=True), seen(), (), ("False", "Paused"), ("False", "Paused"), "Paused"),
    Row("being deleted and not there", topic(meta={"deletion_timestamp": "now"}), seen(), (), ("False", "Deleting"),
        ("False", "Deleting"), "Deleting"),
    Row("deleted behind its back", topic(status=known()), seen(), (CreateTopic,), ("False", "Creating"),
        ("False", "Creating"), "Creating", "True"),
    Row("recreated by another client", topic(status=known()),
        seen(ObservedTopicState("t", OTHER_ID, (part(0),), {})), (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True", tells=["IdentityChanged"]),
    Row("adopted", topic(), seen(ObservedTopicState("t", ID, (part(0),), {})), (AlterTopicConfig,), FALSE_APPLYING,
        FALSE_APPLYING, progressing="True"),
    Row("adopted with fewer partitions than wanted", topic(partitions=2),
        seen(ObservedTopicState("t", ID, (part(0),), {})),
        (AlterTopicConfig, AddPartitions), FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("adopted with more partitions than wanted", topic(partitions=1),
        seen(ObservedTopicState("t", ID, (part(0), part(1)), {})), (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True"),
    Row("adopted with a setting of its own: written down first", topic(),
        seen(ObservedTopicState("t", ID, (part(0),), {"retention.ms": "-1"})), (), FALSE_APPLYING, FALSE_APPLYING,
        progressing="True"),
    Row("adopted with a setting of its own that is written down", topic(status=known(kept_settings=("retention.ms",))),
        seen(ObservedTopicState("t", ID, (part(0),), {"retention.ms": "-1"})), (AlterTopicConfig,), FALSE_APPLYING,
        FALSE_APPLYING, progressing="True"),
    Row("a kept setting stays", topic(status=known(kept_settings=("retention.ms",))),
        seen(state(part(0), settings={"retention.ms": "-1"}))),
    Row("an older object has the topic", topic(born="2026-01-02"), seen(TWO, rivals=(topic(name="older", uid="x"),)),
        (), ("False", "Conflict"), ("False", "Conflict"), "Conflict", says="older", tells=["Conflict"]),
    Row("a younger object wants the topic", topic(), seen(TWO, rivals=(topic(uid="x", born="2026-01-02"),))),
    Row("of two as old the one that has had the topic",
        topic(uid="b"), seen(TWO, rivals=(topic(name="first", uid="c", status=known()),)), (),
        ("False", "Conflict"), ("False", "Conflict"), "Conflict", says="first", tells=["Conflict"]),
    Row("nor does one of a lesser UID that is as old take it",
        topic(status=known()), seen(TWO, rivals=(topic(uid="a"),))),
    Row("of two as old the lesser UID", topic(uid="b"), seen(TWO, rivals=(topic(uid="a"),)), (),
        ("False", "Conflict"), ("False", "Conflict"), "Conflict", tells=["Conflict"]),
    Row("no such cluster", topic(), seen(has_cluster=False), (), ("Unknown", "ClusterNotFound"),
        ("Unknown", "ClusterNotFound"), "ClusterNotFound", "Unknown", says="create it", tells=["ClusterNotFound"]),
    Row("no broker answers", topic(), seen(unreachable="no broker answers"), (), ("Unknown", "Unreachable"),
        ("Unknown", "Unreachable"), "Unreachable", "Unknown", says="no broker answers"),
    Row("creation was refused", topic(), seen(failure=REFUSED), (), ("False", "Refused"), ("False", "Refused"),
        "Refused", says="no such setting", tells=["Refused"]),
    Row("a change was refused", topic(partitions=3), seen(TWO, failure=REFUSED), (), ("False", "Refused"),
        ("False", "Refused"), says="no such setting", tells=["Refused"]),
    Row("a change was put off", topic(partitions=3), seen(TWO, failure=LATER), (), ("False", "Retrying"),
        ("False", "Retrying"), says="retrying"),
    Row("its predecessor's topic goes first", topic(),
        seen(state(part(0), settings={OWNER: "old"}),
             absence=OwnerAbsence(True, "Delete", same_name=True, may_delete=True)),
        (DeleteTopic,), ("False", "Replacing"), ("False", "Replacing"), "Replacing", "True"),
    Row("its predecessor's topic goes first, once the check is done", topic(),
        seen(state(part(0), settings={OWNER: "old"}), absence=OwnerAbsence(True, "Delete", same_name=True)),
        (), ("False", "Replacing"), ("False", "Replacing"), "Replacing", "True"),
    Row("its predecessor's topic is adopted where it was to be kept", topic(),
        seen(state(part(0), settings={OWNER: "old"}),
             absence=OwnerAbsence(True, "Retain", same_name=True, may_delete=True)),
        (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("the topic of a deleted object of another name is adopted", topic(),
        seen(state(part(0), settings={OWNER: "old"}), absence=OwnerAbsence(True, "Delete", may_delete=True)),
        (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
    Row("an object that no list has is no deleted one", topic(),
        seen(state(part(0), settings={OWNER: "old", DELETION_POLICY: "Delete"}),
             absence=OwnerAbsence(lists_without=9, may_delete=True)),
        (AlterTopicConfig,), FALSE_APPLYING, FALSE_APPLYING, progressing="True"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_is_done_and_what_the_status_says(row: Row) -> None:
    plan = reconcile(row.desired, row.observed)
    assert tuple(type(action) for action in plan.actions) == row.actions
    conditions = {c.type: c for c in plan.status.conditions}
    assert conditions.keys() == {"Ready", "Synced", "Healthy", "Progressing"}
    assert (conditions["Ready"].status, conditions["Ready"].reason) == row.ready
    assert (conditions["Synced"].status, conditions["Synced"].reason) == row.synced
    assert conditions["Healthy"].reason == row.healthy
    assert conditions["Progressing"].status == row.progressing
    assert row.says in conditions["Synced"].message
    assert [event.reason for event in plan.events] == row.tells
    assert {c.observed_generation for c in conditions.values()} == {plan.status.observed_generation} == {7}
    assert all(c.message for c in conditions.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_second_look_at_the_same_says_the_same_and_tells_nothing(row: Row) -> None:
    first = reconcile(row.desired, row.observed)
    if "IdentityChanged" in row.tells:
        return  # its status has the new id now
    again = reconcile(msgspec.structs.replace(row.desired, status=first.status), row.observed)
    if not first.status.kept_settings:
        assert again.actions == first.actions
    assert again.status == first.status
    assert again.events == ()


GONE_ROWS = [
    ("no object, nothing known", state(part(0)), OwnerAbsence(), None),
    ("unowned", ObservedTopicState("t", ID, (part(0),), {}), OwnerAbsence(True, "Delete", may_delete=True), None),
    ("deleted, to be kept", state(part(0)), OwnerAbsence(True, "Retain", may_delete=True), None),
    ("deleted, to go", state(part(0)), OwnerAbsence(True, "Delete", may_delete=True), "delete"),
    ("deleted, to go, and it is unknown whether the CRD is being deleted", state(part(0)), OwnerAbsence(True, "Delete"),
     None),
    ("deleted with everything", state(part(0)), OwnerAbsence(True, "Delete", may_delete=False), "protect"),
    ("the last word was to keep it", state(part(0), settings={DELETION_POLICY: "Delete"}),
     OwnerAbsence(True, "Retain"),
     "protect"),
    ("one list without it", state(part(0), settings={DELETION_POLICY: "Delete"}),
     OwnerAbsence(lists_without=1, may_delete=True), None),
    ("two lists without it", state(part(0), settings={DELETION_POLICY: "Delete"}),
     OwnerAbsence(lists_without=2, may_delete=True), "delete"),
    ("two lists without it, to be kept", state(part(0)), OwnerAbsence(lists_without=2, may_delete=True), None),
    ("two lists without it, with everything", state(part(0), settings={DELETION_POLICY: "Delete"}),
     OwnerAbsence(lists_without=2, may_delete=False), "protect"),
    ("not there", None, OwnerAbsence(True, "Delete", may_delete=True), None),
]  # fmt: skip


@pytest.mark.parametrize(("what", "found", "gone", "decision"), GONE_ROWS, ids=[row[0] for row in GONE_ROWS])
def test_what_becomes_of_a_topic_without_an_object(
    what: str, found: ObservedTopicState | None, gone: OwnerAbsence, decision: str
) -> None:
    (action,) = reconcile(None, seen(found, absence=gone)).actions or (None,)
    if decision is None:
        assert action is None
    elif decision == "delete":
        assert isinstance(action, DeleteTopic)
        assert action.topic_id == ID
    else:
        assert isinstance(action, AlterTopicConfig)
        assert action.settings == {DELETION_POLICY: "Retain"}
    assert reconcile(None, seen(found, absence=gone, has_owner=True)).actions == ()


def test_the_status_counts_what_brokers_report_and_not_what_was_asked_for() -> None:
    found = state(
        part(0, 1, 2),
        part(0, 1, 2, isr=(0, 1)),
        part(0, 1, isr=(0,), leader=-1),
        part(0, 1, 2, isr=(0, 1), adding=(2,)),
    )
    status = reconcile(topic(partitions=4, replicas=3), seen(found, room=0)).status
    assert (status.partitions, status.replicas) == (4, 2)
    assert (status.in_sync, status.under_replicated, status.offline, status.moving) == (2, 2, 1, 1)


def test_ownership_is_stored_with_the_topic_when_it_is_created() -> None:
    (action,) = reconcile(topic(deletion_policy="Delete", config={"a": "b"}), seen()).actions
    assert isinstance(action, CreateTopic)
    assert action.topic.settings == {"a": "b", OWNER: "me", DELETION_POLICY: "Delete"}
    assert (action.topic.partitions, action.topic.replicas) == (None, None)
