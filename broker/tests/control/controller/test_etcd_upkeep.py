"""Compaction and defragmentation of a managed etcd; an unmanaged etcd is only read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "state"))

from etcd_process import EtcdCluster

from penstock.control.controller.etcd_upkeep import CompactionPolicy, EtcdUpkeep, maintenance_client
from penstock.control.controller.leadership import Leadership
from penstock.control.restored.guarded import GuardedStore
from penstock.runtime.clock import SystemClock
from penstock.state.embedded import EmbeddedStore
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import Compacted, PutOp, StoreUnavailable

MINUTE_MS = 60_000
MB = 1 << 20
POLICY = CompactionPolicy(least_revisions=10)


class HandClock:
    now_ms = 1_000_000

    def boot_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class Status:
    member_id: int
    revision: int = 1
    db_size_bytes: int = MB
    db_in_use_bytes: int = MB
    leader_id: int = 1


@dataclass(frozen=True)
class Alarm:
    member_id: int
    kind: str


@dataclass
class Etcd:
    """In-memory members; implements `etcd_upkeep.MaintenanceClient` and the used part of `Store`."""

    members: dict[str, Status]
    raised: list[Alarm] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    compacted: list[int] = field(default_factory=list)
    defragmented: list[str] = field(default_factory=list)

    @property
    def urls(self) -> list[str]:
        return list(self.members)

    async def status(self, url: str) -> Status:
        if url in self.down:
            raise StoreUnavailable(f"{url} does not answer")
        return self.members[url]

    async def alarms(self) -> list[Alarm]:
        return list(self.raised)

    async def disarm(self, alarm: Alarm) -> None:
        self.raised.remove(alarm)

    async def defragment(self, url: str) -> None:
        self.defragmented.append(url)
        self.members[url].db_size_bytes = self.members[url].db_in_use_bytes

    async def compact(self, revision: int) -> None:
        self.compacted.append(revision)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def three() -> Etcd:
    return Etcd({f"http://{i}": Status(i) for i in (1, 2, 3)})


def care_of(etcd: Etcd, clock: HandClock, policy: CompactionPolicy = POLICY, is_managed: bool = True) -> EtcdUpkeep:
    return EtcdUpkeep(etcd, etcd, Leadership(1, 1), clock, is_managed, policy)


async def minutes(upkeep: EtcdUpkeep, etcd: Etcd, clock: HandClock, count: int, writes: int = 100) -> None:
    """Advance by `count` minutes, each with `writes` writes and one sample."""
    for _ in range(count):
        clock.now_ms += MINUTE_MS
        for status in etcd.members.values():
            status.revision += writes
        await upkeep.sample()


async def test_what_is_older_than_a_quarter_of_an_hour_is_forgotten(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    await minutes(upkeep, three, clock, 15)
    assert three.compacted == []
    await minutes(upkeep, three, clock, 1)
    assert three.compacted == [101], "the revision of the first sample"
    await minutes(upkeep, three, clock, 3)
    assert three.compacted == [101, 201, 301, 401]


async def test_an_idle_etcd_is_not_compacted(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    await minutes(upkeep, three, clock, 60, writes=0)
    assert three.compacted == []


async def test_a_large_one_keeps_less(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    three.members["http://2"].db_in_use_bytes = 600 * MB
    await minutes(upkeep, three, clock, 3)
    assert three.compacted == [101, 201]


async def test_one_that_is_not_ours_is_only_looked_at(three: Etcd, clock: HandClock, capsys) -> None:
    upkeep = care_of(three, clock, is_managed=False)
    three.raised.append(Alarm(2, "NOSPACE"))
    three.members["http://2"].db_size_bytes = 1000 * MB
    await minutes(upkeep, three, clock, 30)
    assert (three.compacted, three.defragmented, len(three.raised)) == ([], [], 1)
    said = capsys.readouterr()
    assert (said.out + said.err).count("etcd alarm raised") == 1


async def test_members_are_defragmented_when_it_pays_the_leader_last(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    for status in three.members.values():
        status.db_size_bytes = 400 * MB
    three.members["http://3"].db_in_use_bytes = 250 * MB  # defragmentation would free little
    await minutes(upkeep, three, clock, 1)
    assert three.defragmented == ["http://2", "http://1"]


async def test_a_member_is_defragmented_once_an_hour_at_most(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    for _ in range(59):
        three.members["http://2"].db_size_bytes = 400 * MB
        await minutes(upkeep, three, clock, 1)
    assert three.defragmented == ["http://2"]
    three.members["http://2"].db_size_bytes = 400 * MB
    await minutes(upkeep, three, clock, 2)
    assert three.defragmented == ["http://2"] * 2


async def test_while_a_member_does_not_answer_none_is_defragmented_and_history_is_forgotten_all_the_same(
    three: Etcd, clock: HandClock, capsys
) -> None:
    upkeep = care_of(three, clock)
    three.members["http://1"].db_size_bytes = 400 * MB
    three.down.add("http://3")
    await minutes(upkeep, three, clock, 17)
    assert (three.compacted, three.defragmented) == ([101, 201], [])
    said = capsys.readouterr()
    assert (said.out + said.err).count("etcd member not responding") == 1
    three.down.clear()
    await minutes(upkeep, three, clock, 1)
    assert three.defragmented == ["http://1"]


async def test_an_alarm_is_told_though_a_member_does_not_answer(three: Etcd, clock: HandClock, capsys) -> None:
    upkeep = care_of(three, clock, is_managed=False)
    three.down.add("http://1")
    three.raised.append(Alarm(1, "NOSPACE"))
    await minutes(upkeep, three, clock, 2)
    said = capsys.readouterr()
    assert (said.out + said.err).count("etcd alarm raised") == 1


async def test_a_full_one_writes_again_though_a_member_does_not_answer(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    three.down.add("http://3")
    three.raised = [Alarm(2, "NOSPACE"), Alarm(3, "NOSPACE")]
    await minutes(upkeep, three, clock, 1)
    assert three.compacted == [101]
    assert three.defragmented == ["http://2", "http://1"]
    assert three.raised == []


async def test_nothing_is_done_while_no_member_answers(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    three.down.update(three.urls)
    three.raised.append(Alarm(2, "NOSPACE"))
    with pytest.raises(StoreUnavailable):
        await upkeep.sample()
    assert (three.compacted, three.defragmented, len(three.raised)) == ([], [], 1)


async def test_a_full_one_is_compacted_defragmented_and_writes_again(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    three.raised = [Alarm(2, "NOSPACE"), Alarm(3, "CORRUPT")]
    await minutes(upkeep, three, clock, 1)
    assert three.compacted == [101]
    assert sorted(three.defragmented) == three.urls
    assert three.raised == [Alarm(3, "CORRUPT")], "only an administrator clears that"


async def test_who_is_controller_no_longer_does_nothing(three: Etcd, clock: HandClock) -> None:
    upkeep = care_of(three, clock)
    upkeep.leadership.lost.set()
    await minutes(upkeep, three, clock, 20)
    assert three.compacted == []


async def test_the_embedded_store_needs_nobody_to_look_after_it() -> None:
    store = EmbeddedStore(":memory:")
    assert maintenance_client(store) is None
    assert maintenance_client(GuardedStore(store)) is None
    await store.close()


@pytest.mark.integration
async def test_a_real_etcd_that_ran_full_takes_writes_again() -> None:
    with EtcdCluster(arguments=[f"--quota-backend-bytes={16 * MB}"]) as etcd:
        store = EtcdStore(EtcdOptions(endpoints=etcd.endpoints))
        maintenance = maintenance_client(GuardedStore(store))
        assert maintenance is not None
        upkeep = EtcdUpkeep(store, maintenance, Leadership(1, 1), SystemClock(), True, POLICY)

        async def fill() -> None:
            for number in range(64):
                await store.txn([], [PutOp("/penstock/v1/x", bytes([number]) * MB)])

        with pytest.raises(StoreUnavailable, match="quota"):
            await fill()
        with pytest.raises(StoreUnavailable, match="quota"):
            await store.txn([], [PutOp("/penstock/v1/x", b"small")])
        upkeep.policy = CompactionPolicy(least_revisions=1)
        await upkeep.sample()
        assert (upkeep.compactions, upkeep.defragmentations) == (1, 1)
        assert (await maintenance.status(maintenance.urls[0])).db_size_bytes < 8 * MB
        await store.txn([], [PutOp("/penstock/v1/x", b"small")])
        assert (await store.get("/penstock/v1/x")).value == b"small"
        with pytest.raises(Compacted):
            await store.range("/penstock/v1/", 2)
        await store.close()
