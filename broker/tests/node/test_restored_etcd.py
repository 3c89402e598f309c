"""Restore of etcd under a cluster: brokers freeze, an operator runs the recovery, no record is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import Cluster, in_sync, partitions, read_all, until, write
from node_kit import PENSTOCK

from penstock.client import Admin, NewTopic, Producer
from penstock.state import keys
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import StoreError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[EtcdStore]:
    opened = EtcdStore(EtcdOptions(endpoints=cluster.etcd.endpoints))
    yield opened
    await opened.close()


def back_up(cluster: Cluster) -> Path:
    """Stop etcd, copy its data, and start it again."""
    member = cluster.etcd.members[0]
    member.kill()
    backup = member.directory / "backup"
    shutil.copytree(member.directory / member.name, backup)
    member.start()
    member.wait_ready()
    return backup


def restore(cluster: Cluster, backup: Path) -> None:
    member = cluster.etcd.members[0]
    member.kill()
    shutil.rmtree(member.directory / member.name)
    shutil.copytree(backup, member.directory / member.name)
    member.start()
    member.wait_ready()


async def reported(store: EtcdStore, *broker_ids: int) -> None:
    async def all_have() -> bool:
        try:
            return all([await store.get(keys.report(broker_id)) for broker_id in broker_ids])
        except StoreError:
            return False

    await until(all_have, f"brokers {broker_ids} are frozen and have told what they have")


async def registered(store: EtcdStore, count: int) -> None:
    async def are() -> bool:
        return len((await store.range(keys.BROKERS)).entries) == count

    await until(are, f"{count} brokers are members")


def recover(cluster: Cluster, *more: str) -> tuple[int, str, str]:
    command = [str(PENSTOCK), "cluster", "recover", "--etcd", cluster.etcd.endpoints[0], *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def documents(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


async def test_a_cluster_survives_an_etcd_restored_from_a_backup(cluster: Cluster, store: EtcdStore) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        sent = await write(producer, "t", 0, 200)
        assert recover(cluster)[0] == 1, "nothing to recover"
        backup = back_up(cluster)
        # The backup lacks these changes: a new leader with its epoch, and a topic.
        [placed] = await partitions(admin, "t")
        cluster.brokers[placed.leader].kill()
        sent += await write(producer, "t", len(sent), 200)
        cluster.start(placed.leader)
        await in_sync(admin, "t", 1, 2, 3)
        await admin.create_topics([NewTopic("later", 1)])
        await write(producer, "later", 0, 10)

        restore(cluster, backup)
        await reported(store, 1, 2, 3)
        assert await read_all(cluster.bootstrap, "t", len(sent)) == sent, "reads go on"
        sent += await write(producer, "t", len(sent), 50)  # frozen brokers acknowledge acks=all too

        code, out, _ = recover(cluster)
        assert (code, "later" in out) == (4, True), "it shows, and asks"
        code, out, errors = recover(cluster, "--yes", "--output", "json")
        assert code == 0, errors
        summary = documents(out)
        assert [b["broker"] for b in summary["brokers"]] == [1, 2, 3]
        assert {u["topic"] for u in summary["unknown"]} == {"later"}
        [partition] = [p for p in summary["partitions"] if p["topic"] == "t"]
        assert partition["new_leader_epoch"] > max(end["epoch"] for end in partition["log_ends"].values())

        await registered(store, 3)
        await in_sync(admin, "t", 1, 2, 3)
        sent += await write(producer, "t", len(sent), 100)
        assert await read_all(cluster.bootstrap, "t", len(sent)) == sent
        quarantined = {path.name for path in cluster.home.glob("*/quarantine/*")}
        assert {name.rpartition("-")[0] for name in quarantined} == {u["topic_id"] for u in summary["unknown"]}
        assert "later" not in await admin.list_topics()


async def test_brokers_that_were_down_freeze_when_they_start_and_can_be_stopped(
    cluster: Cluster, store: EtcdStore
) -> None:
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await admin.create_topics([NewTopic("t", 1)])
        backup = back_up(cluster)
        sent = await write(producer, "t", 0, 100)
        [before] = await partitions(admin, "t")
        await admin.create_topics([NewTopic("later", 1)])
    for broker in cluster.brokers.values():
        assert broker.stop() == 0
    restore(cluster, backup)
    for broker_id in (1, 2, 3):
        cluster.begin(broker_id)
    await reported(store, 1, 2, 3)
    assert cluster.brokers[3].stop() == 0, "it need not be killed"
    cluster.begin(3)
    code, _, errors = recover(cluster, "--yes")
    assert code == 0, errors
    for broker in cluster.brokers.values():
        broker.ready()
    async with Admin(cluster.bootstrap) as admin:

        async def is_led() -> bool:
            [after] = await partitions(admin, "t")
            return after.leader >= 0 and after.leader_epoch > before.leader_epoch + 1000

        await until(is_led, "the replica with the most leads, in an epoch above all that was")
        await in_sync(admin, "t", 1, 2, 3)
    assert await read_all(cluster.bootstrap, "t", len(sent)) == sent
