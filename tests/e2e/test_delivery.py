"""At most once and at least once, each with a crash of the consumer, verified by counting.

The member crashes either after it has committed polled records and before it handles them, or after handling and before
committing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock_e2e.drivers import clients
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.member import Member, StartMember
from penstock_e2e.model import LibraryDriver, MakeTopic, Partition, ProducerSpec, Record, eventually

COUNT = 300


def _committed(admin: ConfluentAdmin, group: str, topic: str) -> int:
    return sum(admin.group_offsets(group, topic, 1).values())


def _handled(*members: Member) -> Counter[bytes | None]:
    return Counter(value for member in members for value in member.values)


@clients("library")
def test_at_most_once_loses_what_was_committed_before_the_crash_and_repeats_nothing(
    library_client: LibraryDriver,
    setup_admin: ConfluentAdmin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
    crash_session_ms: int,
) -> None:
    topic, group = make_topic(1), fresh_name()
    values = [f"value-{index}".encode() for index in range(COUNT)]
    library_client.produce(topic, [Record(v, partition=0) for v in values], ProducerSpec(acks="0"))
    eventually("the produced", lambda: library_client.watermarks(Partition(topic, 0)) == (0, COUNT))
    spec = {"commit": "before", "hold_at": COUNT // 2, "session_timeout_ms": crash_session_ms}
    crashes = start_member(group, topic, **spec)
    crashes.wait("the window between commit and handling", lambda m: m.holding)
    crashes.kill()
    committed = _committed(setup_admin, group, topic)
    assert len(crashes.records) < committed

    takes_over = start_member(group, topic, commit="before")
    last = Record(b"last", partition=0)
    library_client.produce(topic, [last])
    takes_over.wait("the last record", lambda m: last.value in m.values)
    handled = _handled(crashes, takes_over)
    assert max(handled.values()) == 1, "a record was handled twice"
    lost = [v for v in values if v not in handled]
    assert lost == values[len(crashes.records) : committed], "lost is what was committed and not handled"


@clients("library")
def test_at_least_once_repeats_what_was_not_committed_before_the_crash_and_loses_nothing(
    library_client: LibraryDriver,
    setup_admin: ConfluentAdmin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
    crash_session_ms: int,
) -> None:
    topic, group = make_topic(1), fresh_name()
    values = [f"value-{index}".encode() for index in range(COUNT)]
    library_client.produce(topic, [Record(v, partition=0) for v in values], ProducerSpec(idempotent=True))
    spec = {"commit": "after", "hold_at": COUNT // 2, "session_timeout_ms": crash_session_ms}
    crashes = start_member(group, topic, **spec)
    crashes.wait("the window between handling and commit", lambda m: m.holding)
    crashes.kill()
    committed = _committed(setup_admin, group, topic)
    assert committed < len(crashes.records)

    takes_over = start_member(group, topic, commit="after")
    last = Record(b"last", partition=0)
    library_client.produce(topic, [last])
    takes_over.wait("the last record", lambda m: last.value in m.values)
    handled = _handled(crashes, takes_over)
    assert [v for v in values if v not in handled] == [], "records were lost"
    repeated = [v for v in values if handled[v] > 1]
    assert repeated == values[committed : len(crashes.records)], "repeated is what was handled and not committed"
    assert max(handled.values()) == 2
