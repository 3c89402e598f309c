"""The move of a single broker's records into a cluster: interruptions and errors."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import uuid4

import adopt_kit
import pytest
from adopt_kit import CLUSTER_ID, Failing, adopt, adopt_until_it_fails, contents, fill, make_directory, moving

from penstock.adopt.source import AdoptionSource, CannotAdopt
from penstock.control.membership import ensure_cluster
from penstock.log.log_dir import LogDirectory
from penstock.log.types import LogError
from penstock.runtime.clock import SystemClock
from penstock.runtime.disk import OsFiles
from penstock.state import keys
from penstock.state.records import ClusterRecord, OffsetRecord, encode
from penstock.state.store import PutOp, StoreError


async def whole(path: Path) -> tuple[dict[str, bytes], int]:
    """Return the store's contents after an uninterrupted move, and the number of transactions."""
    store = Failing()
    await make_directory(path)
    await adopt(path, store)
    found, writes = await contents(store), store.writes
    await store.close()
    return found, writes


def without_epochs(values: dict[str, bytes]) -> dict[str, bytes]:
    """Return the values of all keys except those that hold epochs, which differ between attempts."""
    return {k: v for k, v in values.items() if not k.startswith((keys.PARTITIONS, keys.METADATA + "broker-pasts/"))}


@pytest.mark.slow
async def test_a_move_that_is_interrupted_anywhere_leaves_no_cluster_and_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    expected, transactions = await whole(tmp_path / "whole")
    assert transactions >= 5, "the records fill several transactions"
    for number in range(1, transactions + 1):
        for is_done in (False, True):
            path = tmp_path / f"{number}-{is_done}"
            store = Failing(number, is_done)
            await make_directory(path)
            await adopt_until_it_fails(path, store)
            was_last = number == transactions
            if not (was_last and is_done):
                assert await store.get(keys.CLUSTER) is None
            if number > 1 and not was_last:
                with pytest.raises(StoreError, match="being adopted"):
                    await ensure_cluster(store, uuid4)
            await adopt(path, store)
            found = await contents(store)
            assert without_epochs(found) == without_epochs(expected)
            assert found.keys() == expected.keys()
            past = await store.get(keys.METADATA + "broker-pasts/0")
            assert past is not None
            partition = found[keys.partition(adopt_kit.FLIGHTS, 1)]
            assert f'"isr_epochs":[{past.mod_revision}]'.encode() in partition
            await store.close()


async def test_until_the_directory_is_given_up_it_can_be_used_alone_and_what_changed_counts(
    tmp_path: Path,
) -> None:
    store = Failing(fails_at=4)
    await make_directory(tmp_path)
    await adopt_until_it_fails(tmp_path, store)
    assert (tmp_path / "state.db").exists()
    changed = adopt_kit.records()
    del changed[keys.offset("group-1", adopt_kit.FLIGHTS, 0)]
    changed[keys.offset("group-2", adopt_kit.FLIGHTS, 0)] = encode(OffsetRecord(offset=99))
    (tmp_path / "state.db").unlink()
    await fill(tmp_path / "state.db", changed)
    await adopt(tmp_path, store)
    found = await contents(store)
    assert keys.offset("group-1", adopt_kit.FLIGHTS, 0) not in found
    assert found[keys.offset("group-2", adopt_kit.FLIGHTS, 0)] == encode(OffsetRecord(offset=99))
    await store.close()


async def test_progress_counts_every_key_once(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    told: list[int] = []
    async with moving(tmp_path, store) as mover:
        plan = await mover.plan()
        await mover.run(plan, told.append)
    assert told == sorted(set(told))
    assert told[-1] == len(plan.records.values)


async def test_a_plan_counts_and_writes_nothing(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    async with moving(tmp_path, store) as mover:
        plan = await mover.plan()
    assert plan.records.counts == {
        "topics": 1,
        "partitions": 3,
        "groups": 1,
        "committed offsets": adopt_kit.OFFSETS,
        "transactional ids": 1,
        "offsets in open transactions": 1,
        "brokers' settings": 1,
        "ACLs": 0,
        "SCRAM credentials": 0,
        "client quotas": 0,
    }
    assert (plan.state.partitions_with_data, plan.state.log_bytes) == (1, 100)
    assert (store.writes, (tmp_path / "state.db").exists()) == (0, True)


async def test_the_directory_is_a_clusters_then_and_never_that_of_a_broker_alone(
    tmp_path: Path, store: Failing
) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    assert not (tmp_path / "state.db").exists()
    log_dir = LogDirectory(OsFiles(), str(tmp_path), SystemClock(), adopt_kit.BROKER, random=Random(1), new_id=uuid4)
    log_dir.claim((await ensure_cluster(store, uuid4)).cluster_id)
    with pytest.raises(LogError):
        log_dir.claim("that-of-a-new-state-db")
    await log_dir.close()


async def test_a_move_that_was_done_is_done(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    before = await contents(store)
    async with moving(tmp_path, store) as mover:
        plan = await mover.plan()
        assert plan.is_done
        await mover.run(plan)
    assert await contents(store) == before


async def refused(path: Path, store: Failing, says: str) -> None:
    before = await contents(store)
    with pytest.raises(CannotAdopt, match=says):
        await adopt(path, store)
    assert await contents(store) == before


async def test_an_etcd_with_another_cluster_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await store.txn([], [PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="other")))])
    await refused(tmp_path, store, 'already holds cluster "other"')


async def test_an_etcd_with_keys_of_nobody_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await store.txn([], [PutOp(keys.group("x"), b"{}")])
    await refused(tmp_path, store, "etcdctl del --prefix /penstock/v1/")


async def test_the_unfinished_move_of_another_directory_is_refused(tmp_path: Path) -> None:
    store = Failing(fails_at=3)
    await make_directory(tmp_path / "one")
    await make_directory(tmp_path / "two")
    await adopt_until_it_fails(tmp_path / "one", store)
    await refused(tmp_path / "two", store, "another directory")
    await store.close()


async def test_a_directory_that_was_moved_is_not_moved_to_another_etcd(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    other = Failing()
    await refused(tmp_path, other, "was moved into a cluster that this etcd does not hold")
    await other.close()


async def test_a_copy_from_before_the_move_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    (tmp_path / "state.db.adopted").rename(tmp_path / "state.db")
    await refused(tmp_path, store, "from before its move")


async def test_where_another_was_faster_the_directory_is_given_back(tmp_path: Path) -> None:
    class Overtaken(Failing):
        """A store in which another client creates a cluster just before the move does."""

        async def txn(self, compares, then, otherwise=()):  # type: ignore[no-untyped-def]
            if any(operation.key == keys.CLUSTER for operation in then):
                await super().txn([], [PutOp(keys.CLUSTER, encode(ClusterRecord(cluster_id="faster")))])
            return await super().txn(compares, then, otherwise)

    store = Overtaken()
    await make_directory(tmp_path)
    with pytest.raises(CannotAdopt, match="another cluster or move"):
        await adopt(tmp_path, store)
    assert (tmp_path / "state.db").exists()
    assert not (tmp_path / "state.db.adopted").exists()
    await store.close()


async def test_a_directory_in_use_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    running = LogDirectory(OsFiles(), str(tmp_path), SystemClock(), adopt_kit.BROKER, random=Random(1), new_id=uuid4)
    await refused(tmp_path, store, "stop its broker first")
    await running.close()


async def test_what_is_no_brokers_directory_is_refused(tmp_path: Path, store: Failing) -> None:
    await refused(tmp_path, store, "is not a data directory")
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_of_a_clusters_broker_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    (tmp_path / "state.db").unlink()
    await refused(tmp_path, store, "already part of a cluster")


async def test_a_newer_format_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path, {keys.CLUSTER: encode(ClusterRecord(cluster_id=CLUSTER_ID, schema_version=99))})
    await refused(tmp_path, store, "use a newer version")


async def test_a_store_that_is_not_this_directorys_is_refused(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path, {keys.CLUSTER: encode(ClusterRecord(cluster_id="elsewhere"))})
    await refused(tmp_path, store, "belongs to cluster")


async def test_a_damaged_store_is_refused_and_not_put_aside(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    data = bytearray((tmp_path / "state.db").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "state.db").write_bytes(data)
    await refused(tmp_path, store, "damaged|cannot read")
    assert (tmp_path / "state.db").exists()


async def test_its_lock_is_given_back(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    AdoptionSource(OsFiles(), str(tmp_path)).close()
