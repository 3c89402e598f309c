"""Consumer groups: members join, leave, crash and return; committed offsets outlive them."""

from __future__ import annotations

from collections.abc import Callable

from penstock_e2e.drivers import DRIVERS, clients
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.member import Member, StartMember
from penstock_e2e.model import Driver, MakeTopic, Partition, Record, eventually

PARTITIONS = 6


def _all(topic: str, partitions: int = PARTITIONS) -> frozenset[Partition]:
    return frozenset(Partition(topic, index) for index in range(partitions))


def _produce_everywhere(bootstrap: str, topic: str, label: str) -> set[bytes | None]:
    """Produce one record to each partition; return the values."""
    records = [Record(f"{label}-{index}".encode(), partition=index) for index in range(PARTITIONS)]
    DRIVERS["confluent"](bootstrap).produce(topic, records)
    return {record.value for record in records}


def _share(topic: str, *members: Member) -> None:
    """Wait until each partition has exactly one member, and each member at least one partition."""

    def shared(_: Member) -> bool:
        assignments = [member.assignment or frozenset() for member in members]
        return (
            all(assignments)
            and sum(map(len, assignments)) == PARTITIONS
            and frozenset().union(*assignments) == _all(topic)
        )

    members[0].wait("the partitions to be shared", shared)


def _received(values: set[bytes | None], *members: Member) -> None:
    members[0].wait(f"{len(values)} records to be handled", lambda _: values <= {v for m in members for v in m.values})


@clients()
def test_a_member_that_joins_takes_its_share(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    first = start_member(group, topic)
    _share(topic, first)
    _received(_produce_everywhere(bootstrap, topic, "alone"), first)
    second, third = start_member(group, topic), start_member(group, topic)
    _share(topic, first, second, third)
    together = _produce_everywhere(bootstrap, topic, "together")
    _received(together, first, second, third)
    handled = [value for m in (first, second, third) for value in m.values if value in together]
    assert sorted(map(str, handled)) == sorted(map(str, together)), "a record was handled by two members"


@clients()
def test_the_partitions_of_a_member_that_leaves_go_to_the_others(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    # With this session timeout, only a LeaveGroup request can explain the rebalance.
    stays = start_member(group, topic, session_timeout_ms=120_000)
    leaves = start_member(group, topic, session_timeout_ms=120_000)
    _share(topic, stays, leaves)
    leaves.leave()
    _share(topic, stays)
    _received(_produce_everywhere(bootstrap, topic, "after"), stays)


@clients()
def test_the_partitions_of_a_member_that_crashes_go_to_the_others(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
    crash_session_ms: int,
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    survives = start_member(group, topic)
    crashes = start_member(group, topic, session_timeout_ms=crash_session_ms)
    _share(topic, survives, crashes)
    _received(_produce_everywhere(bootstrap, topic, "before"), survives, crashes)
    crashes.kill()
    after = _produce_everywhere(bootstrap, topic, "after")
    _share(topic, survives)
    _received(after, survives)


@clients()
def test_a_static_member_that_restarts_gets_its_partitions_back_and_nobody_notices(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    stays = start_member(group, topic, instance_id="stays", session_timeout_ms=60_000)
    _share(topic, stays)
    restarts = start_member(group, topic, instance_id="restarts", session_timeout_ms=60_000)
    _share(topic, stays, restarts)
    _received(_produce_everywhere(bootstrap, topic, "before"), stays, restarts)
    rebalances, assignment = stays.rebalances, restarts.assignment

    restarts.kill()
    again = start_member(group, topic, instance_id="restarts", session_timeout_ms=60_000)
    # A rebalance would revoke partitions of the remaining member before this one got an assignment.
    again.wait("the assignment to come back", lambda m: m.assignment == assignment)
    _received(_produce_everywhere(bootstrap, topic, "after"), stays, again)
    assert stays.rebalances == rebalances


@clients("cooperative-sticky")
def test_a_cooperative_rebalance_takes_away_only_what_moves(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    first = start_member(group, topic, assignor="cooperative-sticky")
    _share(topic, first)
    second = start_member(group, topic, assignor="cooperative-sticky")
    _share(topic, first, second)
    _received(_produce_everywhere(bootstrap, topic, "together"), first, second)
    assert frozenset().union(*first.revoked) == second.assignment
    assert len(second.assignment or ()) == PARTITIONS // 2


@clients()
def test_a_group_resumes_where_it_committed(
    client: Driver,
    bootstrap: str,
    setup_admin: ConfluentAdmin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(PARTITIONS), fresh_name()
    first = start_member(group, topic, commit="auto")
    _received(_produce_everywhere(bootstrap, topic, "first"), first)
    first.leave()
    assert setup_admin.group_offsets(group, topic, PARTITIONS) == dict.fromkeys(_all(topic), 1)
    later = _produce_everywhere(bootstrap, topic, "later")
    second = start_member(group, topic, commit="auto")
    _received(later, second)
    assert set(second.values) == later


@clients()
def test_two_groups_each_read_everything(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic = make_topic(PARTITIONS)
    values = _produce_everywhere(bootstrap, topic, "each")
    for member in (start_member(fresh_name(), topic), start_member(fresh_name(), topic)):
        _received(values, member)


@clients()
def test_a_group_takes_up_partitions_that_are_added(
    client: Driver,
    bootstrap: str,
    setup_admin: ConfluentAdmin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(2), fresh_name()
    member = start_member(group, topic, metadata_max_age_ms=300)
    member.wait("two partitions", lambda m: m.assignment == _all(topic, 2))
    setup_admin.create_partitions(topic, PARTITIONS)
    _share(topic, member)
    eventually("leaders", lambda: setup_admin.is_served(topic, PARTITIONS))
    _received(_produce_everywhere(bootstrap, topic, "new"), member)
